"""KernelBench's format: a file with a module `Model` and the functions `get_inputs` and `get_init_inputs`.

Parameters and floating buffers of the model become inputs of the definition, so that a solution cannot know them. The
file makes their values, and those of the inputs, in each run. In robust-kbench a file ``config_forward.json`` beside it
has arguments of `Model`, of which one import takes one set, and of `get_inputs`, each a workload.

Sources: KernelBench (Ouyang et al., 2025), the format of its problems; that of SakanaAI's robust-kbench.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fib_schema.files import read_regular

from ..authoring.inference import MODEL_ENTRY
from ..authoring.sources import read_sources
from .problem import (
    GENERATOR,
    Call,
    ForeignProblem,
    Problem,
    ProblemError,
    attribute,
    explained,
    identifier,
    load_modules,
    on_any_device,
    record_name,
    tensors_of,
)

SEED = 42
"""The seed with which KernelBench makes a model and its inputs."""
_CHANGES = "parameters of the model change between calls; a solution that rearranges them once needs --fixed-parameters"
_LEVEL = re.compile(r"level_?\d+")
_CONFIGURATIONS = "config_forward.json"
_MAX_CONFIGURATIONS = 1 << 20
_RUN = """

import torch as _torch

_MODEL = None


def _model(device, names):
    global _MODEL
    if _MODEL is None:
        with _torch.random.fork_rng(devices=[]):
            _torch.manual_seed({seed})
            _MODEL = Model({init}).to(device)
        own = {{**dict(_MODEL.named_parameters()), **dict(_MODEL.named_buffers())}}
        if unknown := sorted(set(names) - set(own)):
            raise ValueError(
                f"import the problem with --fixed-parameters, or give {{Model.__name__}} the parameters "
                f"{{', '.join(unknown)}}, whose values change between calls"
            )
        if names and (kept := sorted(name for name in own if name not in names and own[name].ndim)):
            print(f"{{Model.__name__}} keeps {{', '.join(kept)}}, while the parameters of the problem change between "
                "calls; what it computes from them once is right with --fixed-parameters only")
    return _MODEL


def run({parameters}):
    _state = {{
{state}    }}
    _inputs = ({inputs},)
    _tensors = [value for value in (*_inputs, *_state.values()) if isinstance(value, _torch.Tensor)]
    _module = _model(_tensors[0].device if _tensors else "cpu", _state)
    return _torch.func.functional_call(_module, _state, _inputs)
"""
_GENERATE = """

def {generator}(_arguments, _device):
    _wanted, _made = set(_arguments["inputs"]), {{}}
    if _wanted.intersection({names!r}):
        _made.update(zip({names!r}, get_inputs(**_arguments.get("case", {{}}))))
    if _wanted.intersection({state!r}):
        _module = Model({init})
        _values = {{**dict(_module.named_parameters()), **dict(_module.named_buffers())}}
        _made.update((_name, _values[_key]) for _name, _key in {state!r}.items())
    return _made
