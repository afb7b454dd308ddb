"""Definitions of the self-test. Small operations with sizes for each kind of device, implemented by all suites."""

from __future__ import annotations

import runpy
import tomllib
from collections.abc import Mapping
from pathlib import Path

import attrs
from fib_schema import Definition, InputSpec, RandomInput, SafetensorsInput, ScalarInput, Workload

from ..authoring.definitions import definition_from_reference

Sizes = Mapping[str, int]


def data_folder() -> Path:
    """Folder of the suites and references: ``data/`` beside this module in a wheel, else that beside ``src/``."""
    installed = Path(__file__).with_name("data")
    return installed if installed.is_dir() else Path(__file__).parents[3] / "selftest"


@attrs.frozen(kw_only=True)
class Op:
    """A definition; its reference states the types of inputs and outputs."""

    op_type: str
    cpu: Sizes
    """Values of the variable axes on the CPU; `cuda` has those for CUDA devices."""
    cuda: Sizes
    constraints: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    recorded: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    """Inputs with values of their own, which `record` makes."""

    def definition(self, name: str) -> Definition:
        """The definition of a name; its reference is the file of that name in ``references/``."""
        made = definition_from_reference(name, data_folder() / "references" / f"{name}.py", op_type=self.op_type)
        return attrs.evolve(made, constraints=self.constraints)

    def workload(self, name: str, kind: str) -> Workload:
        """The workload for a kind of device, ``cpu`` or ``cuda``."""
        inputs: dict[str, InputSpec] = {
            key: RandomInput() if spec.shape is not None else ScalarInput(_SCALARS[key])
            for key, spec in self.definition(name).inputs.items()
        }
        inputs |= {key: SafetensorsInput(_blob(name, kind), key) for key in self.recorded}
        return Workload(dict(self.cuda if kind == "cuda" else self.cpu), inputs, f"{name}-{kind}")

    def record(self, name: str, kind: str, root: Path) -> None:
        """Write the recorded inputs of the workload into a data set."""
        from safetensors.torch import save_file  # loads torch

        made = runpy.run_path(str(data_folder() / "references" / "recorded.py"))[name]
        path = root / _blob(name, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        sizes = self.cuda if kind == "cuda" else self.cpu
        save_file(made(**self.definition(name).const_axes, **sizes), path)


def _blob(name: str, kind: str) -> str:
    return f"blob/workloads/{name}-{kind}.safetensors"


_SCALARS: Mapping[str, float] = {"eps": 1e-6, "factor": 2.0}


OPS: Mapping[str, Op] = {
    name: Op(**fields)
    for name, fields in tomllib.loads((data_folder() / "references" / "definitions.toml").read_text("utf-8")).items()
}
