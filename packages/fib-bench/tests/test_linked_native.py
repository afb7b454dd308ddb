"""Tests of the native module of linked passes, as far as it runs without a device."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import fib_bench.timing.linked as linked
import pytest
from fib_bench.timing.linked import native
from hypothesis import given
from hypothesis import strategies as st

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
pytestmark = needs_compiler
FOLDER = Path(linked.__file__).parent
SHIM = """
#include <stdint.h>
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
struct uint4 { unsigned x, y, z, w; };
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static struct { unsigned x, y; } threadIdx, blockIdx, blockDim, gridDim;
static void __syncthreads() {}
static int __syncthreads_or(int value) { return value; }
static void __threadfence_system() {}
static int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> void atomicOr(T*, T) {}
template <class T> void atomicAdd(T*, T) {}
template <class T> void atomicMax(T*, T) {}
template <class T> void atomicMin(T*, T) {}
"""
ENTRY = """
extern "C" void test_philox(const unsigned* counter, u64 key, unsigned* out) {
  uint4 r = philox(make_uint4(counter[0], counter[1], counter[2], counter[3]), key);
  out[0] = r.x; out[1] = r.y; out[2] = r.z; out[3] = r.w;
}
extern "C" void test_mask(unsigned bits, unsigned item_bytes, unsigned char* out) {
  uint4 m = mask_of(bits, item_bytes);
  __builtin_memcpy(out, &m, 16);
}
extern "C" void test_absorb(const u64* words, int count, u64* out) {
  Hash h = {1, 2};
  for (int i = 0; i < count; ++i) absorb(h, words[2 * i], words[2 * i + 1]);
  out[0] = h.low; out[1] = h.high;
}
"""


@pytest.fixture(scope="module")
def device_code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The device code's functions, compiled for this machine."""
    folder = tmp_path_factory.mktemp("kernels")
    text = re.sub(r"asm volatile\(.*?\);", "", (FOLDER / "kernels.cu").read_text("utf-8"), flags=re.DOTALL)
    source = folder / "kernels.cpp"
    source.write_text(SHIM + text.replace('"passes.h"', f'"{FOLDER / "passes.h"}"') + ENTRY, "utf-8")
    library = folder / "kernels.so"
    command = ["c++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def _absorbed(code: ctypes.CDLL, words: list[int]) -> tuple[int, int]:
    out = (ctypes.c_uint64 * 2)()
    code.test_absorb((ctypes.c_uint64 * len(words))(*words), len(words) // 2, out)
    return out[0], out[1]


class TestDeviceCode:
    def test_random_numbers_are_those_of_philox(self, device_code: ctypes.CDLL) -> None:
        """Known answers of Random123 for ten rounds."""
        out = (ctypes.c_uint32 * 4)()
        device_code.test_philox((ctypes.c_uint32 * 4)(), ctypes.c_uint64(0), out)
        assert list(out) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
        ones = (ctypes.c_uint32 * 4)(*[0xFFFFFFFF] * 4)
        device_code.test_philox(ones, ctypes.c_uint64(0xFFFFFFFFFFFFFFFF), out)
        assert list(out) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]

    @given(bits=st.integers(0, 0xFFFF), size=st.sampled_from([1, 2, 4, 8]))
    def test_a_mask_has_one_bit_for_each_element(self, device_code: ctypes.CDLL, bits: int, size: int) -> None:
        out = (ctypes.c_uint8 * 16)()
        device_code.test_mask(ctypes.c_uint32(bits), ctypes.c_uint32(size), out)
        found = bytes(out)
        wanted = b"".join((b"\xff" if bits >> i & 1 else b"\0") * size for i in range(16 // size))
        assert found == wanted

    @given(words=st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=16).filter(lambda w: len(w) % 2 == 0))
    def test_a_digest_depends_on_each_word_and_on_their_order(self, device_code: ctypes.CDLL, words: list[int]) -> None:
        digest = _absorbed(device_code, words)
        for index in range(len(words)):
            changed = [word ^ (i == index) for i, word in enumerate(words)]
            assert _absorbed(device_code, changed) != digest
        turned = [*words[2:], *words[:2]]
        if turned != words:
            assert _absorbed(device_code, turned) != digest


class TestHostModule:
    def test_it_builds_and_its_structures_are_those_of_python(self, tmp_path: Path) -> None:
        library = ctypes.CDLL(str(native.build_host(tmp_path)))
        library.fib_sizes.restype = ctypes.c_uint64
        kinds = (native.Mailbox, native.State, native.Link, native.Digest, native.Input, native.Output)
        assert [library.fib_sizes(i) for i in range(6)] == [ctypes.sizeof(kind) for kind in kinds]
        assert ctypes.sizeof(native.Mailbox) <= native.MAILBOX_BYTES

    def test_it_is_built_once(self, tmp_path: Path) -> None:
        first = native.build_host(tmp_path)
        stamp = first.stat().st_mtime_ns
        assert native.build_host(tmp_path) == first
        assert first.stat().st_mtime_ns == stamp

    def test_a_failing_compiler_is_told_with_its_output(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compiler = tmp_path / "cxx"
        compiler.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("CXX", str(compiler))
        with pytest.raises(native.NativeError, match="no such thing"):
            native.build_host(tmp_path / "cache")

    def test_the_compiler_may_be_started_by_another_program(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CXX", "env c++ -DCACHED=1")
        assert native.build_host(tmp_path / "cache").is_file()

    def test_without_a_driver_it_says_so(self, tmp_path: Path) -> None:
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

    def test_the_clock_starts_with_the_nonce_and_stops_on_the_digest(self, tmp_path: Path) -> None:
        """A thread stands in for the device: it answers to the number of the pass."""
        import threading

        library = ctypes.CDLL(str(native.build_host(tmp_path)))
        library.fib_time_pass.restype = ctypes.c_uint64
        box = native.Mailbox()
        seen: list[int] = []

        def device() -> None:
            while box.go != 7:
                pass
            seen.extend(box.nonce)
            box.done = 7

        thread = threading.Thread(target=device)
        thread.start()
        nonce = (ctypes.c_uint64 * 4)(11, 12, 13, 14)
        taken = library.fib_time_pass(ctypes.byref(box), ctypes.c_uint64(7), nonce, ctypes.c_uint64(10**10))
        thread.join()
        assert seen == [11, 12, 13, 14]
        assert taken > 0

    def test_a_digest_that_does_not_come_ends_the_wait(self, tmp_path: Path) -> None:
        library = ctypes.CDLL(str(native.build_host(tmp_path)))
        library.fib_time_pass.restype = ctypes.c_uint64
        nonce = (ctypes.c_uint64 * 4)()
        taken = library.fib_time_pass(
            ctypes.byref(native.Mailbox()), ctypes.c_uint64(1), nonce, ctypes.c_uint64(1_000_000)
        )
        assert taken == 0


def test_a_digest_has_as_many_blocks_as_its_bytes_need() -> None:
    assert native.digest_of([native.Output(bytes=16)]).blocks == 1
    assert native.digest_of([native.Output(bytes=1 << 30)]).blocks == native.DIGEST_BLOCKS
