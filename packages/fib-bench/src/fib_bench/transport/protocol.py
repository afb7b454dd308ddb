"""What the judge and its workers say to each other, and how it travels.

A frame is a 4-byte length and msgspec's encoding of one message; file descriptors ride along.
Nothing that comes from a worker is unpickled: a frame is bounded in length and must decode to one
of the worker's messages, else it is a `ProtocolError` and the worker is done.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import TypeAlias, TypeVar

import msgspec

MAX_REPLY_BYTES = 4 << 20
MAX_REQUEST_BYTES = 256 << 20  # a solution's sources travel in one frame
MAX_DESCRIPTORS = 128

_LENGTH = struct.Struct("<I")
M = TypeVar("M")


class TensorSlot(msgspec.Struct, frozen=True, tag="tensor"):
    """A tensor inside a shared arena."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class ScalarSlot(msgspec.Struct, frozen=True, tag="scalar"):
    """A number that is passed by value."""

    value: bool | int | float


class AbsentSlot(msgspec.Struct, frozen=True, tag="absent"):
    """An optional input that is not passed."""


InputSlot: TypeAlias = TensorSlot | ScalarSlot | AbsentSlot


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Judge to worker server: fork a worker. With it travel its channel and its output pipe."""

    folder: str
    """Its private working folder, home and temporary folder."""


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """Judge to worker server: kill a worker and everything it started."""

    pid: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Judge to worker server: are you there?"""


ServerRequest: TypeAlias = Spawn | Kill | Ping


class ServerReady(msgspec.Struct, frozen=True, tag="server-ready"):
    """Worker server to judge: everything is imported."""


class Spawned(msgspec.Struct, frozen=True, tag="spawned"):
    """Worker server to judge: the worker runs."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Worker server to judge: a worker has ended and nothing of it is left."""

    pid: int
    wait_status: int
    reason: str = ""
    """Why the server ended it, if it did so unasked."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Worker server to judge: the answer to `Ping`."""


ServerReply: TypeAlias = ServerReady | Spawned | Exited | Pong


class SharedMemory(msgspec.Struct, frozen=True):
    """How another process maps an arena."""

    size_bytes: int
    ipc_handle: bytes
    """Of a CUDA allocation; empty for a memory file, whose descriptor travels with the message."""


class Layout(msgspec.Struct, frozen=True):
    """Where the inputs and the outputs of one call lie in their slots."""

    inputs: tuple[InputSlot, ...]
    outputs: tuple[TensorSlot, ...]


class Build(msgspec.Struct, frozen=True, tag="build"):
    """Build a solution, or the definition's reference."""

    device: str
    definition: str
    solution: str | None
    """Both as JSON; no solution means the reference."""
    is_ahead: bool = False
    """Whether to run compilers and turn to the device, but to load nothing of the solution."""


class OpenDevice(msgspec.Struct, frozen=True, tag="open-device"):
    """Make the device's context and load the native module, before any code of a solution is there."""

    device: str


class Calibrate(msgspec.Struct, frozen=True, tag="calibrate"):
    """Time chains of empty calls, before there is any solution: what the clock itself costs."""

    device: str
    chains: tuple[int, ...]
    samples: int


class Bind(msgspec.Struct, frozen=True, tag="bind"):
    """Map the slots of one workload; earlier ones are forgotten."""

    layout: Layout
    slots: int
    inputs: SharedMemory
    outputs: SharedMemory


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Forget the slots: their memory is about to go."""


class SetUp(msgspec.Struct, frozen=True, tag="set-up"):
    """Run the solution's ``setup`` on the inputs in these slots; calls on them get what it returned."""

    slots: tuple[int, ...]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Call the function once on a slot; its outputs are there afterwards."""

    slot: int
    is_null: bool = False
    """Whether to do everything but the call, so that the judge can time what a request costs."""


class Seal(msgspec.Struct, frozen=True, tag="seal"):
    """Give up what timed calls do not need: nothing new is compiled, loaded or started from now on."""


class CollectAgain(msgspec.Struct, frozen=True, tag="collect-again"):
    """Bring what the last call gave into its slot once more, without calling."""


class WarmUp(msgspec.Struct, frozen=True, tag="warm-up"):
    """Make calls until compilers and caches have settled, and choose how to time."""

    runs: int
    max_seconds: float
    may_capture: bool
    """Whether CUDA graphs may be tried: a capture that fails can leave the process unusable."""
    chain: int = 0
    """Calls between two readings of the clock; 0 leaves the choice to the stopwatch."""


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """Time calls on the slots from the first one on, each slot once, in chains."""

    chains: int
    key: int = 0
    """What hidden inputs were combined with by exclusive or, eight bytes at a time; it is undone chain by chain."""
    hidden: tuple[int, ...] = ()
    """Which inputs are hidden, by their places."""


class LinkedInput(msgspec.Struct, frozen=True):
    """An input that a link changes between two calls of a pass."""

    position: int
    """Among the definition's inputs."""
    size_bytes: int
    mode: int
    """0: each element comes from one of two candidates; 1: each row does, with adjacent elements swapped or not;
    2: all inputs of this mode come from the same candidate."""
    item_bytes: int
    row_items: int


