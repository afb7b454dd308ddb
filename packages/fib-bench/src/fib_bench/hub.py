"""Download of data sets from a hub, through `huggingface_hub` (extra ``hub``).

A download continues where an earlier one stopped. Each file is compared with the digest that the hub states before it
gets its name in the data set. A file of the data set that was changed here is never replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema import FibError, UnknownName
from fib_schema.files import atomic_write, make_folders

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

DATA_SETS: Mapping[str, str] = MappingProxyType({"flashinfer-trace": "flashinfer-ai/flashinfer-trace"})
"""Short names of public data sets, and their repositories."""
FOLDERS = ("definitions", "solutions", "workloads", "traces", "blob")
WORKING_FOLDER = ".fib-fetch"
"""Unfinished files and `_MANIFEST`, in the data set."""
_MANIFEST = "fetched.json"
_MANIFEST_VERSION = 1
_CONNECTIONS = 8
_CHUNK_BYTES = 1 << 20
_COMPONENT = r"(?!\.)[^/\\\x00-\x1f\x7f]{1,200}"
_SAFE = re.compile(rf"{_COMPONENT}(/{_COMPONENT})*")
_HIDDEN = re.compile(r"(.*/)?\.(?!\.?(/|$))[^/]*(/.*)?")
_SHOWN = 5
Observer = Callable[["Progress"], None]


@attrs.frozen
class FetchFailed(FibError, RuntimeError):
    """A data set that could not be downloaded, or whose files are not what the hub states."""

    repository: str
    problem: str
    """The problem and its remedy."""

    def __str__(self) -> str:
        return f"fetch {self.repository}: {self.problem}"


@attrs.frozen
class Progress:
    """The state of a download: files and bytes that are there, of all."""

    files: int
    all_files: int
    size_bytes: int
    all_bytes: int


@attrs.frozen
class Fetched:
    """A data set that is complete as far as it was wanted."""

    repository: str
    revision: str
    """The commit."""
    folder: Path
    files: int
    size_bytes: int
    downloaded_files: int


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
        """The chosen paths.

        Raises:
            UnknownName: An op_type or a definition matches nothing.
        """
        paths = list(paths)
        for kind, wanted, known in (
            ("op_type", self.op_types, {path.split("/")[1] for path in paths if path.startswith("definitions/")}),
            ("definition", self.definitions, {_stem(path) for path in paths if path.startswith("definitions/")}),
        ):
            for name in wanted:
                if name not in known:
                    raise UnknownName(kind, name, tuple(sorted(known)))
        return [path for path in paths if self._has(path)]

    def _has(self, path: str) -> bool:
        top, *folders = path.split("/")[:-1] or [""]
        if not top:
            return True
        if top == "blob" and not self.blobs:
            return False
        is_chosen = not self.op_types or not {*folders}.isdisjoint(self.op_types)
        return is_chosen and (not self.definitions or not {*folders, _stem(path)}.isdisjoint(self.definitions))


@attrs.frozen
class _RemoteFile:
    path: str
    size_bytes: int
    digest: str
    """``sha256:...`` of the content, or ``git:...``, the hash of git."""

    def matches(self, file: Path) -> bool:
        """Whether a file has this content."""
        return file.stat().st_size == self.size_bytes and _digest(file, self.digest.partition(":")[0]) == self.digest


def fetch(
    name: str,
    folder: Path,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    selection: Selection | None = None,
    observe: Observer | None = None,
) -> Fetched:
    """Download a data set, or what is missing of it.

    Args:
        name: One of `DATA_SETS`, or a repository ``OWNER/NAME``.
        folder: The data set; made if it is missing.
        revision: A branch, tag or commit; by default the newest commit of the main branch.
        endpoint: The address of the hub; by default that of `huggingface_hub`.
        selection: The files to download; by default all.
        observe: Called with the progress after each file.

    Raises:
        FetchFailed: The hub does not answer or has no such data set, a file is not what the hub states, or a file
            here was changed.
        UnknownName: The name is a misspelt short name, or the selection names something that the data set lacks.
        OSError: A file cannot be written.
    """
    unknown = UnknownName("data set", name, tuple(DATA_SETS))
    if name not in DATA_SETS and "/" not in name and unknown.near_misses:
        raise unknown
    repository = DATA_SETS.get(name, name)
    commit, files = _list_files(repository, revision, endpoint)
    chosen = set((selection or Selection()).of(file.path for file in files))
    files = [file for file in files if file.path in chosen]
    known = _read_manifest(folder)
    missing = _missing(repository, folder, files, known)
    _check_space(repository, folder, missing)
    make_folders(folder / WORKING_FOLDER)
    with _quiet_bars():
        _download(repository, commit, endpoint, folder, missing, _Counter(files, missing, observe or (lambda _: None)))
    _write_manifest(folder, repository, commit, {**known, **{file.path: file.digest for file in files}})
    shutil.rmtree(folder / WORKING_FOLDER / ".cache", ignore_errors=True)  # the downloader's records of finished files
    return Fetched(repository, commit, folder, len(files), sum(f.size_bytes for f in files), len(missing))


# -- the hub -------------------------------------------------------------------------------------


def _list_files(repository: str, revision: str | None, endpoint: str | None) -> tuple[str, list[_RemoteFile]]:
    """The commit and the files of a data set."""
    hub = _hub(repository)
    with _explained(repository):
        info = hub.HfApi(endpoint=endpoint).dataset_info(repository, revision=revision, files_metadata=True)
    siblings = info.siblings or []
    files = [_remote(repository, sibling) for sibling in siblings if not _HIDDEN.fullmatch(sibling.rfilename)]
    if twice := [path for path, count in Counter(file.path for file in files).items() if count > 1]:
        raise FetchFailed(repository, f"the hub lists {twice[0]!r} twice; nothing is fetched")
    inside = [file for file in files if "/" not in file.path or file.path.startswith(tuple(f"{f}/" for f in FOLDERS))]
    if not any(file.path.startswith("definitions/") for file in inside):
        raise FetchFailed(repository, "has no folder 'definitions'; it is not a data set of kernels")
    return str(info.sha), inside


def _remote(repository: str, sibling: RepoSibling) -> _RemoteFile:
    path, size, lfs = sibling.rfilename, sibling.size, sibling.lfs
    if not _SAFE.fullmatch(path):
        raise FetchFailed(
            repository, f"names the file {path!r}, which could be outside of the folder; nothing is fetched"
        )
    digest = f"sha256:{lfs.sha256}" if lfs else f"git:{sibling.blob_id}"
    if size is None or digest == "git:None":
        raise FetchFailed(repository, f"the hub states no size and digest of {path!r}; it cannot be checked")
    return _RemoteFile(path, size, digest)


def _download(
    repository: str, commit: str, endpoint: str | None, folder: Path, files: Sequence[_RemoteFile], counter: _Counter
) -> None:
    """Download files in several threads. The first failure ends it; what is finished stays."""
    pool = ThreadPoolExecutor(_CONNECTIONS)
    try:
        tasks = {pool.submit(_download_one, repository, commit, endpoint, folder, file): file for file in files}
        for task in as_completed(tasks):
            task.result()
            counter.add(tasks[task])
    finally:
        pool.shutdown(cancel_futures=True)


def _download_one(repository: str, commit: str, endpoint: str | None, folder: Path, file: _RemoteFile) -> None:
    """Download a file into the working folder, check it, and give it its name in the data set."""
    with _explained(repository):
        fetched = Path(
            _hub(repository).hf_hub_download(
                repository,
                file.path,
                repo_type="dataset",
                revision=commit,
                endpoint=endpoint,
                local_dir=folder / WORKING_FOLDER,
            )
        )
    if not file.matches(fetched):
        fetched.unlink()
        problem = f"{file.path!r} is not what the hub states ({file.size_bytes} bytes, {file.digest}); fetch it again"
        raise FetchFailed(repository, problem)
    target = folder / file.path
    make_folders(target.parent)
    fetched.replace(target)


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


@contextlib.contextmanager
def _quiet_bars() -> Iterator[None]:
    """Switch off the client's bars, one for each file."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    were_disabled = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            enable_progress_bars()


