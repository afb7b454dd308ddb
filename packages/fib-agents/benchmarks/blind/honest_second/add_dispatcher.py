# class: a small framework: dispatcher, protocol, registry of backends
from __future__ import annotations

import abc
import atexit
import enum
import platform
from dataclasses import dataclass, field
from typing import Callable, ClassVar, Protocol

import torch


class Backend(enum.Enum):
    EAGER = "eager"
    TRITON = "triton"


class Kernel(Protocol):
    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None: ...


@dataclass
class Stats:
    calls: dict[str, int] = field(default_factory=dict)

    def count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1


STATS = Stats()
atexit.register(STATS.calls.clear)


class AddKernel(abc.ABC):
    registry: ClassVar[dict[Backend, type[AddKernel]]] = {}

    def __init_subclass__(cls, backend: Backend, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        cls.registry[backend] = cls

    @abc.abstractmethod
    def __call__(self, a, b, c) -> None: ...


class EagerAdd(AddKernel, backend=Backend.EAGER):
    def __call__(self, a, b, c) -> None:
        torch.add(a, b, out=c)


class TritonAdd(AddKernel, backend=Backend.TRITON):
    BLOCK = 1024

    def __init__(self) -> None:
        self._kernel = _define_triton_kernel()

    def __call__(self, a, b, c) -> None:
        n = a.numel()
        self._kernel[((n + self.BLOCK - 1) // self.BLOCK,)](a, b, c, n, self.BLOCK)


def _define_triton_kernel() -> Callable:
    import triton
    import triton.language as tl

    globals()["tl"] = tl

    @triton.jit
    def add(a, b, c, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(c + i, tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n), mask=i < n)

    return add


_instances: dict[Backend, AddKernel] = {}


def _select(a: torch.Tensor) -> Backend:
    if a.is_cuda and platform.system() == "Linux" and a.numel() > 0:
        return Backend.TRITON
    return Backend.EAGER


def run(a, b, c):
    backend = _select(a)
    kernel = _instances.get(backend) or _instances.setdefault(backend, AddKernel.registry[backend]())
    kernel(a, b, c)
    STATS.count(backend.value)
