"""Tests of the native module of handshakes on the CPU: its words, clock, digests and poison."""

import ctypes
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import attrs
import fib_bench.inputs as inputs_package
import fib_bench.timing.handshake as handshake
import pytest
import torch
from fib_bench.inputs.recipes import native_input
from fib_bench.measuring import measure
from fib_bench.recipe import NORMAL, Recipe
from fib_bench.timing.handshake import native
from hypothesis import assume, given
from hypothesis import strategies as st

CPU = torch.device("cpu")
TIMEOUT_NS, LAST = 20 * 10**9, (native.POLLERS - 1) * native.MAX_CALLS
words = st.integers(1, 2**64 - 1)
needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
pytestmark = needs_compiler


def module():
    return native.open_native(CPU)


@attrs.define
class Worker:
    """Calls of one input of floats and one output of bytes, and the page that they share with a judge."""

    calls: int = 1
    output_bytes: int = 48
    is_fresh: bool = False
    page: native.Mailbox = attrs.field(factory=native.Mailbox)
    inputs: torch.Tensor = attrs.field(init=False)
    written: torch.Tensor = attrs.field(init=False)
    copies: torch.Tensor = attrs.field(init=False)
    description: native.Pass = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.inputs = torch.zeros(self.calls, 64)
        self.written, self.copies = (torch.zeros(self.calls, 64, dtype=torch.uint8) for _ in range(2))
        calls = (native.Call * self.calls)(*(self._call(slot) for slot in range(self.calls)))
        address = ctypes.addressof(self.page)
        self.description = native.Pass(
            mailbox=address, host_mailbox=address, timeout_ns=TIMEOUT_NS, calls=self.calls, kind=native.SOLUTION,
            is_late=self.is_fresh, is_host=1, call=calls,
        )  # fmt: skip

    def _call(self, slot):
        source, target = self.written[slot].data_ptr(), self.copies[slot].data_ptr()
        output = native.Output(source=source, target=target, bytes=self.output_bytes)
        return native.call_of([generated(self.inputs[slot])], [output])

    def run(self, slot, outputs=()):
        """Make one call, which writes these bytes."""
        module().prepare(self.description, slot)
        module().wait_for_go(self.description, slot)
        self.written[slot, : len(outputs)] = torch.tensor(outputs, dtype=torch.uint8)
        module().stop(self.description, slot, None)


def generated(target):
    recipe = Recipe(NORMAL, name="x", position=0, dtype="float32", elements=target.numel(), row=target.numel(), mask=1)
    return native_input(recipe, target.data_ptr(), 0)


def inputs_of(key):
    made = torch.zeros(64)
    module().refill([generated(made)], [key])
    return made


def recomputed(outputs, given, pattern=0):
    """The digests of outputs of equal size, and the calls that have left poison there."""
    size = len(outputs[0])
    memory = torch.tensor([list(each) + [0] * (64 - size) for each in outputs], dtype=torch.uint8)
    call = native.call_of((), [native.Output(source=memory.data_ptr(), bytes=size)], stride=64)
    return module().recompute(call, given, [0] * len(given), pattern, CPU)


def digest(outputs, start, go):
    ((found,), _) = recomputed([outputs], [(start, go, start)])
    return found