class OpenPasses(msgspec.Struct, frozen=True, tag="open-passes"):
    """Map the mailbox, whose descriptor travels along."""


class ComposePass(msgspec.Struct, frozen=True, tag="compose-pass"):
    """Compose a pass over all slots."""

    kind: int
    """0: of captured calls; 1: of known calls that write the outputs; 2: of empty kernels."""
    repeats: int
    """How often a known call is made in each slot."""
    calls: int
    """How many slots, from the first one on."""
    inputs: tuple[LinkedInput, ...]


class LaunchPass(msgspec.Struct, frozen=True, tag="launch-pass"):
    """Launch a pass; the device waits for its nonce in the mailbox."""

    index: int
    """Of the passes composed since the slots were bound."""


class Profile(msgspec.Struct, frozen=True, tag="profile"):
    """Call once under a profiler."""


WorkerRequest: TypeAlias = (
    OpenDevice
    | Build
    | Calibrate
    | Bind
    | Release
    | SetUp
    | Seal
    | Call
    | CollectAgain
    | WarmUp
    | Sample
    | OpenPasses
    | ComposePass
    | LaunchPass
    | Profile
)


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """A worker's first message, sent before anything of a solution is there: how it is isolated."""

    held: dict[str, tuple[str, ...]]
    """The measures that it has taken, with the threats that they stop."""
    missing: dict[str, str]
    """Those that were not possible, with the reasons."""


class Built(msgspec.Struct, frozen=True, tag="built"):
    """The function is there."""

    has_setup: bool = False
    """Whether it is to be set up before it is called."""


class Sealed(msgspec.Struct, frozen=True, tag="sealed"):
    """The worker is sealed, as far as the system allows."""

    held: tuple[str, ...] = ()
    """The measures that were taken; none means that the worker is as it was."""
    missing: dict[str, str] = {}
    """Those that were not possible, with the reasons."""


class DeviceOpened(msgspec.Struct, frozen=True, tag="device-opened"):
    """The device is ready."""

    table: int
    """Where the native module's read-only table lies; 0 without one."""


class Calibrated(msgspec.Struct, frozen=True, tag="calibrated"):
    """What an empty chain shows on the clock: by method, one number per length asked for."""

    overhead_ns: dict[str, tuple[float, ...]]
    flush_ns: float
    """What is done before each sample takes, on the device's own time."""


class Bound(msgspec.Struct, frozen=True, tag="bound"):
    """The slots are mapped."""


class Released(msgspec.Struct, frozen=True, tag="released"):
    """The slots are unmapped."""


class HasSetUp(msgspec.Struct, frozen=True, tag="has-set-up"):
    """The slots are set up."""

    taken_ns: tuple[float, ...]
    """What it took on each, by the worker's clock: a claim."""


class CollectedAgain(msgspec.Struct, frozen=True, tag="collected-again"):
    """What the last call gave is in its slot."""


class Called(msgspec.Struct, frozen=True, tag="called"):
    """The call returned and its outputs have the right number, kind, shape and dtype."""


class WrongOutput(msgspec.Struct, frozen=True, tag="wrong-output"):
    """The call returned something that does not fit the definition."""

    aspect: str
    """``shape``, ``dtype``, ``kind``, or ``lazy`` where it is made such that work is left for later."""
    problem: str


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """How the function will be timed, and what it seemed to take: claims."""

    method: str
    chain: int
    """Calls between two readings of the clock."""
    call_ns: float
    host_ns: float
    """From the call until the device has finished, as an eager caller sees it."""


class Uncapturable(msgspec.Struct, frozen=True, tag="uncapturable"):
    """The function cannot be captured into a CUDA graph, and the process may be unusable now."""

    problem: str


