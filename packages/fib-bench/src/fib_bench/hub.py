"""Download of data sets from a hub, through `huggingface_hub` (extra ``hub``).

A download continues where an earlier one stopped. A file of the data set that was changed here is never replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import attrs
from fib_schema import FibError, UnknownName

DATA_SETS: Mapping[str, str] = MappingProxyType({"flashinfer-trace": "flashinfer-ai/flashinfer-trace"})
"""Short names of public data sets, and their repositories."""
_FOLDERS = ("definitions", "solutions", "workloads", "traces", "blob")
_RECORDS = ".cache/huggingface/download"
"""The folder in which `huggingface_hub` notes each file that it has finished."""
_ESCAPED = {ord(letter): f"[{letter}]" for letter in "*?["}


@attrs.frozen
class FetchFailed(FibError, RuntimeError):
    """A data set that could not be downloaded."""

    repository: str
    problem: str
    """The problem and its remedy."""

    def __str__(self) -> str:
        return f"fetch {self.repository}: {self.problem}"


@attrs.frozen
class Fetched:
    """A data set that is complete as far as it was wanted."""

    repository: str
    revision: str
    """The commit."""
    folder: str
    files: int


@attrs.frozen(kw_only=True)
class Selection:
    """Choice of the files of a data set; files at its root always belong to it."""

    op_types: tuple[str, ...] = ()
    """Op_types; empty means all."""
    definitions: tuple[str, ...] = ()
    """Names of definitions; empty means all."""
    blobs: bool = True
    """Whether stored tensors belong to it."""

    def of(self, paths: Iterable[str]) -> list[str]:
        """The chosen paths; no hidden files, and of folders only those of a data set.

        Raises:
            UnknownName: An op_type or a definition matches nothing.
        """
        found = list(map(PurePosixPath, paths))
        described = [path for path in found if path.parts[0] == "definitions"]
        _check("op_type", self.op_types, {path.parts[1] for path in described})
        _check("definition", self.definitions, {path.stem for path in described})
        return [str(path) for path in found if self._has(path)]

    def _has(self, path: PurePosixPath) -> bool:
        if any(part.startswith(".") for part in path.parts):
            return False
        if len(path.parts) == 1:
            return True
        top, names = path.parts[0], {*path.parts[1:-1], path.stem}
        is_part = top in _FOLDERS and (self.blobs or top != "blob")
        return is_part and all(not names.isdisjoint(kind) for kind in (self.op_types, self.definitions) if kind)


def _check(kind: str, wanted: Iterable[str], known: set[str]) -> None:
    for name in wanted:
        if name not in known:
            raise UnknownName(kind, name, tuple(sorted(known)))


def fetch(
    name: str,
    folder: Path,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    selection: Selection | None = None,
) -> Fetched:
    """Download a data set, or what is missing of it.

    Args:
        name: One of `DATA_SETS`, or a repository ``OWNER/NAME``.
        folder: The data set; made if it is missing.
        revision: A branch, tag or commit; by default the newest commit of the main branch.
        endpoint: The address of the hub; by default that of `huggingface_hub`.
        selection: The files to download; by default all.

    Raises:
        FetchFailed: The hub does not answer or has no such data set, or a file here was changed.
        UnknownName: The name is a misspelt short name, or the selection names something that the data set lacks.
        OSError: A file cannot be written.
    """
    unknown = UnknownName("data set", name, tuple(DATA_SETS))
    if name not in DATA_SETS and "/" not in name and unknown.near_misses:
        raise unknown
    repository, selection = DATA_SETS.get(name, name), selection or Selection()
    with _explained(repository) as hub:
        info = hub.HfApi(endpoint=endpoint).dataset_info(repository, revision=revision)
        files = [sibling.rfilename for sibling in info.siblings or ()]
        if not any(path.startswith("definitions/") for path in files):
            raise FetchFailed(repository, "has no folder 'definitions'; it is not a data set of kernels")
        chosen = selection.of(files)
        if changed := [path for path in chosen if _is_changed(folder, path)]:
            remedy = "fetch into another folder, then fib-bench report merge"
            raise FetchFailed(repository, f"{_listed(changed)} in {folder} differ from what was fetched; {remedy}")
        hub.snapshot_download(
            repository,
            repo_type="dataset",
            revision=info.sha,
            endpoint=endpoint,
            local_dir=folder,
            allow_patterns=_patterns(chosen, selection),
            ignore_patterns=[".*", "*/.*"],
        )
    return Fetched(repository, str(info.sha), str(folder), len(chosen))


def _patterns(chosen: Iterable[str], selection: Selection) -> list[str]:
    """Patterns of the chosen paths: whole folders where they are wanted, because the client tries all for each file."""
    if selection.op_types or selection.definitions:
        return [path.translate(_ESCAPED) for path in chosen]
    folders = [f"{folder}/*" for folder in _FOLDERS if selection.blobs or folder != "blob"]
    return folders + [path.translate(_ESCAPED) for path in chosen if "/" not in path]


def _is_changed(folder: Path, path: str) -> bool:
    """Whether a file was changed after its download, or was never downloaded: it could be replaced."""
    file, record = folder / path, folder / _RECORDS / f"{path}.metadata"
    return file.exists() and not (record.exists() and file.stat().st_mtime_ns <= record.stat().st_mtime_ns)


def _listed(paths: list[str], most: int = 5) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return f"{', '.join(paths[:most])}{more}"


@contextlib.contextmanager
def _explained(repository: str) -> Iterator[Any]:
    """The client; its errors and those of the connection become `FetchFailed`."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise FetchFailed(repository, "needs the extra 'hub': pip install 'fib-bench[hub]'") from error
    # HTTPError of httpx or of its successor, whichever the installed version uses.
    transport: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    try:
        yield huggingface_hub
    except errors.RevisionNotFoundError as error:
        raise FetchFailed(repository, "has no such revision; leave --revision out for the newest") from error
    except errors.RepositoryNotFoundError as error:
        problem = "the hub has no such data set, or it needs a token (huggingface_hub reads HF_TOKEN)"
        raise FetchFailed(repository, problem) from error
    except errors.HFValidationError as error:
        problem = f"is not a name of a repository: {_text(error)}; write OWNER/NAME, or one of {', '.join(DATA_SETS)}"
        raise FetchFailed(repository, problem) from error
    except (transport, errors.LocalEntryNotFoundError) as error:
        problem = f"the download stopped: {_text(error)}; run the same command again to continue"
        raise FetchFailed(repository, problem) from error


def _text(error: Exception) -> str:
    return " ".join(str(error.__cause__ or error).split())[:300] or type(error).__name__
