"""Times in compiled graphs: a routed call against the compiler's own code, measured by ``fib-apply warm``.

A compiler can fuse a definition's reference, or the baseline, with the operations around it, but not a solution. So
both are timed in the same small graph: an addition, the call, a multiplication. A child process measures, because
solutions may crash or hang; results are kept below ``FIB_CACHE_PATH``, by the definition, the solution, the baseline,
the key, the hardware, the model of the host's CPU and the versions of the libraries, so that no other measurement is
ever found. `InliningPolicy` reads them while it chooses what a graph holds; where there are none, the times of traces
decide. Each rank of a server must find the same files: run ``warm`` before the engine starts.
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
from .config import ApplyConfig
from .key import ApplyKey
from .log import logger
from .opaque_cost import OpaqueCost, host_model, load_opaque_cost
from .selection.table import ApplyTable

CALLS, HOST, REPLAYS = "calls", "host", "replays"
"""Ways of measuring: consecutive calls of a compiled function with the wait for their results, the same without the
wait, and replays of a CUDA graph of such calls."""
_FORMAT = 2


def _are_times(instance: object, attribute: attrs.Attribute[Any], value: Mapping[str, tuple[float, float]]) -> None:
    del instance
    if (
        not value
        or not value.keys() <= {CALLS, HOST, REPLAYS}
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

    def is_worth_it(self, cost: OpaqueCost, *, is_captured: bool) -> bool:
        """Whether graphs are faster with the solution.

        Both consecutive calls and replays must be faster. An opaque operator must also save enough device time for the
        host time that it adds, because a larger graph may wait for the host where this one does not.

        Args:
            cost: Of an opaque operator on this machine.
            is_captured: Whether graphs are captured: then only replays count.
        """
        pairs = self.pairs_us
        if is_captured and REPLAYS in pairs:
            return pairs[REPLAYS][0] < pairs[REPLAYS][1]
        if not all(routed < compiled for way, (routed, compiled) in pairs.items() if way != HOST):
            return False
        if self.is_inlined or not pairs.keys() >= {HOST, REPLAYS}:
            return True
        added_us, saved_us = pairs[HOST][0] - pairs[HOST][1], pairs[REPLAYS][1] - pairs[REPLAYS][0]
        return added_us <= 0 or saved_us > cost.least_saving_us(is_captured=False, added_us=added_us)

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

    def load(
        self, definition: Definition, solution: Solution, key: ApplyKey, hardware: str, baseline: Solution | None = None
    ) -> CompiledTimes | None:
        """The measured times; None if there are none, or the file is damaged or not ours to trust.

        Args:
            definition: Of the call.
            solution: That serves it.
            key: Of the call.
            hardware: On which it was measured.
            baseline: The solution that was compiled in comparison; None means the reference.
        """
        try:
            content = json.loads(read_published(self.root, self._name(definition, solution, key, hardware, baseline)))
            match content:
                case {"format": int(version), "is_inlined": bool(is_inlined), "pairs_us": dict(pairs)}:
                    times = {str(way): (float(routed), float(compiled)) for way, (routed, compiled) in pairs.items()}
                    return CompiledTimes(solution.name, is_inlined, times) if version == _FORMAT else None
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        return None

    def save(
        self,
        definition: Definition,
        solution: Solution,
        key: ApplyKey,
        hardware: str,
        times: CompiledTimes,
        baseline: Solution | None = None,
    ) -> None:
        """Keep times, for `load` with the same arguments; a folder that cannot be written is logged."""
        readable = {"definition": definition.name, "solution": solution.name, "key": f"{key}", "hardware": hardware}
        content = {"format": _FORMAT, **readable, "is_inlined": times.is_inlined, "pairs_us": dict(times.pairs_us)}
        try:
            publish(self.root, self._name(definition, solution, key, hardware, baseline), json.dumps(content).encode())
        except OSError as error:
            problem = explain_os_error(error)
            logger.warning("times of %s in compiled graphs cannot be kept: %s", solution.name, problem)

    def _name(
        self, definition: Definition, solution: Solution, key: ApplyKey, hardware: str, baseline: Solution | None
    ) -> str:
        compared = "" if baseline is None else baseline.hash()
        subject = (format_json(definition), solution.hash(), key.encode, hardware, host_model(), compared)
        parts = framed((*subject, self.versions, str(_FORMAT)))
        return f"compiled/{blake2b(parts, digest_size=20).hexdigest()}.json"


def explanation_lines(
    table: ApplyTable, definition: Definition, hardware: str, keys: Iterable[ApplyKey], config: ApplyConfig
) -> Iterator[str]:
    """The cost of an opaque operator if it was measured; for each key that was measured, the times and the decision."""
    cost = load_opaque_cost(hardware)
    if cost.is_measured:
        yield f"{cost}"
    rankings = table.for_hardware(hardware).rankings(definition.name)
    cache = CompiledTimesCache.in_folder()
    baseline = table.baseline(definition.name)
    for key in keys:
        ranking = None if rankings is None else rankings.by_key.get(key)
        if ranking is None or ranking.plain is None:
            continue
        try:
            solution = table.solution(ranking.plain.solution)
        except FibError:
            continue  # changed or removed, so it is not called
        times = cache.load(definition, solution, key, hardware, baseline)
        if times is not None:
            decision = (
                "the graph holds it"
                if times.is_worth_it(cost, is_captured=config.captures_compiled)
                else "the function is compiled"
            )
            yield f"{key}: {decision}: {times}"
