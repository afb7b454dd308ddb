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
FOLDERS = ("definitions", "solutions", "workloads", "traces", "blob")
_RECORDS = ".cache/huggingface/download"
"""The folder in which `huggingface_hub` notes each file that it has finished."""
_ESCAPED = {ord(letter): f"[{letter}]" for letter in "*?["}
_SHOWN = 5


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
        """The chosen paths; no hidden files, and of folders only `FOLDERS`.

        Raises:
            UnknownName: An op_type or a definition matches nothing.
        """
        paths = list(paths)
        described = [PurePosixPath(path) for path in paths if path.startswith("definitions/")]
        self._check("op_type", self.op_types, {path.parts[1] for path in described})
        self._check("definition", self.definitions, {path.stem for path in described})
        return [path for path in paths if self._has(PurePosixPath(path))]

    @staticmethod
    def _check(kind: str, wanted: Iterable[str], known: set[str]) -> None:
        for name in wanted:
            if name not in known:
                raise UnknownName(kind, name, tuple(sorted(known)))

    def _has(self, path: PurePosixPath) -> bool:
        if any(part.startswith(".") for part in path.parts):
            return False
        top, *folders = path.parts
        if not folders:
            return True
        if top not in FOLDERS or (top == "blob" and not self.blobs):
            return False
        is_chosen = not self.op_types or not {*folders}.isdisjoint(self.op_types)
        return is_chosen and (not self.definitions or not {*folders, path.stem}.isdisjoint(self.definitions))


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
    repository = DATA_SETS.get(name, name)
    hub = _hub(repository)
    with _explained(repository):
        info = hub.HfApi(endpoint=endpoint).dataset_info(repository, revision=revision)
        files = [sibling.rfilename for sibling in info.siblings or ()]
        if not any(path.startswith("definitions/") for path in files):
            raise FetchFailed(repository, "has no folder 'definitions'; it is not a data set of kernels")
        chosen = (selection or Selection()).of(files)
        _refuse_changed(repository, folder, chosen)
        hub.snapshot_download(
            repository,
            repo_type="dataset",
            revision=info.sha,
            endpoint=endpoint,
            local_dir=folder,
            allow_patterns=_patterns(chosen, selection or Selection()),
            ignore_patterns=[".*", "*/.*"],
        )
    return Fetched(repository, str(info.sha), str(folder), len(chosen))


def _patterns(chosen: Iterable[str], selection: Selection) -> list[str]:
    """Patterns of the chosen paths: whole folders where they are wanted, because the client tries all for each file."""
    if selection.op_types or selection.definitions:
        return [path.translate(_ESCAPED) for path in chosen]
    folders = [f"{folder}/*" for folder in FOLDERS if selection.blobs or folder != "blob"]
    return folders + [path.translate(_ESCAPED) for path in chosen if "/" not in path]


def _refuse_changed(repository: str, folder: Path, paths: Iterable[str]) -> None:
    """Raise if a file here was changed after its download, or was never downloaded: it could be replaced."""
    changed = [path for path in paths if (folder / path).exists() and _is_changed(folder, path)]
    if changed:
        names = ", ".join(changed[:_SHOWN])
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        remedy = "fetch into another folder, then fib-bench report merge"
        raise FetchFailed(repository, f"{names}{more} in {folder} differ from what was fetched; {remedy}")


def _is_changed(folder: Path, path: str) -> bool:
    record = folder / _RECORDS / f"{path}.metadata"
    return not record.exists() or (folder / path).stat().st_mtime_ns > record.stat().st_mtime_ns


def _hub(repository: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise FetchFailed(repository, "needs the extra 'hub': pip install 'fib-bench[hub]'") from error
    return huggingface_hub


@contextlib.contextmanager
def _explained(repository: str) -> Iterator[None]:
    """Turn errors of the client and of the connection into `FetchFailed`."""
    from huggingface_hub import errors

    # HTTPError of httpx or of its successor, whichever the installed version uses.
    transport: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except (transport, errors.HFValidationError, errors.LocalEntryNotFoundError) as error:
        raise FetchFailed(repository, _explanation(error)) from error


def _explanation(error: Exception) -> str:
    from huggingface_hub import errors

    text = " ".join(str(error.__cause__ or error).split())[:300]
    if isinstance(error, errors.RevisionNotFoundError):
        return "has no such revision; leave --revision out for the newest"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the hub has no such data set, or it needs a token (huggingface_hub reads HF_TOKEN)"
    if isinstance(error, errors.HFValidationError):
        return f"is not a name of a repository: {text}; write OWNER/NAME, or one of {', '.join(DATA_SETS)}"
    return f"the download stopped: {text or type(error).__name__}; run the same command again to continue"
