"""Download of data sets from a hub, through `huggingface_hub` (extra ``hub``).

A download continues where an earlier one stopped. A file of the data set that was changed here is never replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    files: int


def fetch(
    name: str,
    folder: Path,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    op_types: Sequence[str] = (),
    definitions: Sequence[str] = (),
    blobs: bool = True,
) -> Fetched:
    """Download a data set, or what is missing of it; no hidden files, and of folders only those of a data set.

    The name is one of `DATA_SETS`, or ``OWNER/NAME``; the revision a branch, tag or commit, by default the newest of
    the main branch; the endpoint the address of the hub. No op_types mean all, as for definitions.

    Raises:
        FetchFailed: The hub does not answer or has no such data set, or a file here was changed.
        UnknownName: An op_type or a definition is not in the data set.
    """
    repository = DATA_SETS.get(name, name)
    with _explained(repository) as hub:
        info = hub.HfApi(endpoint=endpoint).dataset_info(repository, revision=revision)
        files = [sibling.rfilename for sibling in info.siblings or ()]
        if not any(path.startswith("definitions/") for path in files):
            raise FetchFailed(repository, "has no folder 'definitions'; it is not a data set of kernels")
        chosen = _chosen(files, op_types, definitions, blobs)
        if changed := [path for path in chosen if _is_changed(folder, path)]:
            remedy = "fetch into another folder, then fib-bench report merge"
            raise FetchFailed(repository, f"{', '.join(changed)} in {folder} differ from what was fetched; {remedy}")
        folders = [f"{top}/*" for top in _FOLDERS if blobs or top != "blob"]
        single = chosen if op_types or definitions else [path for path in chosen if "/" not in path]
        hub.snapshot_download(
            repository,
            repo_type="dataset",
            revision=info.sha,
            endpoint=endpoint,
            local_dir=folder,
            # whole folders where they are wanted, because the client tries all patterns for each file
            allow_patterns=[*(() if single is chosen else folders), *(path.translate(_ESCAPED) for path in single)],
            ignore_patterns=[".*", "*/.*"],
        )
    return Fetched(repository, str(info.sha), len(chosen))


def _chosen(paths: Iterable[str], op_types: Sequence[str], definitions: Sequence[str], blobs: bool) -> list[str]:
    found = [path for path in map(PurePosixPath, paths) if not any(part.startswith(".") for part in path.parts)]
    described = [path for path in found if path.parts[0] == "definitions"]
    _check("op_type", op_types, {path.parts[1] for path in described})
    _check("definition", definitions, {path.stem for path in described})
    tops = set(_FOLDERS) - (set() if blobs else {"blob"})

    def is_chosen(path: PurePosixPath) -> bool:
        names = {*path.parts[1:-1], path.stem}
        return path.parts[0] in tops and all(not names.isdisjoint(kind) for kind in (op_types, definitions) if kind)

    return [str(path) for path in found if len(path.parts) == 1 or is_chosen(path)]


def _check(kind: str, wanted: Iterable[str], known: set[str]) -> None:
    for name in wanted:
        if name not in known:
            raise UnknownName(kind, name, tuple(sorted(known)))


def _is_changed(folder: Path, path: str) -> bool:
    """Whether a file was changed after its download, or was never downloaded: it could be replaced."""
    file, record = folder / path, folder / _RECORDS / f"{path}.metadata"
    return file.exists() and not (record.exists() and file.stat().st_mtime_ns <= record.stat().st_mtime_ns)


@contextlib.contextmanager
def _explained(repository: str) -> Iterator[Any]:
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise FetchFailed(repository, "needs the extra 'hub': pip install 'fib-bench[hub]'") from error
    # HTTPError of httpx or of its successor, whichever the installed version uses.
    transport: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    try:
        yield huggingface_hub
    except (transport, errors.LocalEntryNotFoundError, errors.HFValidationError) as error:
        text = " ".join(str(error.__cause__ or error).split())[:300] or type(error).__name__
        remedies = f"write OWNER/NAME or one of {', '.join(DATA_SETS)}, set HF_TOKEN for what is private"
        problem = f"the download stopped: {text}; {remedies}, or run the same command again to continue"
        raise FetchFailed(repository, problem) from error
