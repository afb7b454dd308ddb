"""Files of chosen configurations: the table of a search, a data set for fib-apply, and those that vLLM loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
from fib_schema import Definition, InvalidField, TraceSet, to_plain
from fib_schema.files import read_regular, write_output
from fib_schema.trace_facts import is_quick

from .search import Choice, Cost, Key, Search, key_of, loss_of
from .space import Scalar

_MAX_FILE_BYTES = 16 << 20
_VLLM_NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
_VLLM_AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"E": ("num_local_experts", "num_experts", "E"), "N": ("intermediate_size", "N")}
)


@attrs.frozen
class Tuned:
    """A finished search."""

    search: Search
    choices: Sequence[Choice]
    command: str

    def to_plain(self) -> dict[str, Any]:
        """The table as JSON values."""
        return {
            "version": 1,
            "definition": self.search.definition.name,
            "environment": to_plain(self.search.environment),
            "command": self.command,
            "keys": [self._plain_choice(choice) for choice in self.choices],
            "verified": [
                {"axes": dict(key), "solution": self.search.verified[key], "loss": loss}
                for key, loss in self.losses().items()
            ],
        }

    def _plain_choice(self, choice: Choice) -> dict[str, Any]:
        other = choice.runner_up
        return {
            "axes": dict(choice.key),
            "calls": choice.calls,
            "parameters": dict(self.search.parameters[choice.chosen]),
            "solution": choice.chosen,
            **_plain_cost(choice.cost),
            "equals": list(choice.equals),
            "runner_up": None
            if other is None
            else {"solution": other, "parameters": dict(self.search.parameters[other])},
            "runner_up_ratio": choice.gain,
        }

    def losses(self) -> dict[Key, tuple[float, float, float] | None]:
        """The loss of the verified configuration of each key against the fastest one, between its bounds."""
        costs = self.search.costs()
        return {key: loss_of(costs[key], name) for key, name in self.search.verified.items()}


def _plain_cost(cost: Cost) -> dict[str, Any]:
    return {"latency_ms": cost.ms, "interval_ms": [cost.low_ms, cost.high_ms], "kind": cost.kind}


def write_chosen(root: Path, tuned: Tuned) -> None:
    """Write a data set in which each key has traces of its chosen solution alone, in place of an earlier one."""
    definition, results = tuned.search.definition, tuned.search.results
    chosen = {choice.key: choice.chosen for choice in tuned.choices}
    recorded = [t for t in results.counting_traces(definition.name) if not is_quick(t.evaluation)]
    traces = [trace for trace in recorded if chosen.get(key_of(trace.workload)) == trace.solution]
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    written = TraceSet.from_path(root)
    written.add_definitions([definition])
    written.add_solutions(each for each in results.solutions[definition.name] if each.name in chosen.values())
    written.add_traces([attrs.evolve(trace, solution=None, evaluation=None) for trace in traces])
    written.add_traces(traces)


def write_vllm_moe(folder: Path, tuned: Tuned) -> Path:
    """Write what vLLM loads from ``VLLM_TUNED_CONFIG_FOLDER`` for fused experts; the file has the name that it expects.

    Source: ``get_config_file_name`` of vllm/model_executor/layers/fused_moe in vLLM 0.26.
    """
    sizes = {letter: _size(tuned.search.definition, letter, axes) for letter, axes in _VLLM_AXES.items()}
    device = tuned.search.environment.hardware.replace(" ", "_")
    is_fp8 = any("float8" in str(spec.dtype) for spec in tuned.search.definition.inputs.values())
    quantized = ",dtype=fp8_w8a8,block_shape=[128,128]" if is_fp8 else ""
    name = f"E={sizes['E']},N={sizes['N']},device_name={device}{quantized}.json"
    configs: dict[str, Mapping[str, Scalar]] = {}
    for choice in tuned.choices:
        parameters = tuned.search.parameters[choice.chosen]
        if len(choice.key) != 1 or (missing := [name for name in _VLLM_NAMES if name not in parameters]):
            text = f"needs one variable axis and the parameters {', '.join(_VLLM_NAMES)}"
            raise InvalidField("--export vllm-moe", text + (f"; {', '.join(missing)} missing" if missing else ""))
        configs[str(choice.key[0][1])] = {name: parameters[name] for name in _VLLM_NAMES}
    write_json(folder / name, configs)
    return folder / name


def _size(definition: Definition, letter: str, axes: Iterable[str]) -> int:
    for axis in axes:
        if axis in definition.const_axes:
            return definition.const_axes[axis]
    raise InvalidField("--export vllm-moe", f"{definition.name} has no constant axis {' or '.join(axes)} for {letter}")


def write_json(path: Path, value: object) -> None:
    """Write a JSON file."""
    write_output(path, json.dumps(value, indent=2).encode() + b"\n")


def read_configurations(path: Path, keys: Iterable[Key]) -> dict[Key, Mapping[str, Scalar]]:
    """The configuration that a table or a file of vLLM states for each key; vLLM takes that of the nearest size."""
    try:
        content = json.loads(read_regular(path, _MAX_FILE_BYTES))
        if "keys" in content:
            stated = {tuple(sorted(each["axes"].items())): each["parameters"] for each in content["keys"]}
            return {key: stated[key] for key in keys if key in stated}
        sizes = {int(size): parameters for size, parameters in content.items() if size.isdecimal()}
        return {((axis, wanted),): sizes[min(sizes, key=lambda size: abs(size - wanted))] for ((axis, wanted),) in keys}
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InvalidField(str(path), f"neither a table of fib-bench tune nor a file of vLLM: {error}") from error
