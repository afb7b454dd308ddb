"""Native module of handshakes: its structures, its functions, and how it is built.

`kernels.cu` is compiled for a device by NVRTC, `composer.cpp` by the C++ compiler that builds solutions; both once,
into the cache. The judge builds; workers load what it built. Both include the generator of inputs
(`fib_bench.inputs.recipes`), so that judge and worker make the same inputs.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from fib_compile.native_module import ModuleNotBuilt, NativeModule, build_module
from fib_schema import FibError, get_fib_cache_path
from fib_schema.files import private_folder

from ...device_code import DeviceCodeError, compile_device_code, publish
from ...inputs.recipes import Input, u32, u64

MAX_INPUTS, MAX_OUTPUTS, MAX_CALLS, BLOCKS, POLLERS, SPAN_BITS = 24, 12, 64, 256, 8, 20
SOLUTION, NOTHING, LEAST = 0, 1, 2
"""Kinds of passes: of calls, of no calls, of kernels that read one word of their inputs."""
MAILBOX_BYTES, TABLE_BYTES = 8192, 4096
_LINE_BYTES, _FLUSH_STATIC_BYTES, _DIGEST_BLOCKS = 128, 8192, 128
_ERROR_BYTES = 512
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-Wl,-z,relro,-z,now")
Words = u64 * MAX_CALLS


class NativeError(FibError):
    """The native module could not be built, or a driver call failed."""


class CannotCapture(Exception):
    """A function could not be captured into a CUDA graph; the process should not be used any more."""


class Mailbox(ctypes.Structure):
    """Host memory that the judge and the worker read and write during a pass; a word for each call."""

    _fields_ = (
        ("start", Words), ("ready", Words), ("stop", Words), ("free_sms", u32 * MAX_CALLS),
        ("own_ns", u32 * MAX_CALLS), ("end", u64), ("padding", u64 * 15),
        ("go", u64 * (POLLERS * MAX_CALLS)),
    )  # fmt: skip


class Output(ctypes.Structure):
    """An output of a call, and the address that the digest copies it to."""

    _fields_ = (("source", u64), ("target", u64), ("bytes", u64))


class Call(ctypes.Structure):
    """The inputs and outputs of one call; `stride` bytes from one call's outputs to the next."""

    _fields_ = (
        ("inputs", u32), ("outputs", u32), ("blocks", u32), ("padding", u32), ("stride", u64),
        ("input", Input * MAX_INPUTS), ("output", Output * MAX_OUTPUTS),
    )  # fmt: skip


class Pass(ctypes.Structure):
    """The calls of a pass."""

    _fields_ = (
        ("mailbox", u64), ("host_mailbox", u64), ("timeout_ns", u64), ("calls", u32), ("kind", u32), ("is_late", u32),
        ("is_host", u32), ("graphs", ctypes.POINTER(ctypes.c_void_p)), ("call", ctypes.POINTER(Call)),
        ("stream", ctypes.c_void_p),
    )  # fmt: skip


class Clock(ctypes.Structure):
    """Readings of the judge's clock, in nanoseconds, and the digests that stopped it."""

    _fields_ = (
        ("call", u32), ("phase", u32), ("end", u64), ("repeated", u64), ("t0", Words), ("t1", Words), ("stop", Words),
    )  # fmt: skip


def digest_ns(stops: Sequence[int]) -> list[int]:
    """Nanoseconds that digests on a device took, by its clock; a digest is another one if its duration is altered."""
    return [16 * (stop & (1 << SPAN_BITS) - 1) for stop in stops]


