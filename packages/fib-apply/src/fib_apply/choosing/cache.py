"""The content of tables on disk: valid while no file of the data set and no setting that matters changes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
from fib_schema import DataSetNotFound
from fib_schema.package_init import installed_version

from ..config import CACHE_FOLDER, ApplyConfigRegistry
from ..key import ApplyKeyFactory
from ..log import logger
from .listing import Listing, digest_of
from .making import build_from_files
from .measurements import Rules
from .segments import FORMAT, Content, NotUsable, decode_table, encode_table, publish


@attrs.frozen
class CachedContent:
    """Makes a table's content, or finds what was made before.

    The files are listed before they are read: what changes in between is read, and the content is
    then taken for that of the older files, so that the next one to come makes it anew.
    """

    root: Path
    config: ApplyConfigRegistry
    cache_root: str | os.PathLike[str]

    def load_or_build(self) -> Content:
        """From the cache if that holds, else new.

        Raises:
            DataSetNotFound: The root is no directory.
        """
        if not self.root.is_dir():
            raise DataSetNotFound(str(self.root))
        listing = Listing.of(self.root)
        digest = self._digest(listing)
        found = self._cached(listing, digest)
        return self._build(listing, digest) if found is None else found

    def build(self) -> Content:
        """A new one, whatever is in the cache."""
        listing = Listing.of(self.root)
        return self._build(listing, self._digest(listing))

    def _build(self, listing: Listing, digest: str) -> Content:
        header, segments = build_from_files(listing, self.config, digest)
        try:
            publish(self._file(listing), encode_table(header, [segments]))
        except OSError as error:
            logger.warning("the table is not kept, and will be made anew each time: %s", error)
        return header, segments

    def _cached(self, listing: Listing, digest: str) -> Content | None:
        path = self._file(listing)
        try:
            header, segments = decode_table(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, NotUsable) as error:
            logger.warning("the cached table %s is not used (%s), and is made anew", path, error)
            return None
        return (header, segments) if header.digest == digest else None

    def _file(self, listing: Listing) -> Path:
        """One per data set and settings, so that what is stale is replaced."""
        name = digest_of([os.fsencode(listing.root), *self._settings()]).hex()[:40]
        return Path(self.cache_root) / CACHE_FOLDER / f"{name}.table"

    def _digest(self, listing: Listing) -> str:
        """Of all that the content depends on."""
        registered = ApplyKeyFactory.registered()
        builders = [
            f"{op}={cls.__module__}.{cls.__qualname__} {_source_of(cls)}" for op, cls in sorted(registered.items())
        ]
        parts: list[str | bytes] = [FORMAT, os.fsencode(listing.root), listing.fingerprint(), "settings"]
        return digest_of([*parts, *self._settings(), "builders", *builders]).hex()

    def _settings(self) -> Iterator[str]:
        yield repr(Rules.from_config(self.config.default))
        for name, of_definition in sorted(self.config.per_definition.items()):
            yield name
            yield repr(Rules.from_config(of_definition))


def _source_of(cls: type) -> str:
    """The text of a class and of those that it rests on, as far as there is one: a changed one makes other keys."""
    texts = [
        installed_version("fib-apply")
    ]  # for those of this package, whose text takes longer to find than the table
    for base in cls.__mro__[:-1]:
        if base.__module__.partition(".")[0] == "fib_apply":
            continue
        try:
            texts.append(inspect.getsource(base))
        except (OSError, TypeError):  # made in a console, or of an extension
            texts.append(base.__qualname__)
    return "\n".join(texts)
