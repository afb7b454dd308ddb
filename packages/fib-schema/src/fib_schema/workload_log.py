"""WorkloadLog: appends collected workloads to a data set, each once, also from several processes.

A workload's uuid is its identity: collectors derive it from the content, so that two processes that
see the same traffic agree on it. Under the lock on a definition's file, the log reads the lines that
other processes have appended since its last read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs
import msgspec

from . import data_files
from .codec import format_json
from .definition import Definition
from .files import append_new_lines, atomic_create_all
from .trace import Trace, Workload

if TYPE_CHECKING:
    import torch


class _Named(msgspec.Struct):
    uuid: str


class _Line(msgspec.Struct):
    workload: _Named


_decode_line = msgspec.json.Decoder(_Line).decode


@attrs.define
class _Seen:
    """The uuids of a file of workloads at the last read."""

    uuids: set[str] = attrs.field(factory=set)
    size_bytes: int = 0

    def read(self, descriptor: int) -> None:
        """Read the lines appended since the last read; all of them if the file is shorter now."""
        if os.fstat(descriptor).st_size < self.size_bytes:
            self.uuids, self.size_bytes = set(), 0
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(self.size_bytes)
            tail = file.read()
        self.uuids.update(uuid for line in tail.splitlines() if (uuid := _uuid_of(line)) is not None)
        self.size_bytes += len(tail)


class WorkloadLog:
    """Appends workloads that a data set does not have yet; made by `TraceSet.workload_log`.

    Safe to use from several processes, and from one thread of each at a time. `path_of` returns the path to write to,
    given one relative to the data set's root.
    """

    def __init__(self, path_of: Callable[[str], str]) -> None:
        self._path_of = path_of
        self._seen: dict[str, _Seen] = {}

    def blob_path(self, definition: Definition, uuid: str) -> str:
        """The path of a workload's tensors relative to the root, for its `SafetensorsInput`."""
        return data_files.blob_file(definition, uuid)

    def append(
        self,
        definition: Definition,
        workloads: Mapping[str, Workload],
        tensors: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> list[str]:
        """Append the workloads, given by uuid, that are new; they and their tensors are durable when this returns.

        Tensors are the content of `blob_path`, absent for a workload without any. Returns the uuids of the appended
        workloads; the others existed.

        Raises:
            OSError: They could not be written; no line was appended.
        """
        if not workloads:
            return []
        path = data_files.workloads_file(definition)
        seen = self._seen.setdefault(path, _Seen())
        new = [uuid for uuid in workloads if uuid not in seen.uuids]
        self._write_tensors(definition, {uuid: tensors[uuid] for uuid in new if tensors.get(uuid)})
        lines = {uuid: format_json(Trace(definition.name, workloads[uuid])).encode() for uuid in new}

        def choose(descriptor: int) -> list[bytes]:
            seen.read(descriptor)
            return [line for uuid, line in lines.items() if uuid not in seen.uuids]

        written = set(append_new_lines(self._path_of(path), choose)) if lines else set()
        appended = [uuid for uuid, line in lines.items() if line in written]
        seen.uuids.update(appended)
        seen.size_bytes += sum(len(line) + 1 for line in written)
        return appended

    def _write_tensors(self, definition: Definition, tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Write tensors; a file that exists has the same content, because its name is derived from it."""
        from .blobs import format_tensors

        contents = {self._blob_file(definition, uuid): format_tensors(group) for uuid, group in tensors.items()}
        atomic_create_all(contents, keeps_existing=True)

    def _blob_file(self, definition: Definition, uuid: str) -> str:
        """The path to write to; only the folder is resolved and cached, because there may be millions of files."""
        folder, name = os.path.split(data_files.blob_file(definition, uuid))
        return os.path.join(self._path_of(folder), name)


def _uuid_of(line: bytes) -> str | None:
    """The uuid of a whole line; None if it is torn or no workload, which readers of the set report."""
    try:
        return _decode_line(line).workload.uuid
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
