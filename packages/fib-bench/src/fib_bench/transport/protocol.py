"""Wire protocol. Frames that carry the messages of the judge and its workers over a Unix socket.

A frame is a 4-byte length and the msgpack encoding of one message; file descriptors travel with it. Nothing that
comes from a worker is unpickled: a frame is bounded in length and must decode to one of the worker's messages. Any
other frame raises `ProtocolError`, and the worker is killed.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import deque

import msgspec

MAX_REPLY_BYTES = 4 << 20
MAX_REQUEST_BYTES = 256 << 20  # a solution's sources travel in one frame
MAX_DESCRIPTORS = 128

_LENGTH = struct.Struct("<I")


class ProtocolError(Exception):
    """The other side sent an invalid frame; the connection is not used again."""


class ChannelClosed(Exception):
    """The other side has closed the connection."""


def send(channel: socket.socket, *messages: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
    """Send messages with file descriptors; `ChannelClosed` if the other side is gone."""
    bodies = map(msgspec.msgpack.encode, messages)
    frames = memoryview(b"".join(_LENGTH.pack(len(body)) + body for body in bodies))  # at once: the other side wakes up
    try:
        if descriptors:
            frames = frames[socket.send_fds(channel, [frames], list(descriptors)) :]
        if frames:
            channel.sendall(frames)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosed(str(error)) from error


def is_readable(channel: socket.socket | int, seconds: float) -> bool:
    """Wait for something to read; unlike `select`, this knows descriptors above 1023."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class Receiver:
    """Reads messages of some kinds from a Unix stream socket; can be fed piecewise by a selector loop.

    A body may have `max_bytes`, and at most `max_descriptors` may come at a time.
    """

    def __init__(self, channel: socket.socket, kinds: object, max_bytes: int, max_descriptors: int = 0) -> None:
        self._channel = channel
        self._max_descriptors = max_descriptors
        self._decoder = msgspec.msgpack.Decoder(kinds)
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self.messages: deque[object] = deque()
        """The messages that have been read."""
        self.descriptors: list[int] = []

    def receive(self) -> object:
        """Wait for the next message; raises like `fill`."""
        while not self.messages:
            self.fill()
        return self.messages.popleft()

    def fill(self, *, wait: bool = True) -> None:
        """Read available bytes, or wait.

        Raises:
            ChannelClosed: The other side is gone.
            ProtocolError: The bytes are no acceptable message, or too many descriptors came.
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
        while (body := self._take_body()) is not None:
            try:
                self.messages.append(self._decoder.decode(body))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(str(error)) from error

    def _take_body(self) -> bytes | None:
        """The body of the next whole frame, or None."""
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
        return body

    def take_descriptors(self, count: int) -> list[int]:
        """The oldest `count` descriptors that have arrived."""
        if len(self.descriptors) < count:
            raise ProtocolError(f"{count} descriptors expected, {len(self.descriptors)} came")
        taken, self.descriptors = self.descriptors[:count], self.descriptors[count:]
        return taken
