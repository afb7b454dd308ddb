"""Messages of a worker: the requests of the judge and the replies.

Values reported by a worker are untrusted; verdicts use only output buffers and the judge's clock.
"""

from __future__ import annotations

import signal
from typing import TypeAlias

import msgspec

from ..recipe import Recipe
from ..sandbox.model import Isolation

COMPILE_SECONDS_VARIABLE = "FIB_BENCH_COMPILE_SECONDS"
"""Seconds after which a configuration of an autotuned kernel is left out; 30 unless it is set."""
PAUSE, GO_ON = signal.SIGUSR2, signal.SIGHUP
"""Signals to the worker of a reference. Python serves the lower one first, where both are pending."""
BASES = 1
"""Input sets behind the slots: the values that the generator changes, for inputs of which it does not make all."""


class TensorSlot(msgspec.Struct, frozen=True):
    """A tensor inside a shared arena."""

    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] | None = None
    """In elements; None for a contiguous tensor."""


Argument: TypeAlias = TensorSlot | bool | int | float | None
"""An input of a call: a tensor, a number that is passed by value, or nothing."""


class SharedMemory(msgspec.Struct, frozen=True):
    """The handle with which another process maps an arena."""

    size_bytes: int
    ipc_handle: bytes
    """Handle of a CUDA allocation; empty for a memory file, whose descriptor travels with the message."""


class Layout(msgspec.Struct, frozen=True):
    """The layout of the inputs and the outputs of one call in their slots."""

    inputs: tuple[Argument, ...]
    outputs: tuple[TensorSlot, ...]


class Build(msgspec.Struct, frozen=True, tag="build"):
    """Build a solution, or the definition's reference."""

    device: str
    definition: str
    solution: str | None
    """Both as JSON; no solution means the reference."""
    cache_key: str = ""
    """Separates the cache of the solution from that of other evaluations; empty: they share one."""


class OpenDevice(msgspec.Struct, frozen=True, tag="open-device"):
    """Make the device's context and load the native module, before any code of a solution is there."""

    build: Build
    """The build that will follow, which decides the cache of the worker."""


class Bind(msgspec.Struct, frozen=True, tag="bind"):
    """Map the slots of one workload; earlier ones are forgotten."""

    layout: Layout
    slots: int
    inputs: SharedMemory
    outputs: SharedMemory


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Forget the slots: their memory is about to go."""


class SetUp(msgspec.Struct, frozen=True, tag="set-up"):
    """Run the solution's ``setup`` on the inputs in these slots; calls on them receive its result."""

    slots: tuple[int, ...]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Call the function once on a slot; its outputs are there afterwards."""

    slot: int
    is_first: bool = False
    """Whether kernels may compile, and autotuned ones run untuned."""


class Seal(msgspec.Struct, frozen=True, tag="seal"):
    """Seal the worker: nothing is compiled, loaded or started from now on."""


class WarmUp(msgspec.Struct, frozen=True, tag="warm-up"):
    """Make calls until compilers and caches have settled."""

    runs: int
    max_seconds: float


class OpenPasses(msgspec.Struct, frozen=True, tag="open-passes"):
    """Map the mailbox, whose descriptor travels along."""

    pattern: int
    """Of the flush buffer."""
    recipes: tuple[Recipe, ...]


class PassRequest(msgspec.Struct, frozen=True):
    """A pass over the first slots."""

    kind: int
    """0: of calls of the function; 1: of no calls; 2: of empty kernels."""
    is_fresh: bool
    """Whether the word that starts the clock is the key of the inputs."""
    calls: int


class ComposePass(PassRequest, frozen=True, tag="compose-pass"):
    """Capture a call in each slot, and compose a pass of them."""

    is_anew: bool = False
    """Whether the slots hold other structural integers than when calls were captured: captures are made anew."""


class RunCalls(PassRequest, frozen=True, tag="run-calls"):
    """Make the calls of a pass eagerly, each when the judge says so in the mailbox."""


class LaunchPass(PassRequest, frozen=True, tag="launch-pass"):
    """Launch the pass that was composed; the device waits for the judge's words in the mailbox."""


WorkerRequest: TypeAlias = (
    OpenDevice
    | Build
    | Bind
    | Release
    | SetUp
    | Seal
    | Call
    | WarmUp
    | OpenPasses
    | ComposePass
    | LaunchPass
    | RunCalls
)


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """A worker's first message, sent before anything of a solution is there."""

    isolation: Isolation


class Built(msgspec.Struct, frozen=True, tag="built"):
    """The function is there."""

    has_setup: bool = False
    """Whether it is to be set up before it is called."""


class DeviceOpened(msgspec.Struct, frozen=True, tag="device-opened"):
    """The device is ready."""

    table: int
    """Address of the native module's read-only table; 0 without one."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The request was carried out, and there is nothing to report."""


class HasSetUp(msgspec.Struct, frozen=True, tag="has-set-up"):
    """The slots are set up."""

    taken_ns: tuple[float, ...]
    """Nanoseconds on each, by the worker's clock: a claim."""


class Called(msgspec.Struct, frozen=True, tag="called"):
    """The call returned and its outputs have the right number, kind, shape and dtype."""

    untuned: int = 0
    """The number of kernels that ran untuned, or that a call which is not the first needs compiled; untrusted."""


class Compiling(msgspec.Struct, frozen=True, tag="compiling"):
    """Progress of a first call, before its reply: the worker compiles, and the limit of the call begins anew."""

    not_compiled: tuple[str, ...] = ()
    """Configurations of autotuned kernels that do not work, and why."""


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """A reference stands still in a call, and its device is idle, as `PAUSE` asked for, until `GO_ON`."""


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """The duration of a warm call by the worker's clock, as an eager caller sees it; untrusted."""

    call_ns: float


class Composed(msgspec.Struct, frozen=True, tag="composed"):
    """A pass is composed."""

    nodes: int
    """Kernels, copies and fills of one captured call; 0 for passes without calls."""
    calls: int
    """The calls of the pass; fewer than were asked for, if captured ones have many nodes."""
    reads: tuple[str, ...] = ()
    """Lines of the solution that read from the device; replays have what they read when calls were captured."""
    waits: tuple[str, ...] = ()
    """Lines that wait for the device, which captures leave out."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request could not be carried out, because of the solution."""

    kind: str
    """``build`` or ``run`` where it raised; ``shape``, ``dtype``, ``kind``, ``bounds``, or ``lazy`` (work is left for
    later) where its outputs do not fit the definition; ``capture`` where a call cannot be captured into a CUDA graph,
    and the process may be unusable; ``tampered`` where code of the worker has changed."""
    detail: str


WorkerReply: TypeAlias = (
    Settled | DeviceOpened | Built | Done | HasSetUp | Compiling | Paused | Called | Warm | Composed | Failed
)


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Request: fork a worker. The descriptors of its channel and of its output pipe travel with the message."""

    folder: str
    """Its private working folder, home and temporary folder."""


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """Request: kill a worker and all processes that it started."""

    pid: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Request: reply with `Pong`, as a sign of life."""


ServerRequest: TypeAlias = Spawn | Kill | Ping


class Spawned(msgspec.Struct, frozen=True, tag="spawned"):
    """Reply to `Spawn`: the worker runs."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Report: a worker has ended, and so have all processes that it started."""

    pid: int
    wait_status: int
    reason: str = ""
    """Reason that the server ended it without a request; empty otherwise."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Reply to `Ping`, and the first report: the server has imported everything."""


ServerReply: TypeAlias = Spawned | Exited | Pong