def call_of(inputs: Sequence[Input], outputs: Sequence[Output], *, stride: int = 0) -> Call:
    """A call with these inputs and outputs; the number of blocks of its digest depends on the bytes alone."""
    words = sum(-(-output.bytes // 16) for output in outputs)
    blocks = max(1, min(_DIGEST_BLOCKS, -(-words // 256)))
    call = Call(inputs=len(inputs), outputs=len(outputs), blocks=blocks, stride=stride)
    call.input[: len(inputs)] = inputs
    call.output[: len(outputs)] = outputs
    return call


class HostNative:
    """The native module where calls run on the CPU."""

    is_host = True

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def _call(self, name: str, *arguments: object, refusal: type[Exception] = NativeError) -> None:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if getattr(self._library, name)(*arguments, error, ctypes.c_size_t(_ERROR_BYTES)):
            raise refusal(error.value.decode(errors="replace"))

    # -- the worker's ------------------------------------------------------------------------------------

    def map_mailbox(self, address: int) -> int:
        """Make a page of host memory visible to the device; returns its address there."""
        return address

    def unmap_mailbox(self, address: int) -> None:
        """Undo `map_mailbox`."""

    def prepare(self, calls: Pass, index: int) -> None:
        """Prepare an eager call once the judge says so: its inputs, and a cold cache."""
        self._call("fib_prepare", ctypes.byref(calls), index)

    def wait_for_go(self, calls: Pass, index: int) -> None:
        """Wait until the clock of an eager call runs."""
        self._call("fib_await", ctypes.byref(calls), index)

    def stop(self, calls: Pass, index: int, sources: Sequence[int] | None) -> None:
        """Digest the outputs of an eager call, which lie at other places than composed if these are given."""
        places = None if sources is None else (u64 * len(sources))(*sources)
        self._call("fib_stop", ctypes.byref(calls), index, places)

    def finish(self) -> None:
        """Wait for the device."""

    # -- the judge's -------------------------------------------------------------------------------------

    def run_clock(
        self, mailbox: int, clock: Clock, words: Sequence[tuple[int, int, int]], *, patience_ns: int,
        ends_on_device: bool, slice_seconds: float,
    ) -> bool:  # fmt: skip
        """Time the calls of a pass, from where `clock` has stopped.

        Each call has its words start and go, and nanoseconds from its being ready to the start of the clock. Meanwhile
        the judge sleeps for `patience_ns`. Returns whether all have ended; False after `slice_seconds` of silence.
        """
        count = len(words)
        columns = zip((u64, u64, u32), zip(*words, strict=True), strict=True)
        start, go, delays = ((kind * count)(*column) for kind, column in columns)
        return not self._library.fib_clock(
            ctypes.c_void_p(mailbox), ctypes.byref(clock), count, start, go, delays,
            u64(patience_ns), int(self.is_host), int(ends_on_device), u64(int(slice_seconds * 1e9)),
        )  # fmt: skip

    def refill(self, inputs: Sequence[Input], keys: Sequence[int], stride: int = 0, base_stride: int = 0) -> None:
        """Make the inputs of a call from each key, on the current stream; strides, in bytes, lead to the next call."""
        call, stream = call_of(inputs, ()), None if self.is_host else _stream()
        for key in keys:
            self._call("fib_refill", ctypes.byref(call), u64(key), int(self.is_host), stream)
            for item in call.input[: len(inputs)]:
                item.target += stride
                item.base += base_stride

    def recompute(
        self, outputs: Call, words: Sequence[tuple[int, int, int]], stops: Sequence[int], pattern: int,
        device: torch.device,
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Recompute digests from copies of outputs, which are on the device.

        `outputs` are those of the first call, with the stride to the next; `words` are start, go and key of each call;
        `stops` have stopped the clock: what a device adds to digests is taken from there. The pattern is that of the
        worker's flush buffer. Returns the digests, and the calls that have left poison.
        """
        del stops, pattern, device
        count = len(words)
        digests = (u64 * count)()
        flat = (u64 * (3 * count))(*(word for each in words for word in each))
        unwritten = self._library.fib_recompute_on_host(ctypes.byref(outputs), count, flat, digests)
        return list(digests), [index for index in range(count) if unwritten >> index & 1]


class Native(HostNative):
    """The native module, opened for the current CUDA device with these properties; the image is a cubin for it."""

    is_host = False

    def __init__(self, library: ctypes.CDLL, image: bytes, properties: Any) -> None:
        super().__init__(library)
        flush_bytes = max(3 * properties.L2_cache_size // 2, 1 << 20)
        self.flush_lines = flush_bytes // _LINE_BYTES
        shared = u32(properties.shared_memory_per_block_optin - _FLUSH_STATIC_BYTES)
        self._call("fib_open", image, u32(properties.multi_processor_count), shared, u64(flush_bytes))

    @property
    def table_address(self) -> int:
        """Address of the read-only table of driver functions in this process."""
        return int(self._library.fib_table())

    def seed(self, pattern: int) -> None:
        """Fill the flush buffer with a pattern."""
        self._call("fib_seed", u64(pattern))

    def map_mailbox(self, address: int) -> int:
        """Make a page of host memory visible to the device; returns its address there."""
        device = u64()
        self._call("fib_map_mailbox", ctypes.c_void_p(address), ctypes.byref(device))
        return device.value

    def unmap_mailbox(self, address: int) -> None:
        """Undo `map_mailbox`."""
        self._library.fib_unmap_mailbox(ctypes.c_void_p(address))

    def inspect(self, graph: int) -> tuple[int, int]:
        """Count working nodes, and copies and fills; `CannotCapture` if some may outlast the call, or run elsewhere."""
        counts = (u64 * 2)()
        self._call("fib_inspect", ctypes.c_void_p(graph), counts, refusal=CannotCapture)
        return counts[0], counts[1]

    def compose(self, description: Pass) -> int:
        """Compose a pass; returns its handle."""
        made = ctypes.c_void_p()
        self._call("fib_compose", ctypes.byref(description), ctypes.byref(made))
        return made.value or 0

    def launch(self, handle: int) -> None:
        """Wait for all earlier work, and launch a pass; does not wait for the pass."""
        self._call("fib_launch", ctypes.c_void_p(handle))

    def finish(self) -> None:
        """Wait for the device."""
        self._call("fib_finish")

    def discard(self, handle: int) -> None:
        """Give a pass back."""
        self._library.fib_discard(ctypes.c_void_p(handle))

    def recompute(
        self, outputs: Call, words: Sequence[tuple[int, int, int]], stops: Sequence[int], pattern: int,
        device: torch.device,
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Recompute digests from copies of outputs, with what their flushes must have found."""
        count = len(words)
        given, found = (_words(each, device) for each in ([word for each in words for word in each], stops))
        scratch = torch.empty(count * 2 * BLOCKS, dtype=torch.int64, device=device)
        counts = torch.zeros(count, dtype=torch.int32, device=device)
        self._call(
            "fib_recompute", ctypes.byref(outputs), count, u64(given.data_ptr()), u64(pattern), u64(self.flush_lines),
            u64(scratch.data_ptr()), u64(found.data_ptr()), u64(counts.data_ptr()), _stream(),
        )  # fmt: skip
        digests = [value & (1 << 64) - 1 for value in found.tolist()]
        return digests, [index for index, value in enumerate(counts.tolist()) if value]


def _words(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([ctypes.c_int64(value).value for value in values], dtype=torch.int64).to(device)


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(int(torch.cuda.current_stream().cuda_stream))


def build_host(cache_folder: Path) -> Path:
    """Compile the host module, unless the cache has it."""
    module = NativeModule(name="composer", sources=_sources("composer.cpp"), flags=_FLAGS, libraries=("-ldl",))
    try:
        return build_module(module, cache_folder)
    except ModuleNotBuilt as error:
        raise NativeError(str(error)) from error


@cache
def image_for(architecture: str) -> bytes:
    """The device code for an architecture such as ``sm_90``, compiled once."""
    text = "\0".join((*_sources("kernels.cu").values(), architecture))
    path = module_folder() / f"kernels-{hashlib.sha256(text.encode()).hexdigest()[:32]}.cubin"
    if not path.exists():
        try:
            publish(path, __name__, architecture)
        except DeviceCodeError as error:
            raise NativeError(f"the device code of the timing module cannot be built:\n{error}") from error
    return path.read_bytes()


def module_folder() -> Path:
    """Folder of the built module, which no other user can change; it may be deleted at any time."""
    return private_folder(get_fib_cache_path() / "fib-bench-timing-v2")


def preload(architectures: Sequence[str]) -> None:
    """Build and load the module for devices such as ``9.0a``: processes that are forked later need no files."""
    for architecture in architectures:
        image_for("sm_" + "".join(character for character in architecture if character.isdigit()))
    _host_module()


@cache
def _host_module() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build_host(module_folder())))
    for name in ("fib_sizes", "fib_table", "fib_recompute_on_host"):
        getattr(library, name).restype = u64
    for index, kind in enumerate((Mailbox, Call, Input, Output)):
        if library.fib_sizes(index) != ctypes.sizeof(kind):
            raise NativeError(f"{kind.__name__} has another size in the native module: delete {module_folder()}")
    return library


@cache
def open_native(device: torch.device) -> HostNative:
    """Open the native module for a device, whose context is current; `NativeError` if it cannot be built or loaded."""
    if device.type == "cpu":
        return HostNative(_host_module())
    properties = torch.cuda.get_device_properties(device)
    return Native(_host_module(), image_for(f"sm_{properties.major}{properties.minor}"), properties)


def _sources(name: str) -> dict[str, str]:
    here, inputs = resources.files(__package__), resources.files("fib_bench.inputs")
    files = (here / name, here / "handshake.h", inputs / "generator.h")
    return {file.name: file.read_text("utf-8") for file in files}


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(compile_device_code(_sources("kernels.cu"), sys.argv[1]))
