"""Native module of linked passes: its structures, its functions, and how it is built.

`kernels.cu` is compiled for a device by NVRTC, `composer.cpp` by the C++ compiler that builds solutions; both once,
into the cache. The judge builds; workers load what it built.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from fib_compile.native_module import ModuleNotBuilt, NativeModule, build_module
from fib_schema import FibError, get_fib_cache_path
from fib_schema.files import private_folder

from ...device_code import DeviceCodeError, compile_device_code, publish

MAX_INPUTS, MAX_OUTPUTS, MAX_CALLS, DIGEST_BLOCKS = 24, 12, 256, 128
ELEMENT, PAIR_SWAP, WHOLE = 0, 1, 2
SOLUTION, WRITE, EMPTY = 0, 1, 2
MAILBOX_BYTES = TABLE_BYTES = 4096
_ERROR_BYTES = 512
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-Wl,-z,relro,-z,now")
u32, u64 = ctypes.c_uint32, ctypes.c_uint64


class NativeError(FibError):
    """The native module could not be built, or a driver call failed."""


class NotComposable(NativeError):
    """A captured call contains nodes that a linked pass cannot contain."""


class Mailbox(ctypes.Structure):
    """Host memory that the judge and the device read and write during a pass."""

    _fields_ = (
        ("go", u64), ("nonce", u64 * 4), ("padding", u64 * 3), ("armed", u64), ("done", u64), ("digest", u64 * 2),
        ("free_sms", u64), ("timed_out", u64), ("spans", u32 * MAX_CALLS), ("flushes", u32 * MAX_CALLS),
    )  # fmt: skip


class State(ctypes.Structure):
    """Device memory that holds a pass: its number, its nonce and its links."""

    _fields_ = (
        ("number", u64), ("nonce", u64 * 4), ("chain", u64 * (2 * (MAX_CALLS + 1))),
        ("partials", u64 * (2 * DIGEST_BLOCKS)), ("began", u64 * MAX_CALLS), ("flushed", u64 * MAX_CALLS),
        ("digested", u64 * MAX_CALLS),
        ("sms", u32 * (MAX_CALLS * 8)), ("residue", u32),
    )  # fmt: skip


class Input(ctypes.Structure):
    """One input that a link derives from two candidates."""

    _fields_ = (
        ("first", u64), ("second", u64), ("target", u64), ("bytes", u64), ("mode", u32), ("item_bytes", u32),
        ("row_items", u32), ("index", u32),
    )  # fmt: skip


class Output(ctypes.Structure):
    """An output of a call, and the address that the digest copies it to."""

    _fields_ = (("source", u64), ("target", u64), ("bytes", u64))


class Link(ctypes.Structure):
    """Everything that one link writes."""

    _fields_ = (
        ("inputs", u32), ("outputs", u32), ("input", Input * MAX_INPUTS), ("output", Output * MAX_OUTPUTS),
    )  # fmt: skip


class Digest(ctypes.Structure):
    """The outputs that one digest covers; `stride` bytes from one slot to the next."""

    _fields_ = (
        ("outputs", u32), ("blocks", u32), ("call", ctypes.c_int32), ("padding", u32), ("stride", u64),
        ("output", Output * MAX_OUTPUTS),
    )  # fmt: skip


class Pass(ctypes.Structure):
    """A pass to compose."""

    _fields_ = (
        ("mailbox", u64), ("timeout_ns", u64), ("flush_ns", u64), ("calls", u32), ("slots", u32),
        ("kind", u32), ("padding", u32),
        ("graphs", ctypes.POINTER(ctypes.c_void_p)),
        ("links", ctypes.POINTER(Link)), ("digests", ctypes.POINTER(Digest)),
    )  # fmt: skip


def link_of(inputs: Sequence[Input], outputs: Sequence[Output]) -> Link:
    """A link over these inputs, which poisons these outputs."""
    link = Link(inputs=len(inputs), outputs=len(outputs))
    for index, item in enumerate(inputs):
        link.input[index] = item
    for index, output in enumerate(outputs):
        link.output[index] = output
    return link


def digest_of(outputs: Sequence[Output], *, call: int = -1, stride: int = 0) -> Digest:
    """A digest over these outputs, of one call of a pass; the number of blocks depends on their bytes alone."""
    words = sum(-(-output.bytes // 16) for output in outputs)
    digest = Digest(outputs=len(outputs), blocks=max(1, min(DIGEST_BLOCKS, words // 512)), call=call, stride=stride)
    for index, output in enumerate(outputs):
        digest.output[index] = output
    return digest


class Native:
    """The native module, opened for the current device.

    Args:
        library: The loaded host module.
        image: The device code, a cubin for this device.
        multiprocessors: How many the device has.
        shared_bytes: The largest shared memory of a block.
        flush_bytes: What a flush reads; 0 in the judge, which makes no passes.

    Raises:
        NativeError: The device code cannot be loaded.
    """

    def __init__(
        self, library: ctypes.CDLL, image: bytes, *, multiprocessors: int, shared_bytes: int, flush_bytes: int
    ) -> None:
        self._library = library
        self._call("fib_open", image, u32(multiprocessors), u32(shared_bytes), u64(flush_bytes))

    def _call(self, name: str, *arguments: object, refusal: type[NativeError] = NativeError) -> None:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if getattr(self._library, name)(*arguments, error, ctypes.c_size_t(_ERROR_BYTES)):
            raise refusal(error.value.decode(errors="replace"))

    @property
    def table_address(self) -> int:
        """Address of the read-only table of driver functions in this process."""
        return int(self._library.fib_table())

    def map_mailbox(self, address: int) -> int:
        """Make a page of host memory visible to the device; returns its address there."""
        device = u64()
        self._call("fib_map_mailbox", ctypes.c_void_p(address), ctypes.byref(device))
        return device.value

    def unmap_mailbox(self, address: int) -> None:
        """Undo `map_mailbox`."""
        self._library.fib_unmap_mailbox(ctypes.c_void_p(address))

    def inspect(self, graph: int) -> int:
        """Count the nodes of a captured call that do something.

        Raises:
            NotComposable: It contains what could outlast the call, or run elsewhere than on the device.
        """
        work = u64()
        self._call("fib_inspect", ctypes.c_void_p(graph), ctypes.byref(work), refusal=NotComposable)
        return work.value

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

    def wait_armed(self, mailbox: int, number: int, seconds: float) -> bool:
        """Wait until the device stands before a pass; returns whether it does."""
        return not self._library.fib_wait_armed(ctypes.c_void_p(mailbox), u64(number), u64(int(seconds * 1e9)))

    def time_pass(self, mailbox: int, number: int, nonce: Sequence[int], seconds: float) -> int:
        """Start the clock, send the nonce, stop the clock on the digest. Returns nanoseconds, 0 without a digest."""
        words = (u64 * 4)(*nonce)
        taken = self._library.fib_time_pass(ctypes.c_void_p(mailbox), u64(number), words, u64(int(seconds * 1e9)))
        return int(taken)

    def recompute(
        self, nonce: Sequence[int], digest: Digest, calls: int, partials: int, counts: int, stream: int
    ) -> tuple[int, int]:
        """Recompute the links of a pass from the outputs in all slots; waits for the device.

        Args:
            nonce: Of the pass, four numbers.
            digest: The outputs of the first slot, with the stride to the next.
            calls: How many slots.
            partials: Device memory of at least ``calls * DIGEST_BLOCKS * 16`` bytes.
            counts: Device memory, a uint32 for each slot, zero before: adds how many words still hold poison.
            stream: Where to compute.

        Returns:
            The last digest.
        """
        last = (u64 * 2)()
        self._call(
            "fib_recompute", (u64 * 4)(*nonce), ctypes.byref(digest), calls, u64(partials), u64(counts), last,
            ctypes.c_void_p(stream),
        )  # fmt: skip
        return last[0], last[1]

    def relink(self, call: int, link: Link, stream: int) -> None:
        """Make the inputs of one call of the pass that was recomputed last anew, from the same candidates."""
        self._call("fib_relink", call, ctypes.byref(link), ctypes.c_void_p(stream))


def build_host(cache_folder: Path) -> Path:
    """Compile the host module, unless the cache has it.

    Raises:
        NativeError: There is no C++ compiler, or it fails.
    """
    sources = {name: _source(name) for name in ("composer.cpp", "passes.h")}
    try:
        return build_module(
            NativeModule(name="composer", sources=sources, flags=_FLAGS, libraries=("-ldl",)), cache_folder
        )
    except ModuleNotBuilt as error:
        raise NativeError(str(error)) from error


def build_device(architecture: str) -> bytes:
    """Compile the device code.

    Args:
        architecture: For example ``sm_90``.

    Raises:
        DeviceCodeError: NVRTC fails.
    """
    return compile_device_code({name: _source(name) for name in ("kernels.cu", "passes.h")}, architecture)


def image_for(cache_folder: Path, architecture: str) -> bytes:
    """The device code for an architecture such as ``sm_90``, compiled once.

    Raises:
        NativeError: It does not compile.
    """
    text = "\0".join((_source("kernels.cu"), _source("passes.h"), architecture))
    path = cache_folder / f"kernels-{hashlib.sha256(text.encode()).hexdigest()[:32]}.cubin"
    if not path.exists():
        try:
            publish(path, __name__, architecture)
        except DeviceCodeError as error:
            raise NativeError(f"the device code of the timing module cannot be built:\n{error}") from error
    return path.read_bytes()


def module_folder() -> Path:
    """Folder of the built module, which no other user can change; it may be deleted at any time.

    Raises:
        UnsafePath: Another user could replace the module.
        OSError: It cannot be made.
    """
    return private_folder(get_fib_cache_path() / "fib-bench-timing-v1")


_preloaded: dict[str, bytes] = {}


def preload(architectures: Sequence[str]) -> None:
    """Build and load the module for devices such as ``9.0a``: processes that are forked later need no files.

    Raises:
        NativeError: It cannot be built.
    """
    for architecture in architectures:
        name = "sm_" + "".join(character for character in architecture if character.isdigit())
        _preloaded[name] = image_for(module_folder(), name)
    _host_module()


@cache
def _host_module() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build_host(module_folder())))
    for name in ("fib_time_pass", "fib_sizes", "fib_table"):
        getattr(library, name).restype = u64
    for index, kind in enumerate((Mailbox, State, Link, Digest, Input, Output)):
        if library.fib_sizes(index) != ctypes.sizeof(kind):
            raise NativeError(f"{kind.__name__} has another size in the native module: delete {module_folder()}")
    return library


@cache
def open_native(device: torch.device, *, makes_passes: bool) -> Native:
    """Open the native module for a device, whose context must be current.

    Args:
        device: A CUDA device.
        makes_passes: Whether passes are composed in this process, rather than only timed and recomputed.

    Raises:
        NativeError: It cannot be built or loaded.
    """
    properties = torch.cuda.get_device_properties(device)
    architecture = f"sm_{properties.major}{properties.minor}"
    image = _preloaded.get(architecture) or image_for(module_folder(), architecture)
    return Native(
        _host_module(), image,
        multiprocessors=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]
        flush_bytes=max(3 * properties.L2_cache_size, 1 << 20) if makes_passes else 0,
    )  # fmt: skip


@cache
def _source(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(build_device(sys.argv[1]))