class Sampled(msgspec.Struct, frozen=True, tag="sampled"):
    """What the worker's clock showed: a claim."""

    samples_ns: tuple[float, ...]
    """The clock around each chain, its own cost included."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The candidates and the mailbox are mapped."""


class Composed(msgspec.Struct, frozen=True, tag="composed"):
    """A pass is composed."""

    index: int
    nodes: int
    """Kernels, copies and fills of one captured call; 0 for known calls."""


class Launched(msgspec.Struct, frozen=True, tag="launched"):
    """A pass waits on the device."""


class Profiled(msgspec.Struct, frozen=True, tag="profiled"):
    """The kernels that ran, in their order, with their durations; empty where no profiler is."""

    kernels: tuple[tuple[str, float], ...]


class Tampered(msgspec.Struct, frozen=True, tag="tampered"):
    """Something that the worker measures or checks with is not what it was before the solution came."""

    what: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The solution raised."""

    stage: str
    """``build`` or ``run``."""
    detail: str


WorkerReply: TypeAlias = (
    Settled
    | DeviceOpened
    | Built
    | Calibrated
    | Bound
    | Released
    | HasSetUp
    | Sealed
    | Called
    | CollectedAgain
    | WrongOutput
    | Warm
    | Uncapturable
    | Sampled
    | Opened
    | Composed
    | Launched
    | Profiled
    | Tampered
    | Failed
)


class ProtocolError(Exception):
    """The other side sent what is no message; it is not talked to any more."""


class ChannelClosed(Exception):
    """The other side is gone."""


def send(channel: socket.socket, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message with file descriptors.

    Raises:
        ChannelClosed: The other side is gone.
    """
    body = msgspec.msgpack.encode(message)
    head = _LENGTH.pack(len(body))
    try:
        if descriptors:
            socket.send_fds(channel, [head], list(descriptors))
        else:
            channel.sendall(head)
        channel.sendall(body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosed(str(error)) from error


def is_readable(channel: socket.socket | int, seconds: float) -> bool:
    """Wait for something to read; unlike `select`, this knows descriptors above 1023."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class Receiver:
    """Reads messages from a channel; can be fed piecewise by a selector loop.

    Args:
        channel: A stream socket of the Unix family.
        kinds: The union of messages to accept.
        max_bytes: The longest body to accept.
        max_descriptors: How many file descriptors the other side may send at a time.
    """

    def __init__(self, channel: socket.socket, kinds: object, max_bytes: int, max_descriptors: int = 0) -> None:
        self._channel = channel
        self._max_descriptors = max_descriptors
        self._decoder = msgspec.msgpack.Decoder(kinds)
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self.descriptors: list[int] = []

    def receive(self) -> object:
        """Wait for the next message.

        Raises:
            ProtocolError: The bytes are no acceptable message.
            ChannelClosed: The other side is gone.
        """
        while (message := self.take()) is None:
            self.fill()
        return message

    def fill(self, *, wait: bool = True) -> None:
        """Read what has arrived; if nothing has, wait for it or leave it.

        Raises:
            ChannelClosed: The other side is gone.
            ProtocolError: It sent descriptors that it may not send.
        """
        try:
            if not wait and not is_readable(self._channel, 0):
                return
            data, descriptors, _, _ = socket.recv_fds(self._channel, 1 << 16, MAX_DESCRIPTORS)
        except ConnectionResetError as error:
            raise ChannelClosed(str(error)) from error
        if len(descriptors) > self._max_descriptors:
            for descriptor in descriptors:
                os.close(descriptor)
            raise ProtocolError(f"{len(descriptors)} descriptors came (at most {self._max_descriptors} are accepted)")
        if not data:
            raise ChannelClosed("end of stream")
        self.descriptors += descriptors
        self._buffer += data

    def take(self) -> object | None:
        """The next whole message that has been read, or None.

        Raises:
            ProtocolError: The bytes are no acceptable message.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self._max_bytes:
            raise ProtocolError(f"a message of {length} bytes (at most {self._max_bytes} are accepted)")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            message: object = self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(str(error)) from error
        return message

    def take_descriptors(self, count: int) -> list[int]:
        """The oldest `count` descriptors that have arrived.

        Raises:
            ProtocolError: Fewer have arrived.
        """
        if len(self.descriptors) < count:
            raise ProtocolError(f"{count} descriptors expected, {len(self.descriptors)} came")
        taken, self.descriptors = self.descriptors[:count], self.descriptors[count:]
        return taken
