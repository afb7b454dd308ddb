"""KernelBench's format: a file with a module `Model` and the functions `get_inputs` and `get_init_inputs`.

Parameters and floating buffers of the model become inputs of the definition, so that a solution cannot know them. Their
values, and those of the inputs, are the ones that the file makes.

Source: KernelBench (Ouyang et al., 2025), the format of its problems.
"""

from __future__ import annotations

import copy
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from fib_schema import SourceFile

from ..authoring.sources import read_sources
from .problem import (
    Argument,
    Call,
    Problem,
    ProblemError,
    attribute,
    explained,
    identifier,
    modules,
    record_name,
    tensors_of,
)

SEED = 42
"""The seed with which KernelBench makes a model and its inputs."""
_LEVEL = re.compile(r"level_?\d+")
_RUN = """

import torch as _torch

_MODEL = None


def _model(device, names):
    global _MODEL
    if _MODEL is None:
        with _torch.random.fork_rng(devices=[]):
            _torch.manual_seed({seed})
            _MODEL = {model}(*{init}).to(device)
        if unknown := sorted(set(names) - {{*dict(_MODEL.named_parameters()), *dict(_MODEL.named_buffers())}}):
            raise ValueError("{model} lacks " + ", ".join(unknown) + "; it must have the parameters of the problem")
    return _MODEL


def run({parameters}):
    _state = {{
{state}    }}
    _inputs = ({inputs},)
    _tensors = [value for value in (*_inputs, *_state.values()) if isinstance(value, _torch.Tensor)]
    _module = _model(_tensors[0].device if _tensors else "cpu", _state)
    return _torch.func.functional_call(_module, _state, _inputs)
"""


@attrs.frozen
class KernelBenchFile:
    """A problem file: the problem, and what solutions of it need."""

    problem: Problem
    source: str
    inputs: tuple[str, ...]
    """Arguments of the model."""
    parameters: Mapping[str, str]
    """Inputs of the definition that are parameters of the model, with their names there."""
    buffers: Mapping[str, str]
    init: str
    """Source of the model's own arguments."""

    def solution(self, candidate: Path) -> tuple[SourceFile, ...]:
        """The sources of a solution: a file with a module `ModelNew`, and an entry file ``main.py`` with `run`.

        Args:
            candidate: The file; it is not executed. `ModelNew` must have the parameters of `Model`.

        Raises:
            KernelFileError: It cannot be read.
        """
        (source, *_) = read_sources(candidate)
        imports = ["from candidate import ModelNew\n"]
        files = [SourceFile("candidate.py", source.content)]
        if self.init:
            imports += ["from problem import get_init_inputs\n"]
            files += [SourceFile("problem.py", self.source)]
        adapter = _adapter(self.inputs, self.parameters, self.buffers, "ModelNew", self.init)
        return (SourceFile("main.py", "".join(imports) + adapter), *files)

    @property
    def is_destination_passing(self) -> bool:
        """Whether solutions get the outputs as arguments."""
        return False


def read_kernelbench(path: Path, *, name: str | None = None, op_type: str = "kernelbench") -> KernelBenchFile:
    """Run a problem file and describe it.

    Args:
        path: The file. It is executed.
        name: Name of the definition; by default made of the file's name and its level.
        op_type: Kind of operation.

    Raises:
        KernelFileError: The file cannot be read.
        ProblemError: It is not of the format, it raises, or a definition cannot describe it.
    """
    where = str(path)
    if path.is_file() and path.suffix != ".py":
        raise ProblemError(where, "is not a problem of KernelBench: a .py file with a class Model and get_inputs()")
    (source, *_) = read_sources(path)
    with modules({"kernelbench_problem": source.content}, where) as module, torch.no_grad():
        init = "get_init_inputs()" if callable(getattr(module, "get_init_inputs", None)) else ""
        model, arguments = _make(module, where)
        names = _input_names(model, len(arguments))
        parameters, buffers = _state(model, names)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        values = dict(zip(names, map(_detached, arguments), strict=True))
        values |= {argument: tensors[key].detach().clone() for argument, key in {**parameters, **buffers}.items()}
        with explained(where, "Model.forward"):
            result = _forward(model, arguments)
        sizes = {key: value for key, value in vars(module).items() if type(value) is int and not key.startswith("_")}
    problem = Problem(
        path=where,
        name=name or _name(path),
        op_type=op_type,
        description=f"Problem {path.stem} in the format of KernelBench.",
        reference=source.content.rstrip() + _adapter(names, parameters, buffers, "Model", init),
        calls=(Call("given", sizes, values, tensors_of(result, where)),),
        recorded=frozenset({*parameters, *buffers}),
    )
    return KernelBenchFile(problem, source.content, tuple(names), parameters, buffers, init)


