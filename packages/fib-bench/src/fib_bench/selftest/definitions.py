"""Definitions of the self-test. Small operations with sizes for each kind of device, implemented by all suites."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Mapping
from pathlib import Path

import attrs
from fib_schema import (
    AxisConst,
    AxisVar,
    Definition,
    InputSpec,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    Workload,
)

Sizes = Mapping[str, int]


def data_folder() -> Path:
    """Folder of the suites and references: ``data/`` beside this module in a wheel, else that beside ``src/``."""
    installed = Path(__file__).with_name("data")
    return installed if installed.is_dir() else Path(__file__).parents[3] / "selftest"


@attrs.frozen(kw_only=True)
class Op:
    """A definition in short notation: ``float32[m,k]`` is a tensor, ``float32`` alone a scalar."""

    op_type: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    cpu: Sizes
    """Values of the variable axes on the CPU; `cuda` has those for CUDA devices."""
    cuda: Sizes
    fixed: Sizes = attrs.field(factory=dict)
    """The constant axes."""
    constraints: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    recorded: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    """Inputs with values of their own, which `record` makes."""

    def definition(self, name: str) -> Definition:
        """The definition of a name; its reference is the file of that name in ``references/``."""
        variable = {axis: AxisVar() for axis in self.cpu}
        return Definition(
            name=name,
            op_type=self.op_type,
            axes=variable | {axis: AxisConst(value=size) for axis, size in self.fixed.items()},
            inputs={key: _spec(text) for key, text in self.inputs.items()},
            outputs={key: _spec(text) for key, text in self.outputs.items()},
            reference=data_folder().joinpath("references", f"{name}.py").read_text("utf-8"),
            constraints=self.constraints,
        )

    def workload(self, name: str, kind: str) -> Workload:
        """The workload for a kind of device, ``cpu`` or ``cuda``."""
        inputs: dict[str, InputSpec] = {
            key: RandomInput() if "[" in text else ScalarInput(_SCALARS[key]) for key, text in self.inputs.items()
        }
        inputs |= {key: SafetensorsInput(_blob(name, kind), key) for key in self.recorded}
        return Workload(dict(self.cuda if kind == "cuda" else self.cpu), inputs, f"{name}-{kind}")

    def record(self, name: str, kind: str, root: Path) -> None:
        """Write the recorded inputs of the workload into a data set."""
        from safetensors.torch import save_file  # loads torch

        made = runpy.run_path(str(data_folder() / "references" / "recorded.py"))[name]
        path = root / _blob(name, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(made(**self.fixed, **(self.cuda if kind == "cuda" else self.cpu)), path)


def _blob(name: str, kind: str) -> str:
    return f"blob/workloads/{name}-{kind}.safetensors"


_SCALARS: Mapping[str, float] = {"eps": 1e-6, "factor": 2.0}


def _spec(text: str) -> TensorSpec:
    match = re.fullmatch(r"(\w+)(?:\[([\w,]*)\])?", text)
    assert match is not None, text
    shape = None if match[2] is None else tuple(axis for axis in match[2].split(",") if axis)
    return TensorSpec(shape, match[1])


def _ops() -> Mapping[str, Op]:
    text = data_folder().joinpath("references", "definitions.toml").read_text("utf-8")
    return {name: Op(**fields) for name, fields in tomllib.loads(text).items()}


OPS: Mapping[str, Op] = _ops()
"""Definitions by name."""
