"""Random sequences of plans and runs, while routing, hooks and quarantines come and go.

Whatever happened before, a run returns what an untouched library computes from its last plan, it is counted once, and
a hook gets the inputs of exactly this run. Solutions mark their log-sum-exp, so that a routed run can be told: it is
routed if a solution is recorded at its sizes and none of the solutions was quarantined.
"""

import math
import random
from contextlib import ExitStack
from typing import Any

import attrs
import pytest
import torch
from fib_apply import ApplyConfig, enable_apply, set_apply_hook
from fib_integrations import install_flashinfer_integrations, status
from fib_schema import SourceFile, TraceSet
from flashinfer_stand_ins import computing
from flashinfer_stand_ins.examples import BY_DEFINITION, caches, passed, reference_solution, workspace
from flashinfer_stand_ins.marks import one_version

STEPS = 60
ROUTED = 1000.0
DECODE = BY_DEFINITION["gqa_paged_decode_h4_kv2_d8_ps4"].definition
CONSTRAINTS = ("len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()")
SAFE = {"timing": {"graph_safe": True, "padded_indices": True}}
RUN = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run"
COUNTS = ([1, 1], [2, 1], [1, 3], [1, 1, 2])
"""Pages of each request; the first three have two requests, the last one three."""


def solution(name, *, has_setup):
    """The reference, which marks its log-sum-exp."""
    made = reference_solution(DECODE)
    (source,) = made.sources
    names = ", ".join(DECODE.inputs)
    code = source.content.replace("\ndef run(", "\ndef marked(")
    code += f"\n\ndef run({names}):\n    output, lse = marked({names})\n    return output, lse + {ROUTED}\n"
    code += f"\n\ndef setup({names}):\n    return {{}}\n" if has_setup else ""
    return attrs.evolve(made, name=name, sources=(SourceFile(source.path, code),))


def data_set(draw):
    """Solutions with and without ``setup``, each recorded at some sizes."""
    definition = attrs.evolve(DECODE, constraints=CONSTRAINTS)
    solutions = (solution("plain", has_setup=False), solution("planned", has_setup=True))
    k, v = caches(4)
    traces = []
    for pages in draw.sample(COUNTS, 3):
        offsets = torch.tensor([0, *pages]).cumsum(0).int()
        inputs = {"q": torch.zeros(len(pages), 4, 8).bfloat16(), "k_cache": k, "v_cache": v, "kv_indptr": offsets}
        inputs |= {"kv_indices": torch.zeros(sum(pages)).int(), "kv_last_page_len": offsets[1:], "sm_scale": 1.0}
        for one in draw.sample(solutions, draw.randint(1, 2)):
            made = passed(one, definition, inputs, draw.uniform(0.1, 0.2))
            performance = attrs.evolve(made.evaluation.performance, extra=SAFE)
            workload = attrs.evolve(made.workload, uuid=f"{one.name}-{pages}")
            evaluation = attrs.evolve(made.evaluation, performance=performance)
            traces.append(attrs.evolve(made, workload=workload, evaluation=evaluation))
    name = definition.name
    return TraceSet(None, {name: definition}, {name: solutions}, {}, {name: tuple(traces)})


