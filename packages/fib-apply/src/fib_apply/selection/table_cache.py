"""Table cache: the content of tables on disk, valid while no file of the data set and no relevant setting changes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import attrs
from fib_schema import DataSetNotFound, Definition, Solution
from fib_schema.files import explain_os_error
from fib_schema.package_init import installed_version

from ..cache_files import CACHE_FOLDER, publish, read_published
from ..config import ApplyConfigRegistry
from ..key import ApplyKeyFactory
from ..log import logger
from .dataset_files import DatasetFiles, digest_of
from .measurements import SelectionCriteria
from .records import read_unchanged
from .table_builder import build_from_files
from .table_format import FORMAT, Content, InvalidTable, Place, decode_table, encode_table

R = TypeVar("R", Definition, Solution)


@attrs.frozen
class TableCache:
    """Loads the content of a table, or builds it.

    Files are listed before they are read. A change in between is read, but the content is stored under the state
    of the older files, so that the next process builds it again.
    """

    root: Path
    config: ApplyConfigRegistry
    cache_root: str | os.PathLike[str]
    signers: tuple[str, ...] | None = None
    """The keys of whose owners one must have signed the data set; None if it need not be signed."""

    def load_or_build(self) -> Content:
        """The cached content if it is valid, else a new one.

        Raises:
            DataSetNotFound: The root is not a directory.
            NotSigned: The data set is not signed as required.
        """
        if not os.path.isdir(self.root):  # noqa: PTH112 never raises
            raise DataSetNotFound(str(self.root))
        files = self._list()
        digest = self._digest(files)
        cached = self._cached(files, digest)
        return self._build(files, digest) if cached is None else cached

    def current_digest(self) -> str:
        """The digest that a table of the files as they are now would have.

        Raises:
            DataSetNotFound: The root is not a directory.
            NotSigned: The data set is not signed as required.
        """
        if not os.path.isdir(self.root):  # noqa: PTH112 never raises
            raise DataSetNotFound(str(self.root))
        return self._digest(self._list())

    def build(self) -> Content:
        """A new content, whatever is cached."""
        files = self._list()
        return self._build(files, self._digest(files))

    def _list(self) -> DatasetFiles:
        if self.signers is None:
            return DatasetFiles.of(self.root)
        from .verified_files import VerifiedFiles

        return VerifiedFiles.signed_by(self.root, self.signers)

    def read_record(self, place: Place, cls: type[R]) -> R:
        """Read a record of the data set.

        Raises:
            InvalidRecord: The file has changed since the table was made, or cannot be read.
        """
        path = self.root / os.fsdecode(place.path)
        if self.signers is None:
            return read_unchanged(path, cls, place.digest)
        from .verified_files import read_unlinked

        return read_unchanged(path, cls, place.digest, read_unlinked)

    def _build(self, files: DatasetFiles, digest: str) -> Content:
        header, segments = build_from_files(files, self.config, digest)
        try:
            publish(Path(self.cache_root), self._name(files), encode_table(header, [segments]))
        except OSError as error:
            logger.warning("the table cannot be cached and will be rebuilt each time: %s", explain_os_error(error))
        return header, segments

    def _cached(self, files: DatasetFiles, digest: str) -> Content | None:
        name = self._name(files)
        try:
            header, segments = decode_table(read_published(Path(self.cache_root), name))
        except FileNotFoundError:
            return None
        except (OSError, InvalidTable) as error:
            path = Path(self.cache_root) / CACHE_FOLDER / name
            logger.warning("the cached table %s is not usable (%s) and is rebuilt", path, error)
            return None
        return (header, segments) if header.digest == digest else None

    def _name(self, files: DatasetFiles) -> str:
        """One file per data set and settings, so that a new content replaces a stale one."""
        name = digest_of([os.fsencode(files.root), *self._settings()]).hex()[:40]
        return f"{name}.table"

    def _digest(self, files: DatasetFiles) -> str:
        """The digest of everything that the content depends on."""
        registered = ApplyKeyFactory.registered()
        builders = [
            f"{op}={cls.__module__}.{cls.__qualname__} {_source_of(cls)}" for op, cls in sorted(registered.items())
        ]
        parts: list[str | bytes] = [
            FORMAT,
            installed_version("fib-apply"),
            os.fsencode(files.root),
            files.fingerprint(),
        ]
        return digest_of([*parts, "settings", *self._settings(), "builders", *builders]).hex()

    def _settings(self) -> Iterator[str]:
        yield repr(SelectionCriteria.from_config(self.config.default))
        for name, of_definition in sorted(self.config.per_definition.items()):
            yield name
            yield repr(SelectionCriteria.from_config(of_definition))
        if self.signers is not None:
            yield from ("signed by", *self.signers)


def _source_of(cls: type) -> str:
    """The source of a class and its bases, as far as there is one: a changed builder makes other keys."""
    texts = []
    for base in cls.__mro__[:-1]:
        if base.__module__.partition(".")[0] == "fib_apply":
            continue  # the package's version covers it; reading its source takes longer than loading the table
        try:
            texts.append(inspect.getsource(base))
        except (OSError, TypeError):  # defined interactively, or in an extension
            texts.append(base.__qualname__)
    return "\n".join(texts)
