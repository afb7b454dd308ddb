"""Cost of an opaque operator: what it adds to a compiled graph, as ``fib-apply warm`` has measured it, or assumed.

An opaque operator costs host time, because torch dispatches it in Python and its solution is launched from Python, and
device time, because the compiler cannot fuse it. A graph that is captured pays the device time alone. Measurements are
kept below ``FIB_CACHE_PATH``, by the model of the host's CPU, the hardware and the versions of the libraries. Ranks of
a server on unlike hosts may choose differently; with replicas, all calls are opaque operators anyway.
"""

from __future__ import annotations

import json
import math
import platform
from hashlib import blake2b
from pathlib import Path
from typing import Any

import attrs
from fib_compile.device import hardware_from_device, library_versions
from fib_schema import get_fib_cache_path
from fib_schema.files import explain_os_error
from fib_schema.framing import framed

from .cache_files import publish, read_published
from .log import logger

_FORMAT = 1
_REST_OF_LAYER = 1.4
"""Host time of a graph's other code for each operator, in costs of an operator. A transformer block of 1 and 16 rows
had 485 and 442 us of it on an H100's host, where an operator added 361 us."""
_MAX_US = 1e9


def _is_time(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    del instance
    if value is not None and not (math.isfinite(value) and 0 <= value < _MAX_US):
        raise ValueError(f"{attribute.name}: got {value!r:.200}, expected microseconds")


@attrs.frozen
class OpaqueCost:
    """Cost of one opaque operator on one machine.

    Raises:
        ValueError: A time is negative or not a number.
    """

    calls_us: float = attrs.field(validator=_is_time)
    """Microseconds added to consecutive calls of a graph that waits for the host."""
    replays_us: float | None = attrs.field(validator=_is_time)
    """Microseconds added to replays of a CUDA graph; None on the CPU, which captures nothing."""
    source: str
    is_measured: bool = False

    @classmethod
    def assumed(cls, hardware: str) -> OpaqueCost:
        """The cautious cost on hardware on which it was not measured."""
        if hardware == hardware_from_device("cpu"):
            return cls(10.0, None, "assumed, 8 us were measured on a CPU")
        # 361 us: batch 1 in benchmarks/measured/block-1-16-512-h100.md. The same block, captured, is not slower with an
        # operator that saves 103 us by its traces.
        return cls(360.0, 100.0, "assumed from measurements on an H100's host; fib-apply warm measures it")

    def least_saving_us(self, *, is_captured: bool, added_us: float | None = None) -> float:
        """The device time that an opaque operator must save to make no graph slower.

        A graph takes the host's or the device's time, whichever is longer. An operator that adds `c` to the host's
        makes a graph with `h` of other host time slower if the device's was less than `h + c`. So a saving of more than
        `h + c` is safe. As `h` is not known when a call is traced, it is taken to be `_REST_OF_LAYER` times `c`.

        Args:
            is_captured: Whether graphs are captured, so that host time does not count.
            added_us: Host time that was measured for the operator in question; None means that of any operator.
        """
        if self.replays_us is None:  # the CPU does both
            return self.calls_us if added_us is None else added_us
        if is_captured:
            return self.replays_us
        return (self.calls_us if added_us is None else added_us) + _REST_OF_LAYER * self.calls_us

    def __str__(self) -> str:
        captured = "" if self.replays_us is None else f", {self.replays_us:.0f} us in a CUDA graph"
        return f"an opaque operator adds {self.calls_us:.0f} us{captured} ({self.source})"


def load_opaque_cost(hardware: str, root: Path | None = None) -> OpaqueCost:
    """The cost that was measured on this host; the assumed one if there is none, or its file is damaged.

    Args:
        hardware: Of the graphs.
        root: The cache folder; None means ``FIB_CACHE_PATH``.
    """
    try:
        content = json.loads(read_published(root or get_fib_cache_path(), _name(hardware)))
        match content:
            case {"format": int(version), "calls_us": calls, "replays_us": replays} if version == _FORMAT:
                replays = None if replays is None else float(replays)
                return OpaqueCost(float(calls), replays, f"measured on {host_model()}", is_measured=True)
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return OpaqueCost.assumed(hardware)


def save_opaque_cost(hardware: str, calls_us: float, replays_us: float | None, root: Path | None = None) -> OpaqueCost:
    """Keep a measured cost, and return it; a folder that cannot be written is logged.

    Raises:
        ValueError: A time is negative or not a number.
    """
    cost = OpaqueCost(calls_us, replays_us, f"measured on {host_model()}", is_measured=True)
    readable = {"host": host_model(), "hardware": hardware}
    content = {"format": _FORMAT, **readable, "calls_us": calls_us, "replays_us": replays_us}
    try:
        publish(root or get_fib_cache_path(), _name(hardware), json.dumps(content).encode())
    except OSError as error:
        logger.warning("the cost of an opaque operator cannot be kept: %s", explain_os_error(error))
    return cost


def host_model() -> str:
    """The model of the host's CPU. Containers have a new host name at each start, so that it identifies nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, models), platform.machine())


def _name(hardware: str) -> str:
    versions = framed(part for item in sorted(library_versions().items()) for part in item)
    digest = blake2b(framed((host_model(), hardware, versions, str(_FORMAT))), digest_size=20).hexdigest()
    return f"opaque/{digest}.json"