# -- the folder ----------------------------------------------------------------------------------


def _missing(
    repository: str, folder: Path, files: Iterable[_RemoteFile], known: Mapping[str, str]
) -> list[_RemoteFile]:
    """The files to download: absent ones, and those that are as an earlier fetch left them and differ now."""
    missing: list[_RemoteFile] = []
    changed: list[_RemoteFile] = []
    for file in files:
        here = folder / file.path
        if not here.exists():
            missing.append(file)
        elif not file.matches(here):
            before = known.get(file.path, "")
            is_as_fetched = before and _digest(here, before.partition(":")[0]) == before
            (missing if is_as_fetched else changed).append(file)
    if changed:
        names = ", ".join(file.path for file in changed[:_SHOWN])
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        problem = (
            f"{names}{more} in {folder} differ from the hub's; fetch into another folder, then fib-bench report merge"
        )
        raise FetchFailed(repository, problem)
    return missing


def _check_space(repository: str, folder: Path, files: Iterable[_RemoteFile]) -> None:
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    wanted, free = sum(file.size_bytes for file in files), shutil.disk_usage(place).free
    if wanted > free:
        raise FetchFailed(repository, f"needs {wanted} bytes, {free} are free; --no-blobs or --op-types fetch less")


def _digest(file: Path, kind: str) -> str:
    """The digest of a file: ``sha256`` of its content, or ``git``, with git's header."""
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(f"blob {file.stat().st_size}\0".encode())
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return f"{kind}:{digest.hexdigest()}"


def _read_manifest(folder: Path) -> dict[str, str]:
    """The digests of the files that earlier fetches wrote; empty if there is no manifest that can be used."""
    try:
        found = json.loads((folder / WORKING_FOLDER / _MANIFEST).read_text("utf-8"))
        files = found["files"] if found["version"] == _MANIFEST_VERSION else {}
        return {str(path): str(digest) for path, digest in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write_manifest(folder: Path, repository: str, commit: str, files: Mapping[str, str]) -> None:
    manifest = {"version": _MANIFEST_VERSION, "repository": repository, "revision": commit, "files": dict(files)}
    atomic_write(folder / WORKING_FOLDER / _MANIFEST, json.dumps(manifest).encode())


@attrs.define
class _Counter:
    files: Sequence[_RemoteFile]
    missing: Sequence[_RemoteFile]
    observe: Observer
    _done: Progress = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        size, left = (sum(file.size_bytes for file in files) for files in (self.files, self.missing))
        self._done = Progress(len(self.files) - len(self.missing), len(self.files), size - left, size)
        self.observe(self._done)

    def add(self, file: _RemoteFile) -> None:
        """Count a finished file."""
        done = self._done
        self._done = attrs.evolve(done, files=done.files + 1, size_bytes=done.size_bytes + file.size_bytes)
        self.observe(self._done)


def _stem(path: str) -> str:
    return PurePosixPath(path).stem