"""


def read_kernelbench(
    path: Path,
    *,
    name: str | None = None,
    op_type: str = "kernelbench",
    fixed_parameters: bool = False,
    configuration: int = 0,
) -> ForeignProblem:
    """Run a problem file and describe it; `ProblemError` if it is not of the format, or no definition describes it.

    A solution is a file with a module `ModelNew`, which must have the parameters of `Model`. `fixed_parameters` are
    those that the seed makes, in every call, as in KernelBench: solutions may rename and rearrange them, and may know
    them. `configuration` is the number of the arguments of `Model` in the file of robust-kbench.
    """
    where = str(path)
    if path.exists() and not (path.is_file() and path.suffix == ".py"):
        raise ProblemError(where, "is not a problem of KernelBench: a .py file with a class Model and get_inputs()")
    (source, *_) = read_sources(path)
    text = on_any_device(source.content)
    found = _configurations(path)
    if configuration >= len(found):
        raise ProblemError(where, f"has {len(found)} configurations, counted from 0; {configuration} is none")
    made_with, cases = found[configuration]
    with explained(where, f"importing {source.path}"):
        module = load_modules({"kernelbench_problem": text}, source.path)
    has_init = not made_with and callable(getattr(module, "get_init_inputs", None))
    with torch.no_grad():
        model = _make(module, where, module.get_init_inputs if has_init else tuple, made_with)
        arguments = [_arguments(module, case, where) for case in cases]
        names = _input_names(model, len(arguments[0]))
        state = {} if fixed_parameters else _state(model, names)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        parameters = {argument: tensors[key].detach().clone() for argument, key in state.items()}
        with explained(where, "Model.forward"):
            results = [tensors_of(_forward(model, values), where) for values in arguments]
    numbers = {key: value for key, value in vars(module).items() if not key.startswith("_")} | made_with
    calls = [
        Call(
            f"given-{index}" if index else "given",
            {key: value for key, value in {**numbers, **case}.items() if type(value) is int},
            dict(zip(names, values, strict=True)) | parameters,
            result,
            {"case": case} if case else {},
        )
        for index, (case, values, result) in enumerate(zip(cases, arguments, results, strict=True))
    ]
    init = "*get_init_inputs()" if has_init else f"**{made_with!r}" if made_with else ""
    buffers = [key for key, _ in model.named_buffers()]
    generate = _GENERATE.format(generator=GENERATOR, names=names, state=state, init=init)
    notes = [f"configuration {configuration} of {len(found)}, {made_with}"] if len(found) > 1 else []
    problem = Problem(
        path=where,
        name=name or _name(path, f"c{configuration}" if len(found) > 1 else ""),
        op_type=op_type,
        description=f"Problem {path.stem} in the format of KernelBench.",
        reference=text.rstrip() + _adapter(names, state, buffers, init) + generate,
        calls=tuple(calls),
        parameters=frozenset(state),
        notes=(*notes, *([_CHANGES] if state else [])),
    )
    main = MODEL_ENTRY.format(module="candidate", model="ModelNew")
    files = {"problem": problem.reference}
    return ForeignProblem(problem, main, "candidate.py", files, is_destination_passing=False)


def _configurations(path: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Arguments of `Model`, and for each all those of `get_inputs`."""
    file = path.parent / _CONFIGURATIONS
    if not file.is_file():
        return [({}, [{}])]
    with explained(str(file), "reading it"):
        raw = json.loads(read_regular(file, _MAX_CONFIGURATIONS))
        kind = "multi" if any(len(raw[key]) > 1 for key in raw if key.startswith("multi_")) else "single"
        inputs, inits, shared = (raw[f"{kind}_{part}_configs"] for part in ("input", "init", "shared"))
        return [({**init, **both}, [{**case, **both} for case in inputs]) for init in inits for both in shared]


def _name(path: Path, configuration: str) -> str:
    place = path.resolve()
    place = place.parent if (place.parent / _CONFIGURATIONS).is_file() else place
    level = place.parent.name if _LEVEL.fullmatch(place.parent.name) else ""
    return record_name("kernelbench", level, place.stem, configuration)


def _make(
    module: types.ModuleType, path: str, get_init_inputs: Callable[[], Sequence[Any]], given: Mapping[str, Any]
) -> torch.nn.Module:
    with explained(path, "making the model"):
        torch.manual_seed(SEED)
        model = attribute(module, "Model", path)(*get_init_inputs(), **given)
    if not isinstance(model, torch.nn.Module):
        raise ProblemError(path, "'Model' is not a subclass of torch.nn.Module")
    return model


def _arguments(module: types.ModuleType, case: Mapping[str, Any], path: str) -> list[Any]:
    with explained(path, "get_inputs"):
        torch.manual_seed(SEED)
        arguments = list(attribute(module, "get_inputs", path)(**case))
    wrong = [type(value).__name__ for value in arguments if not isinstance(value, torch.Tensor | int | float)]
    if wrong or not arguments:
        kinds = ", ".join(wrong) or "nothing"
        raise ProblemError(path, f"get_inputs returned {kinds}; only tensors and numbers can be inputs")
    return [value.detach() if isinstance(value, torch.Tensor) else value for value in arguments]


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


def _adapter(names: Sequence[str], state: Mapping[str, str], buffers: Sequence[str], init: str) -> str:
    """Source of a function ``run`` that calls `Model` with parameters from outside; a call may update buffers."""
    values = {key: f"{argument}.clone()" if key in buffers else argument for argument, key in state.items()}
    return _RUN.format(
        state="".join(f"        {key!r}: {value},\n" for key, value in values.items()),
        parameters=", ".join([*names, *state]),
        inputs=", ".join(names),
        seed=SEED,
        init=init,
    )
