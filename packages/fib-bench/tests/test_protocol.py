"""Tests of the wire protocol: only valid frames with expected messages are accepted."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from fib_bench.transport.messages import (
    Bind,
    Build,
    Called,
    Failed,
    Layout,
    Release,
    SharedMemory,
    TensorSlot,
    WorkerReply,
    WorkerRequest,
)
from fib_bench.transport.protocol import MAX_REPLY_BYTES, ChannelClosed, ProtocolError, Receiver, send
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def framed(body):
    return len(body).to_bytes(4, "little") + body


def test_a_message_arrives_as_it_was_sent(pair):
    left, right = pair
    slots = (TensorSlot("float32", (2, 3), 256), 1.5, True, 7, None)
    handles = SharedMemory(1024, b""), SharedMemory(2 << 20, bytes(range(64)))
    message = Bind(Layout(slots, slots[:1]), 3, *handles)
    send(left, message)
    assert Receiver(right, WorkerRequest, 1 << 20).receive() == message


def test_a_frame_in_pieces_is_put_together(pair):
    left, right = pair
    receiver = Receiver(right, WorkerReply, MAX_REPLY_BYTES)
    frame = framed(msgspec.msgpack.encode(Failed("run", "detail")))
    for byte in frame[:-1]:
        left.sendall(bytes([byte]))
        receiver.fill()
        assert not receiver.messages
    left.sendall(frame[-1:])
    assert receiver.receive() == Failed("run", "detail")


def test_descriptors_travel_with_a_message(pair):
    left, right = pair
    receiver = Receiver(right, WorkerRequest, 1 << 20, max_descriptors=2)
    read_end, write_end = os.pipe()
    send(left, Release(), descriptors=(read_end, write_end))
    os.close(read_end)
    os.close(write_end)
    receiver.receive()
    theirs = receiver.take_descriptors(2)
    os.write(theirs[1], b"through")
    assert os.read(theirs[0], 10) == b"through"
    for descriptor in theirs:
        os.close(descriptor)


def test_a_message_that_no_buffer_holds_arrives_with_its_descriptors(pair):
    left, right = pair
    receiver = Receiver(right, WorkerRequest, 64 << 20, max_descriptors=1)
    message = Build("cpu", "x" * (32 << 20), None)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, left, message, descriptors=(left.fileno(),))
        assert receiver.receive() == message
        sent.result()
    os.close(*receiver.take_descriptors(1))


def test_descriptors_that_are_not_wanted_are_closed_and_refused(pair, nothing_left_open):
    left, right = pair
    with nothing_left_open():
        socket.send_fds(left, [b"x"], [0, 0, 0])
        with pytest.raises(ProtocolError, match=r"3 descriptors came \(at most 0 are accepted\)"):
            Receiver(right, WorkerReply, MAX_REPLY_BYTES).receive()


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read(pair):
    left, right = pair
    left.sendall((MAX_REPLY_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(ProtocolError, match="at most 4194304"):
        Receiver(right, WorkerReply, MAX_REPLY_BYTES).receive()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        msgspec.msgpack.encode(None),
        msgspec.msgpack.encode({"type": "build", "definition": "", "solution": None}),  # a request is no reply
        msgspec.msgpack.encode({"type": "composed", "nodes": "1"}),
        msgspec.msgpack.encode({"type": "composed"}),
        msgspec.msgpack.encode({"type": "warm", "call_ns": "1", "host_ns": 1.0}),
        msgspec.msgpack.encode({"type": "has-set-up", "taken_ns": [["1"]]}),
        b"\x91" * 10_000,
    ],
)
def test_what_is_no_reply_is_a_protocol_error(pair, body):
    left, right = pair
    left.sendall(framed(body))
    with pytest.raises(ProtocolError):
        Receiver(right, WorkerReply, MAX_REPLY_BYTES).receive()


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_protocol_error(body):
    left, right = socket.socketpair()
    with left, right:
        left.sendall(framed(body))
        receiver = Receiver(right, WorkerReply, MAX_REPLY_BYTES)
        try:
            assert isinstance(receiver.receive(), msgspec.Struct)
        except ProtocolError:
            assert not receiver.messages


def test_the_end_of_the_other_side_is_told(pair):
    left, right = pair
    left.close()
    with pytest.raises(ChannelClosed):
        Receiver(right, WorkerReply, MAX_REPLY_BYTES).receive()
    with pytest.raises(ChannelClosed):
        send(right, Called())
