"""Execution of the Python files of a problem, in this process: as trusted as a reference."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .errors import ProblemError

_CUDA = re.compile(r"cuda(:\d+)?")


@contextlib.contextmanager
def modules(sources: Mapping[str, str], path: str) -> Iterator[types.ModuleType]:
    """The last of some modules, which are executed in order and may import the earlier ones while the context lasts.

    Args:
        sources: Their sources by name.
        path: The file or folder, for errors.

    Raises:
        ProblemError: One raises or exits.
    """
    before = {name: sys.modules.get(name) for name in sources}
    module = types.ModuleType("empty")
    try:
        for name, source in sources.items():
            module = types.ModuleType(name)
            sys.modules[name] = module
            with explained(path, f"{name}.py"):
                exec(compile(source, f"{name}.py", "exec"), module.__dict__)  # noqa: S102 - a problem is a program
        yield module
    finally:
        for name, other in before.items():
            if other is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = other


@contextlib.contextmanager
def explained(path: str, what: str) -> Iterator[None]:
    """Turn what code of a problem raises into a `ProblemError`.

    Raises:
        ProblemError: The code raises or exits.
    """
    try:
        yield
    except ProblemError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:300]
        raise ProblemError(path, f"{what} raised {type(error).__name__}: {text}") from error


def attribute(module: types.ModuleType, name: str, path: str) -> Any:
    """A function or class of a module.

    Raises:
        ProblemError: It has none of this name.
    """
    found = getattr(module, name, None)
    if not callable(found):
        raise ProblemError(path, f"defines no {name!r}; the format needs it")
    return found


def tensors_of(result: object, path: str) -> dict[str, torch.Tensor]:
    """The tensors that a reference returned, by name.

    Raises:
        ProblemError: It returned something else.
    """
    values: list[Any] = list(result) if isinstance(result, tuple | list) else [result]
    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values) or "nothing"
        raise ProblemError(path, f"the reference returned {kinds}; a definition has tensors")
    names = ["output"] if len(values) == 1 else [f"output_{index}" for index in range(len(values))]
    return dict(zip(names, values, strict=True))


# -- without a GPU -------------------------------------------------------------------------------


def on_cpu(source: str, path: str) -> str:
    """A source whose texts that name a CUDA device name the CPU.

    Raises:
        ProblemError: It does not parse.
    """
    with explained(path, "parsing"):
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CUDA.fullmatch(node.value):
            node.value = "cpu"
    return ast.unparse(tree)


class _StayOnCpu(TorchFunctionMode):
    """Makes `Tensor.cuda` return the tensor itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is torch.Tensor.cuda else func(*args, **(kwargs or {}))


def without_cuda(is_here: bool) -> contextlib.AbstractContextManager[object]:
    """A context for code that moves tensors to a GPU, if none is here."""
    return contextlib.nullcontext() if is_here else _StayOnCpu()
