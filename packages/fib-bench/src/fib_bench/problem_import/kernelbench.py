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

import torch

from ..authoring.sources import read_sources
from .problem import (
    Call,
    ForeignProblem,
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
_CHANGES = "parameters of the model change between calls; a solution that rearranges them once needs --fixed-parameters"
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
            raise ValueError(
                "{model} lacks " + ", ".join(unknown) + "; it must have the parameters of the problem, whose values "
                "change between calls, unless the problem is imported with --fixed-parameters"
            )
    return _MODEL


def run({parameters}):
    _state = {{
{state}    }}
    _inputs = ({inputs},)
    _tensors = [value for value in (*_inputs, *_state.values()) if isinstance(value, _torch.Tensor)]
    _module = _model(_tensors[0].device if _tensors else "cpu", _state)
    return _torch.func.functional_call(_module, _state, _inputs)
"""


def read_kernelbench(
    path: Path, *, name: str | None = None, op_type: str = "kernelbench", fixed_parameters: bool = False
) -> ForeignProblem:
    """Run a problem file and describe it.

    A solution is a file with a module `ModelNew`, which must have the parameters of `Model`.

    Args:
        path: The file. It is executed.
        name: Name of the definition; by default made of the file's name and its level.
        op_type: Kind of operation.
        fixed_parameters: Whether parameters stay those that the seed makes, in every call, as in KernelBench: solutions
            may rename and rearrange them, and may know them.

    Raises:
        KernelFileError: The file cannot be read.
        ProblemError: It is not of the format, it raises, or a definition cannot describe it.
    """
    where, level = str(path), path.resolve().parent.name
    if path.is_file() and path.suffix != ".py":
        raise ProblemError(where, "is not a problem of KernelBench: a .py file with a class Model and get_inputs()")
    (source, *_) = read_sources(path)
    with modules({"kernelbench_problem": source.content}, where) as module, torch.no_grad():
        init = "get_init_inputs()" if callable(getattr(module, "get_init_inputs", None)) else ""
        model, arguments = _make(module, where)
        names = _input_names(model, len(arguments))
        state = {} if fixed_parameters else _state(model, names)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        values = {n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in zip(names, arguments, strict=True)}
        values |= {argument: tensors[key].detach().clone() for argument, key in state.items()}
        with explained(where, "Model.forward"):
            result = _forward(model, arguments)
        sizes = {key: value for key, value in vars(module).items() if type(value) is int and not key.startswith("_")}
    buffers = [key for key, _ in model.named_buffers()]
    imports = "from candidate import ModelNew\n" + ("from problem import get_init_inputs\n" if init else "")
    problem = Problem(
        path=where,
        name=name or record_name("kernelbench", level if _LEVEL.fullmatch(level) else "", path.stem),
        op_type=op_type,
        description=f"Problem {path.stem} in the format of KernelBench.",
        reference=source.content.rstrip() + _adapter(names, state, buffers, "Model", init),
        calls=(Call("given", sizes, values, tensors_of(result, where)),),
        recorded=frozenset(state),
        notes=(_CHANGES,) if state else (),
    )
    main = imports + _adapter(names, state, buffers, "ModelNew", init)
    return ForeignProblem(problem, main, "candidate.py", {"problem": path}, is_destination_passing=False)


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


def _state(model: torch.nn.Module, names: Sequence[str]) -> dict[str, str]:
    """Inputs of the definition for parameters and buffers, with their names in the model.

    Numbers (tensors without dimensions) and integers stay those of the module, which makes them from the same seed.
    """
    found: dict[str, str] = {}
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.dim() and tensor.is_floating_point():
            found[identifier(key, (*names, *found))] = key
    return found


def _forward(model: torch.nn.Module, arguments: Sequence[Any]) -> object:
    """The result of a call: without values, which costs nothing, where that is possible."""
    try:
        empty = copy.deepcopy(model).to("meta")
        return empty(*(value.to("meta") if isinstance(value, torch.Tensor) else value for value in arguments))
    except Exception:  # noqa: BLE001 - the code reads values; what is wrong with it shows in the real call
        return model(*arguments)


def _adapter(names: Sequence[str], state: Mapping[str, str], buffers: Sequence[str], model: str, init: str) -> str:
    """Source of a function ``run`` that calls a module with parameters from outside; a call may update buffers."""
    values = {key: f"{argument}.clone()" if key in buffers else argument for argument, key in state.items()}
    return _RUN.format(
        state="".join(f"        {key!r}: {value},\n" for key, value in values.items()),
        parameters=", ".join([*names, *state]),
        inputs=", ".join(names),
        seed=SEED,
        model=model,
        init=init or "[]",
    )