def _name(path: Path) -> str:
    level = path.resolve().parent.name
    return record_name("kernelbench", level if _LEVEL.fullmatch(level) else "", path.stem)


def _make(module: types.ModuleType, path: str) -> tuple[torch.nn.Module, list[Any]]:
    """The model and its arguments, as the file makes them."""
    cls, get_inputs = attribute(module, "Model", path), attribute(module, "get_inputs", path)
    with explained(path, "making the model"):
        torch.manual_seed(SEED)
        model = cls(*getattr(module, "get_init_inputs", list)())
    if not isinstance(model, torch.nn.Module):
        raise ProblemError(path, "'Model' is not a subclass of torch.nn.Module")
    with explained(path, "get_inputs"):
        torch.manual_seed(SEED)
        arguments = list(get_inputs())
    wrong = [type(value).__name__ for value in arguments if not isinstance(value, torch.Tensor | int | float)]
    if wrong or not arguments:
        kinds = ", ".join(wrong) or "nothing"
        raise ProblemError(path, f"get_inputs returned {kinds}; only tensors and numbers can be inputs")
    return model, arguments


def _input_names(model: torch.nn.Module, count: int) -> list[str]:
    parameters = inspect.signature(model.forward).parameters.values()
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names: list[str] = []
    for name in [*plain, *(f"input_{index}" for index in range(len(plain), count))][:count]:
        names.append(identifier(name, names))  # without leading underscores, which the adapter's own names have
    return names


def _state(model: torch.nn.Module, names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Inputs of the definition for parameters and for buffers, each with its name in the model.

    Numbers (tensors without dimensions) and integers stay those of the module, which makes them from the same seed.
    """
    taken = list(names)
    found: list[dict[str, str]] = []
    for tensors in (model.named_parameters(), model.named_buffers()):
        part = {}
        for key, tensor in tensors:
            if tensor.dim() and tensor.is_floating_point():
                taken.append(identifier(key, taken))
                part[taken[-1]] = key
        found.append(part)
    return found[0], found[1]


def _forward(model: torch.nn.Module, arguments: Sequence[Any]) -> object:
    """The result of a call: without values, which costs nothing, where that is possible."""
    try:
        empty = copy.deepcopy(model).to("meta")
        return empty(*(value.to("meta") if isinstance(value, torch.Tensor) else value for value in arguments))
    except Exception:  # noqa: BLE001 - the code reads values; what is wrong with it shows in the real call
        return model(*arguments)


def _detached(value: Argument) -> Argument:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _adapter(names: Sequence[str], state: Mapping[str, str], buffers: Mapping[str, str], model: str, init: str) -> str:
    """Source of a function ``run`` that calls a module with parameters from outside."""
    lines = [f"        {key!r}: {argument},\n" for argument, key in state.items()]
    lines += [f"        {key!r}: {argument}.clone(),  # a call may update it\n" for argument, key in buffers.items()]
    return _RUN.format(
        state="".join(lines),
        parameters=", ".join([*names, *state, *buffers]),
        inputs=", ".join(names),
        seed=SEED,
        model=model,
        init=init or "[]",
    )