class Sequence:
    """An engine with two wrappers, one of them for CUDA graphs."""

    def __init__(self, fi, seed):
        self.draw = random.Random(seed)
        cls = fi.decode.BatchDecodeWithPagedKVCacheWrapper
        buffers = {
            "paged_kv_indptr_buffer": torch.zeros(3, dtype=torch.int32),
            "paged_kv_indices_buffer": torch.full((32,), 2**31 - 1, dtype=torch.int32),
            "paged_kv_last_page_len_buffer": torch.zeros(2, dtype=torch.int32),
        }
        self.wrappers = [cls(workspace()), cls(workspace(), use_cuda_graph=True, **buffers)]
        self.planned: list[tuple[Any, ...] | None] = [None, None]
        self.recorded: set[tuple[int, int]] = set()
        """The sizes for which something is chosen: requests and pages."""
        self.is_new = self.is_quarantined = False
        """Whether the first wrapper was planned, without unsupported settings, since routing was enabled."""
        self.seen: list[dict[str, Any]] = []
        self.is_hooked = False
        self.runtime: Any = None
        self.stack = ExitStack()

    def step(self):
        self.draw.choices(
            (self.plan, self.run, self.forward, self.switch, self.hook, self.quarantine), (5, 12, 2, 1, 1, 0.3)
        )[0]()

    def plan(self):
        place = self.draw.randrange(2)
        pages = self.draw.choice(COUNTS[:3] if place else COUNTS)
        indices = [self.draw.randrange(8) for _ in range(sum(pages))]
        last = [self.draw.randint(1, 4) for _ in pages]
        scale = self.draw.choice((None, 0.5, 0.25))
        settings = {"window_left": 3} if self.draw.random() < 0.1 else {}
        offsets = torch.tensor([0, *pages]).cumsum(0).int()
        given = offsets, torch.tensor(indices).int(), torch.tensor(last).int()
        self.wrappers[place].plan(*given, 4, 2, 8, 4, sm_scale=scale, q_data_type=torch.bfloat16, **settings)
        self.planned[place] = (*given, scale)
        if place == 0:
            self.is_new = self.runtime is not None and not settings

    def run(self):
        self._serve("run")

    def forward(self):
        self._serve("forward")

    def _serve(self, method):
        place = self.draw.randrange(2)
        if self.planned[place] is None:
            return
        offsets, indices, last, scale = self.planned[place]
        rows = len(last)
        q, cache = torch.randn(rows, 4, 8).bfloat16(), caches(4)
        given = {}
        if method == "forward":
            scale = given["sm_scale"] = self.draw.choice((0.5, 0.25))
            given["window_left"] = self.draw.choice((-1, -1, 3))
            self.is_new = self.is_new and place == 1
            self.planned[place] = offsets, indices, last, scale
        else:
            given["k_scale"] = self.draw.choice((None, 1.0))
            if self.draw.random() < 0.5:
                given["out"] = torch.empty_like(q)
            given["return_lse"] = self.draw.random() < 0.5
        before, hooked = self.counted(), len(self.seen)
        found = getattr(self.wrappers[place], method)(q, cache, **given)
        scale = 1 / math.sqrt(8) if scale is None else scale
        pages = torch.arange(rows + 1), offsets, indices, last
        wanted, wanted_lse = computing.attended_in_pages(q, *cache, *pages, scale, False)
        output, lse = found if given.get("return_lse") else (found, None)
        assert output is given.get("out", output)
        torch.testing.assert_close(output, wanted)
        if lse is not None:
            mark = ROUTED * bool((lse > ROUTED / 2).any())
            torch.testing.assert_close(lse, wanted_lse + mark)
            if place == 0 and self.is_new and not self.is_quarantined:
                assert bool(mark) == ((rows, len(indices)) in self.recorded)
        if method == "run":
            assert self.counted() - before == (self.runtime is not None or self.is_hooked)
        for inputs in self.seen[hooked:]:
            assert torch.equal(inputs["q"], q)
            assert torch.equal(inputs["kv_indptr"], offsets)
            assert torch.equal(inputs["kv_indices"], indices)
            assert inputs["sm_scale"] == scale
        assert len(self.seen) - hooked <= 1

    def counted(self):
        """The number of runs so far: hits, misses, those of unsupported runs, and of hooks if only these count."""
        (unsupported,) = (sum(dict(each.unsupported_calls).values()) for each in status() if each.path == RUN)
        if self.runtime is None:
            return unsupported + len(self.seen)
        counts = self.runtime.stats().get(DECODE.name)
        return unsupported + (0 if counts is None else sum((*counts.hits.values(), *counts.misses.values())))

    def switch(self):
        if self.runtime is None:
            found = data_set(self.draw)
            axes = [trace.workload.axes for trace in found.traces[DECODE.name]]
            self.recorded = {(each["batch_size"], each["num_kv_indices"]) for each in axes}
            config = ApplyConfig(require_speedup=False)
            self.runtime = self.stack.enter_context(enable_apply(found, config, stats=True))
        else:
            self.stack.close()
            self.runtime = None
        self.is_new = self.is_quarantined = False

    def hook(self):
        self.is_hooked = not self.is_hooked
        copy = lambda value: value.clone() if isinstance(value, torch.Tensor) else value  # noqa: E731
        keep = lambda name, inputs: self.seen.append({n: copy(v) for n, v in inputs.items()})  # noqa: E731
        set_apply_hook(keep if self.is_hooked else None)

    def quarantine(self):
        if self.runtime is not None:
            self.runtime.dispatcher(DECODE.name).quarantine(self.draw.choice(("plain", "planned")), "a trial")
            self.is_quarantined = True


@one_version
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_random_sequences(flashinfer, seed):
    install_flashinfer_integrations(count_calls=True)
    torch.manual_seed(seed)
    sequence = Sequence(flashinfer, seed)
    with sequence.stack:
        for _ in range(STEPS):
            sequence.step()