class TestDigests:
    @given(data=st.binary(min_size=1, max_size=64), start=words, go=words, flipped=st.integers(0, 64 * 8 - 1))
    def test_depend_on_each_bit_and_on_both_words(self, data, start, go, flipped):
        found = digest(data, start, go)
        assert found != 0
        assert digest(data, start, go) == found
        changed = bytearray(data)
        changed[flipped // 8 % len(data)] ^= 1 << flipped % 8
        others = [digest(bytes(changed), start, go), digest(data, start ^ 2, go), digest(data, start, go ^ 2)]
        if len(data) < 64:
            others.append(digest(data + b"\0", start, go))
        assert found not in others

    @given(outputs=st.lists(st.binary(min_size=24, max_size=24), min_size=1, max_size=5), start=words, go=words)
    def test_of_several_calls_are_those_of_each(self, outputs, start, go):
        given_words = [(start ^ index << 1, go, start) for index in range(len(outputs))]
        together, _ = recomputed(outputs, given_words)
        assert together == [digest(each, start, go) for each, (start, go, _) in zip(outputs, given_words, strict=True)]

    @given(data=st.binary(min_size=17, max_size=48), start=words, go=words, is_fresh=st.booleans())
    def test_that_stop_the_clock_are_those_of_copies(self, data, start, go, is_fresh):
        worker = Worker(output_bytes=len(data), is_fresh=is_fresh)
        worker.page.start[0], worker.page.go[LAST] = start, go
        worker.run(0, list(data))
        assert worker.page.stop[0] == digest(data, start, go)
        assert bytes(worker.copies[0].tolist())[: len(data)] == data
        worker.written.zero_()
        assert bytes(worker.copies[0].tolist())[: len(data)] == data


class TestWords:
    @pytest.mark.parametrize("is_fresh", [False, True])
    def test_inputs_come_from_the_key_and_both_words_are_removed(self, is_fresh):
        worker = Worker(is_fresh=is_fresh)
        start, go = 0x1234567, 0x89ABCDE
        worker.page.start[0] = start
        module().prepare(worker.description, 0)
        assert (worker.page.start[0], worker.page.ready[0]) == (0, 1)
        assert torch.equal(worker.inputs[0], torch.zeros(64) if is_fresh else inputs_of(start))
        worker.page.go[LAST] = go
        module().wait_for_go(worker.description, 0)
        assert not any(worker.page.go)
        assert torch.equal(worker.inputs[0], inputs_of(go if is_fresh else start))
        readable = bytes(worker.page) + bytes(worker.written.tolist()[0]) + bytes(worker.copies.tolist()[0])
        for word in (start, go):
            assert word.to_bytes(8, "little") not in readable

    @given(key=words, other=words)
    def test_equal_keys_give_equal_inputs_and_others_give_others(self, key, other):
        assume(key != other)
        assert torch.equal(inputs_of(key), inputs_of(key))
        assert not torch.equal(inputs_of(key), inputs_of(other))


class TestPoison:
    @given(start=words, size=st.sampled_from([8, 16, 48]), kept=st.integers(0, 5))
    def test_outputs_that_hold_a_word_of_it_were_not_written(self, start, size, kept):
        worker = Worker(output_bytes=size)
        worker.page.start[0] = worker.page.go[LAST] = start
        worker.run(0)
        poisoned = bytes(worker.copies[0].tolist())[:size]
        at = kept % (size // 8) * 8
        partly = bytes(size)[:at] + poisoned[at : at + 8] + bytes(size)[at + 8 :]
        outputs = [poisoned, partly, bytes(size), b"\xff" * size]
        assert recomputed(outputs, [(start, start, start)] * 4)[1] == [0, 1]
        assert recomputed(outputs, [(start ^ 2, start, start)] * 4)[1] == []  # of another start


class TestClock:
    def test_each_call_is_timed_from_its_go_to_its_digest(self):
        worker, clock, rests = Worker(calls=3), native.Clock(), (0.0, 0.5, 0.0)

        def work():
            for slot, rest in enumerate(rests):
                module().prepare(worker.description, slot)
                module().wait_for_go(worker.description, slot)
                time.sleep(rest)
                module().stop(worker.description, slot, None)

        given_words = [(11, 21), (12, 22), (13, 23)]
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            assert run_clock(worker, clock, given_words, seconds=60)
            working.result()
        taken = [end - begin for begin, end in zip(clock.t0[:3], clock.t1[:3], strict=True)]
        assert taken[1] > 500e6 > min(taken) > 0
        digests, _ = recomputed(
            [bytes(each.tolist())[:48] for each in worker.copies], [(start, go, start) for start, go in given_words]
        )
        assert clock.stop[:3] == digests

    def test_it_goes_on_where_nobody_answered(self):
        worker, clock = Worker(), native.Clock()
        assert not run_clock(worker, clock, [(1, 2)], seconds=0.001)
        assert (clock.call, clock.phase, worker.page.start[0]) == (0, 1, 1)
        module().prepare(worker.description, 0)
        assert not run_clock(worker, clock, [(1, 2)], seconds=0.001)
        assert (clock.call, clock.phase, worker.page.go[0]) == (0, 2, 2)
        module().wait_for_go(worker.description, 0)
        module().stop(worker.description, 0, None)
        assert run_clock(worker, clock, [(1, 2)], seconds=60)
        assert clock.t1[0] > clock.t0[0] > 0

    def test_a_digest_that_comes_again_is_noted(self):
        """A call that stops the clock itself is followed by the digest of the harness."""
        worker, clock, given_words = Worker(calls=2), native.Clock(), [(1, 2), (3, 4)]
        assert not run_clock(worker, clock, given_words, seconds=0.001)
        worker.page.ready[0] = worker.page.stop[0] = 1
        assert not run_clock(worker, clock, given_words, seconds=0.001)
        assert (clock.call, worker.page.stop[0], clock.repeated) == (1, 0, 0)
        worker.page.stop[0] = worker.page.ready[1] = worker.page.stop[1] = 5
        assert run_clock(worker, clock, given_words, seconds=60)
        assert clock.repeated == 0b01

    def test_a_device_tells_the_end_of_a_pass(self):
        worker, clock = Worker(), native.Clock()
        worker.page.ready[0] = worker.page.stop[0] = 1
        assert not run_clock(worker, clock, [(1, 2)], seconds=0.001, ends_on_device=True)
        assert (clock.call, clock.end, clock.repeated) == (1, 0, 0b01)  # its words came before it could be prepared
        worker.page.end = 1
        assert run_clock(worker, clock, [(1, 2)], seconds=60, ends_on_device=True)
        assert clock.end > clock.t1[0]


def run_clock(worker, clock, given_words, *, seconds, ends_on_device=False):
    return module().run_clock(
        ctypes.addressof(worker.page), clock, [(*each, 0) for each in given_words], patience_ns=0,
        ends_on_device=ends_on_device, slice_seconds=seconds,
    )  # fmt: skip


class TestModule:
    def test_its_structures_are_those_of_python(self, tmp_path):
        library = ctypes.CDLL(str(native.build_host(tmp_path)))
        library.fib_sizes.restype = ctypes.c_uint64
        kinds = (native.Mailbox, native.Call, native.Input, native.Output)
        assert [library.fib_sizes(index) for index in range(4)] == [ctypes.sizeof(kind) for kind in kinds]
        assert ctypes.sizeof(native.Mailbox) <= native.MAILBOX_BYTES
        assert ctypes.sizeof(native.Call) < 4096, "parameters of a kernel"
        assert [native.call_of((), [native.Output(bytes=size)]).blocks for size in (16, 1 << 30)] == [1, 128]

    def test_without_a_driver_it_says_so(self, tmp_path):
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            library = ctypes.CDLL(str(native.build_host(tmp_path)))
            error = ctypes.create_string_buffer(200)
            status = library.fib_open(b"", 1, 1, ctypes.c_uint64(0), error, ctypes.c_size_t(200))
            assert status != 0
            assert b"libcuda.so.1 cannot be loaded" in error.value
        else:
            pytest.skip("this machine has a driver")


HEADER = """
#define FIB_BOTH inline
#include "handshake.h"
extern "C" u32 test_line(u64 pattern, u64 line) { return fib_line(pattern, line); }
extern "C" u64 test_one_way(u64 x) { return fib_one_way(x); }
"""


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    """Functions of the header, which device and host share."""
    folder = tmp_path_factory.mktemp("header")
    (folder / "header.cpp").write_text(HEADER, "utf-8")
    folders = [f"-I{Path(str(package.__file__)).parent}" for package in (handshake, inputs_package)]
    command = ["c++", "-std=c++17", "-w", "-shared", "-fPIC", *folders, "-o", str(folder / "header.so")]
    subprocess.run([*command, str(folder / "header.cpp")], check=True)
    library = ctypes.CDLL(str(folder / "header.so"))
    library.test_one_way.restype = ctypes.c_uint64
    return library


@given(pattern=words)
def test_a_flush_reads_other_words_in_each_line_and_in_each_worker(header, pattern):
    lines, others = (
        [header.test_line(ctypes.c_uint64(seed), ctypes.c_uint64(line)) for line in range(64)]
        for seed in (pattern, pattern ^ 1)
    )
    assert len({*lines}) > 60  # of 32 bits each
    assert sum(a == b for a, b in zip(lines, others, strict=True)) < 3


@given(word=words, bit=st.integers(0, 63))
def test_a_word_that_stays_readable_differs_in_half_its_bits(header, word, bit):
    first, second = (header.test_one_way(ctypes.c_uint64(each)) for each in (word, word ^ 1 << bit))
    assert 8 < (first ^ second).bit_count() < 56
    assert first != word


class TestMeasure:
    """The same clock for a function that is trusted, in this process."""

    def test_a_call_takes_as_long_as_it_sleeps(self):
        x = torch.ones(8)
        calls = SimpleNamespace(count=0)

        def double(given):
            calls.count += 1
            time.sleep(0.002)
            return given * 2

        found = measure(double, x, rounds=2)
        assert (found.latency_ms, found.latency_error_ms) == (None, None)  # of devices only
        assert 2 <= found.call_ms < 20
        assert found.call_error_ms >= 0
        assert calls.count >= 32

    @pytest.mark.parametrize("result", [(), ("x", "x"), {"y": "x"}, None])
    def test_a_function_may_return_several_tensors_or_nothing(self, result):
        x = torch.ones(8)
        shown = {"y": x} if isinstance(result, dict) else (x,) * len(result) if isinstance(result, tuple) else None
        assert measure(lambda _: shown, x, rounds=1).call_ms >= 0
