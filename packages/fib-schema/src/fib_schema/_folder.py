"""Paths of a data set on disk: its folders, its tensors and the backup of its traces."""

from __future__ import annotations

import errno
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from . import data_files
from .errors import NoRoot
from .files import copy_file, staged
from .folder_walk import walk

if TYPE_CHECKING:
    import torch


class DataSetFolder:
    """The root of a data set, or None for a set in memory.

    Args:
        root: The directory, which need not exist.
    """

    def __init__(self, root: str | os.PathLike[str] | None) -> None:
        super().__init__()
        self.root = None if root is None else Path(root)
        self._writable_paths: dict[str, str] = {}

    @property
    def definitions_path(self) -> Path:
        """The folder of the definitions."""
        return self._require_root("definitions_path") / data_files.DEFINITIONS

    @property
    def solutions_path(self) -> Path:
        """The folder of the solutions."""
        return self._require_root("solutions_path") / data_files.SOLUTIONS

    @property
    def workloads_path(self) -> Path:
        """The folder of the workloads."""
        return self._require_root("workloads_path") / data_files.WORKLOADS

    @property
    def traces_path(self) -> Path:
        """The folder of the traces."""
        return self._require_root("traces_path") / data_files.TRACES

    @property
    def blob_path(self) -> Path:
        """The folder of tensors."""
        return self._require_root("blob_path") / "blob"

    @property
    def blob_workloads_path(self) -> Path:
        """The folder of the workloads' tensors."""
        return self._require_root("blob_workloads_path") / data_files.BLOB_WORKLOADS

    def backup_traces(self) -> None:
        """Copy the traces to ``traces_backup_<time>`` beside their folder.

        Raises:
            NoRoot: The set is in memory only.
            FileExistsError: There is such a backup already.
            OSError: The traces could not be copied; there is no backup.
        """
        source = self.traces_path
        stamp = datetime.now().astimezone().strftime("%Y%m%d_%H%M%S_%f")
        target = source.with_name(f"{source.name}_backup_{stamp}")
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target))
        with staged(target) as copy:
            copy.mkdir()
            for entry in walk(source, on_error=_refuse) if source.is_dir() else ():
                new = copy / os.path.relpath(entry.path, source)
                if entry.is_dir(follow_symlinks=False):
                    new.mkdir()
                elif entry.is_symlink():
                    new.symlink_to(os.readlink(entry.path))
                else:
                    copy_file(entry.path, new, may_link=False)

    def get_workload_blob_tensor(self, path_str: str) -> dict[str, torch.Tensor]:
        """Read a workload's tensors to the CPU.

        Args:
            path_str: The file's path relative to the root.

        Raises:
            BlobError: There is no such file below the root, or it is bad.
        """
        from .blobs import load_tensors

        return load_tensors(self.root, path_str)

    def _require_root(self, operation: str) -> Path:
        if self.root is None:
            raise NoRoot(operation)
        return self.root

    def _writable(self, relative: str) -> str:
        """The path to write to; refused if a link on it leads out of the root.

        Each path is resolved once, because resolving costs as much as the rest of an append.
        """
        path = self._writable_paths.get(relative)
        if path is None:
            root = os.fspath(self._require_root("writing"))
            path = os.path.join(root, relative)
            if not data_files.is_below(os.path.realpath(path), os.path.realpath(root)):
                raise PermissionError(f"{path} leads out of the data set {root} through a link")
            self._writable_paths[relative] = path
        return path


def _refuse(_: str, error: OSError) -> None:
    raise error
