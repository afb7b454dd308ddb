"""Inputs that the generator of a definition makes, in a worker of its own; see `inputs.problem_generator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import attrs
import torch
from fib_schema import Definition, DType, Workload

from ..errors import InputError
from ..inputs.problem_generator import ProblemGenerator
from ..secure_random import SECRET
from ..transport.slots import layout_of
from ..worker.client import WorkerLost
from .device import DeviceContext
from .functions import BoundFunction, Rejected
from .timer import GENERATOR, Baselines

_MAX_REDRAWN_BYTES = 1 << 26
"""Inputs of more bytes are the same in all timed calls: passes of three functions keep a set for each burst."""
NOT_REDRAWN = f"a generator makes it, and only up to {_MAX_REDRAWN_BYTES >> 20} MiB are made anew for timed calls"


@attrs.frozen(eq=False)
class ProblemInputs:
    """The inputs of one workload that a generator makes."""

    definition: Definition
    workload: Workload
    generator: ProblemGenerator
    baselines: Baselines
    context: DeviceContext

    @property
    def names(self) -> list[str]:
        """All inputs that it makes."""
        return self.generator.names(self.workload)

    def redrawn_names(self, values: Mapping[str, torch.Tensor]) -> list[str]:
        """The inputs of which timed calls get new values from the generator."""
        names = [name for name in values if name not in self.generator.parameters]
        return names if sum(values[name].nbytes for name in names) <= _MAX_REDRAWN_BYTES else []

    def first(self, seed: int) -> Mapping[str, torch.Tensor]:
        """The inputs of the first set, after a check that a seed determines them in another process, too."""
        values = self.make(self.names, seed)
        other = self.make(self.names, seed, is_in_new_process=True)
        for name, value in values.items():
            if not torch.equal(value.view(-1).view(torch.uint8), other[name].view(-1).view(torch.uint8)):
                problem = f"makes other values of {name!r} in another process from the same seed, {seed}"
                self._refuse(f"{problem}; draw from torch, random or numpy.random, or use arguments['seed']")
        return values

    def make(self, names: Sequence[str], seed: int, *, is_in_new_process: bool = False) -> Mapping[str, torch.Tensor]:
        """Some of the inputs by name.

        Raises:
            InputError: The generator raised, took too long, or made others than the definition says.
        """
        if not names:
            return {}
        made, workload, request = self.generator.call(self.definition, self.workload, names, seed)
        request = {name: value.to(self.context.device) for name, value in request.items()}
        layout = layout_of(made, workload.axes, request)
        try:
            worker = self.baselines.worker(f"{GENERATOR} of {', '.join(names)}", made)
            if is_in_new_process:
                worker.build()
            with BoundFunction(worker.worker, layout, 1, self.context) as function:
                memory = torch.zeros(layout.input_bytes, dtype=torch.uint8, device=self.context.device)
                layout.pack(request, memory)
                found = layout.output_tensors(function.call(memory))
        except (Rejected, WorkerLost) as error:
            self._refuse(f"failed: {error}")
        for name, value in found.items():
            is_number = value.is_floating_point() and self.definition.inputs[name].dtype != DType.FLOAT4_E2M1
            if is_number and bool(value.float().isnan().any()):
                self._refuse(f"made NaN in {name!r} from seed {seed}")
        return found

    def redraw(self, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
        """New values, from a secret seed."""
        return self.make(names, SECRET.getrandbits(31))

    def _refuse(self, problem: str) -> NoReturn:
        text = f"the generator {self.generator.function!r} {problem}"
        raise InputError(self.definition.name, self.workload.uuid, "", text)
