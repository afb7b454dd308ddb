"""Safe loading of the tensors of a recorded call from untrusted files.

A ``.pt`` file is a program for an unpickler. It is loaded with ``weights_only``, and all functions that it would call
are checked before: some that ``weights_only`` allows can be made to allocate any amount of memory. The caller limits
the bytes.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import attrs
import torch
from fib_schema import FibError
from fib_schema.blobs import load_tensors

_MAX_PICKLE_BYTES = 16 << 20
_MAX_HEADER_BYTES = 1 << 20
_ARCHIVE = b"PK\x03\x04"
"""The first bytes of an archive; torch reads any other file as a bare pickle."""
_ALLOWED_CALLS = frozenset({
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_parameter",
    "torch.nn.parameter Parameter",
    "torch.storage UntypedStorage",
    "collections OrderedDict",
})  # fmt: skip
"""Callables in files of `torch.save` for a mapping of ordinary tensors, beside dtypes and storages of torch."""
_CALL_OPCODES = frozenset({"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"})
"""Other opcodes that name what is called; `torch.save` does not use them."""


@attrs.frozen
class UnreadableTensors(FibError, ValueError):
    """A file that contains no tensors, too many bytes, or something else beside tensors."""

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


def load_dumped_tensors(file: Path, max_bytes: int) -> dict[str, torch.Tensor]:
    """The tensors of a ``.pt`` or ``.safetensors`` file by name, on the CPU.

    Args:
        file: The file.
        max_bytes: The most bytes that the tensors may have.

    Raises:
        UnreadableTensors: It is not such a file, contains anything else, or has more bytes.
    """
    load = _load_safetensors if file.suffix == ".safetensors" else _load_pickled
    try:
        return _checked(load(file, max_bytes), max_bytes)
    except _Refused as error:
        raise UnreadableTensors(file.name, str(error)) from error
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0][:200]
        raise UnreadableTensors(file.name, f"cannot be read: {type(error).__name__}: {text}") from error


class _Refused(Exception):
    """Reason for not loading a file."""


def _load_safetensors(file: Path, max_bytes: int) -> Any:
    if file.stat().st_size > max_bytes + _MAX_HEADER_BYTES:
        raise _too_large(max_bytes)
    return load_tensors(file.parent, file.name)


def _load_pickled(file: Path, max_bytes: int) -> Any:
    with file.open("rb") as content:
        _check_archive(content, max_bytes)
        content.seek(0)
        return torch.load(content, map_location="cpu", weights_only=True)


def _check_archive(content: IO[bytes], max_bytes: int) -> None:
    """Refuse what `torch.save` does not write, before torch's own reader sees it."""
    if content.read(len(_ARCHIVE)) != _ARCHIVE or not zipfile.is_zipfile(content):  # torch checks the first bytes only
        raise _Refused("is not an archive of torch.save, or was cut off while it was written")
    with zipfile.ZipFile(content) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise _Refused("is compressed, which torch.save never does")
        if sum(entry.file_size for entry in entries) > max_bytes + _MAX_PICKLE_BYTES:
            raise _too_large(max_bytes)
        if any(entry.filename != entry.orig_filename for entry in entries):
            raise _Refused("has a file with two names")
        for entry in entries:
            if entry.filename.lower().endswith(".pkl"):  # torch's reader ignores case
                if entry.file_size > _MAX_PICKLE_BYTES:
                    raise _Refused("contains more than tensors: its pickle is too large")
                _check_calls(archive.read(entry))


def _check_calls(pickle: bytes) -> None:
    for called in _calls_of(pickle):
        if called not in _ALLOWED_CALLS and not _is_tensor_type(called):
            raise _Refused(f"would call {called!r}, which no file of tensors needs; it is not loaded")


def _calls_of(pickle: bytes) -> Iterator[str]:
    """Callables that a pickle names, found without running it."""
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name in _CALL_OPCODES:
            yield opcode.name
        elif opcode.name == "GLOBAL":
            yield str(argument)


def _is_tensor_type(called: str) -> bool:
    """Whether it is a dtype or a storage class of torch."""
    module, _, name = called.partition(" ")
    return module == "torch" and (name.endswith("Storage") or isinstance(getattr(torch, name, None), torch.dtype))


def _checked(loaded: Any, max_bytes: int) -> dict[str, torch.Tensor]:
    if not isinstance(loaded, Mapping):
        raise _Refused(f"contains {type(loaded).__name__} instead of a mapping of tensors")
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or not _is_ordinary(tensor):
            raise _Refused(f"{name!r} is not an ordinary tensor: {type(tensor).__name__}")
    if sum(tensor.nbytes for tensor in loaded.values()) > max_bytes:  # a stride of 0 makes large shapes of few bytes
        raise _too_large(max_bytes)
    return {name: tensor.detach() for name, tensor in loaded.items()}


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def _too_large(max_bytes: int) -> _Refused:
    return _Refused(f"takes more than {max_bytes >> 20} MiB; raise the limit if you trust the file")
