"""Times in compiled graphs: a routed call against the compiler's own code, measured by ``fib-apply warm``.

A compiler can fuse a definition's reference with the operations around it, but not a solution. So both are timed in
the same small graph: an addition, the call, a multiplication. A child process measures, because solutions may crash or
hang; results are kept below ``FIB_CACHE_PATH``, by the definition, the solution, the key, the hardware and the
versions of the libraries, so that no other measurement is ever found. `InliningPolicy` reads them while it chooses what
a graph holds; where there are none, the times of traces decide. Each rank of a server must find the same files: run
``warm`` before the engine starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import attrs
from fib_compile.device import library_versions
from fib_schema import Definition, FibError, Solution, format_json, get_fib_cache_path
from fib_schema.files import explain_os_error
from fib_schema.framing import framed

from .cache_files import publish, read_published
from .key import ApplyKey
from .log import logger
from .selection.table import ApplyTable

CALLS, REPLAYS = "calls", "replays"
"""Ways of measuring: consecutive calls of a compiled function, and replays of a CUDA graph of such calls."""
_FORMAT = 1
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


def _are_times(instance: object, attribute: attrs.Attribute[Any], value: Mapping[str, tuple[float, float]]) -> None:
    del instance
    if (
        not value
        or not value.keys() <= {CALLS, REPLAYS}
        or not all(0 < us < 1e12 for pair in value.values() for us in pair)
    ):
        raise ValueError(f"{attribute.name}: got {value!r:.200}, expected positive times")


@attrs.frozen
class CompiledTimes:
    """Times of a call in a compiled graph.

    Raises:
        ValueError: A time is not a positive number, or there is none.
    """

    solution: str
    is_inlined: bool
    """Whether the graph launched the solution's kernels; else it held an opaque operator."""
    pairs_us: Mapping[str, tuple[float, float]] = attrs.field(validator=_are_times)
    """By way of measuring: medians with the solution and without, in microseconds."""

    @property
    def is_worth_it(self) -> bool:
        """Whether the graph was faster with the solution, in all ways that were measured."""
        return all(routed < compiled for routed, compiled in self.pairs_us.values())

    def __str__(self) -> str:
        shown = ", ".join(f"{r:.1f} against {c:.1f} us ({way})" for way, (r, c) in sorted(self.pairs_us.items()))
        how = "inlined" if self.is_inlined else "as an opaque operator"
        return f"{self.solution} {how} was measured against compiled code: {shown}"


@attrs.frozen
class CompiledTimesCache:
    """Measured times on disk."""

    root: Path
    versions: bytes

    @classmethod
    def in_folder(cls, root: Path | None = None) -> CompiledTimesCache:
        """The cache in a folder; None means ``FIB_CACHE_PATH``."""
        versions = framed(part for item in sorted(library_versions().items()) for part in item)
        return cls(root or get_fib_cache_path(), versions)

    def load(self, definition: Definition, solution: Solution, key: ApplyKey, hardware: str) -> CompiledTimes | None:
        """The measured times; None if there are none, or the file is damaged or not ours to trust."""
        try:
            content = json.loads(read_published(self.root, self._name(definition, solution, key, hardware)))
            match content:
                case {"format": int(version), "is_inlined": bool(is_inlined), "pairs_us": dict(pairs)}:
                    times = {str(way): (float(routed), float(compiled)) for way, (routed, compiled) in pairs.items()}
                    return CompiledTimes(solution.name, is_inlined, times) if version == _FORMAT else None
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        return None

    def save(
        self, definition: Definition, solution: Solution, key: ApplyKey, hardware: str, times: CompiledTimes
    ) -> None:
        """Keep times; a folder that cannot be written is logged."""
        readable = {"definition": definition.name, "solution": solution.name, "key": f"{key}", "hardware": hardware}
        content = {"format": _FORMAT, **readable, "is_inlined": times.is_inlined, "pairs_us": dict(times.pairs_us)}
        try:
            publish(self.root, self._name(definition, solution, key, hardware), json.dumps(content).encode())
        except OSError as error:
            problem = explain_os_error(error)
            logger.warning("times of %s in compiled graphs cannot be kept: %s", solution.name, problem)

    def _name(self, definition: Definition, solution: Solution, key: ApplyKey, hardware: str) -> str:
        subject = (format_json(definition), solution.hash(), key.encode, hardware)
        parts = framed((*subject, self.versions, str(_FORMAT)))
        return f"compiled/{blake2b(parts, digest_size=20).hexdigest()}.json"


def unmeasurable_reason(definition: Definition, key: ApplyKey) -> str | None:
    """Reason why calls of a key cannot be made up: kernels read what integers say. None if they can."""
    specs = {**definition.inputs, **definition.outputs}
    for name, spec in specs.items():
        if spec.dtype not in _FLOATS and not spec.optional:
            return f"{name} is {spec.dtype}, and only values of floats are made up"
    if key.feats or dict(key.axes).keys() != set(definition.var_axes):
        return "its key has more or fewer parts than the variable axes"
    return None


def explanation_lines(
    table: ApplyTable, definition: Definition, hardware: str, keys: Iterable[ApplyKey]
) -> Iterator[str]:
    """For each key that was measured, the times and the decision."""
    rankings = table.for_hardware(hardware).rankings(definition.name)
    cache = CompiledTimesCache.in_folder()
    for key in keys:
        ranking = None if rankings is None else rankings.by_key.get(key)
        if ranking is None or ranking.plain is None:
            continue
        try:
            solution = table.solution(ranking.plain.solution)
        except FibError:
            continue  # changed or removed, so it is not called
        times = cache.load(definition, solution, key, hardware)
        if times is not None:
            decision = "the graph holds it" if times.is_worth_it else "the function is compiled"
            yield f"{key}: {decision}: {times}"
