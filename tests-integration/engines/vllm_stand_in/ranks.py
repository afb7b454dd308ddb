"""Tensor-parallel ranks: processes that each make the calls of a rank, and functions that are sent to all of them."""

import importlib
import marshal
import multiprocessing
import os
import types


class Ranks:
    def __init__(self, settings):
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        for rank in range(settings["tensor_parallel_size"]):
            ours, theirs = context.Pipe()
            arguments = rank, settings, theirs, f"{settings['model']}/ranks-{os.getpid()}"  # no port can be taken
            context.Process(target=_serve, args=arguments, daemon=True).start()
            self.pipes.append(ours)

    def call(self, *what):
        """Let all ranks do something; their results."""
        for pipe in self.pipes:
            pipe.send(what)
        return [pipe.recv() for pipe in self.pipes]

    def call_function(self, function, arguments):
        """Call a function of a module with each rank's worker; it is sent by its code."""
        return self.call("function", marshal.dumps(function.__code__), function.__module__, arguments)


def _serve(rank, settings, pipe, meeting_file):
    from torch import distributed
    from vllm import LLM, SamplingParams

    count = settings["tensor_parallel_size"]
    distributed.init_process_group("gloo", init_method=f"file://{meeting_file}", rank=rank, world_size=count)
    engine = LLM(**{**settings, "tensor_parallel_size": 1})
    while True:
        try:
            kind, *rest = pipe.recv()
        except EOFError:  # the engine has ended
            return
        if kind == "generate":
            count, wanted = rest
            requests = [{"prompt_token_ids": [1] * 128}] * count
            engine.generate(requests, SamplingParams(max_tokens=wanted), use_tqdm=False)
            pipe.send(None)
        else:
            code, module, arguments = rest
            name = "two_ranks" if module == "__main__" else module
            function = types.FunctionType(marshal.loads(code), vars(importlib.import_module(name)))
            pipe.send(function(None, *arguments))
