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


ServerRequest: TypeAlias = Spawn | Kill


class ServerReady(msgspec.Struct, frozen=True, tag="server-ready"):
    """Worker server to judge: everything is imported."""


class Spawned(msgspec.Struct, frozen=True, tag="spawned"):
    """Worker server to judge: the worker runs."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Worker server to judge: a worker has ended and nothing of it is left."""

    pid: int
    wait_status: int
    strays: int
    """How many processes it left behind, which were killed."""


ServerReply: TypeAlias = ServerReady | Spawned | Exited


class Build(msgspec.Struct, frozen=True, tag="build"):
    """Build a solution, or the definition's reference."""

    definition: str
    solution: str | None
    """Both as JSON; no solution means the reference."""


class InputSet(msgspec.Struct, frozen=True):
    """One set of inputs with the buffers for its outputs. Two arenas' descriptors travel with it."""

    inputs: tuple[InputSlot, ...]
    outputs: tuple[TensorSlot, ...]


class Bind(msgspec.Struct, frozen=True, tag="bind"):
    """Map the inputs and output buffers of one workload; earlier ones are forgotten."""

    device: str
    sets: tuple[InputSet, ...]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Call the function once on one input set; its outputs are in the buffers afterwards."""

    set_index: int


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Time calls that rotate among the input sets; each set's last outputs stay in its buffers."""

    warmup_runs: int
    samples: int
    max_seconds: float


WorkerRequest: TypeAlias = Build | Bind | Call | Measure


class Built(msgspec.Struct, frozen=True, tag="built"):
    """The function is there."""


class Bound(msgspec.Struct, frozen=True, tag="bound"):
    """The tensors are mapped."""


class Called(msgspec.Struct, frozen=True, tag="called"):
    """The call returned and its outputs have the right number, kind, shape and dtype."""


class WrongOutput(msgspec.Struct, frozen=True, tag="wrong-output"):
    """The call returned something that does not fit the definition."""

    aspect: str
    """``shape``, ``dtype`` or ``kind``."""
    problem: str


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """What the worker's stopwatch showed: a claim."""

    samples_ns: tuple[float, ...]
    """Time per call, one number per sample."""
    calls_per_sample: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The solution raised."""

    stage: str
    """``build`` or ``run``."""
    summary: str
    detail: str


WorkerReply: TypeAlias = Built | Bound | Called | WrongOutput | Measured | Failed


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
