"""Verified files: the files of a data set as far as its owner signed them. Imported only if a signature is required."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

import attrs
from fib_schema.display import escape_line
from fib_schema.signing import NotAsSigned, PublicKey, SignedFiles
from fib_schema.signing.reading import NotRegular, read_regular

from .dataset_files import FOLDERS, DatasetFiles, Ignored, digest_of

_MAX_RECORD_BYTES = 64 << 20
_MAX_UNSIGNED = 1000
"""Unsigned files that are listed one by one; there may be any number."""


@attrs.define
class VerifiedFiles(DatasetFiles):
    """The files that a manifest lists. Each is verified when it is read, on the bytes that are used."""

    signed: SignedFiles = attrs.field(kw_only=True)

    @classmethod
    def signed_by(cls, root: str | os.PathLike[str], signers: Sequence[str]) -> Self:
        """Verify the manifest of a data set and list its files.

        Raises:
            NotSigned: None of the signers has signed it, or the manifest or its signature is not valid.
        """
        listed = DatasetFiles.of(root)
        signed = SignedFiles.open(listed.root, [PublicKey(text) for text in signers])
        files = {
            folder: [f"{listed.root}{os.sep}{path}" for path in signed.paths(folder, suffix)]
            for folder, suffix in FOLDERS.items()
        }
        unsigned = [p for paths in listed.files.values() for p in paths if not signed.covers(listed.relative(p))]
        ignored = [f"{escape_line(p)}: ignored: not signed: added after signing" for p in unsigned[:_MAX_UNSIGNED]]
        if len(unsigned) > _MAX_UNSIGNED:
            ignored.append(f"{listed.root}: ignored: {len(unsigned) - _MAX_UNSIGNED} more files that are not signed")
        return cls(listed.root, files, [*listed.problems, *ignored], states=listed._states, signed=signed)  # noqa: SLF001 of its base class

    def read(self, path: str) -> bytes:
        """The signed content of a file. If it held traces and cannot be verified, their definitions are blocked."""
        try:
            return self.signed.read(self.relative(path))
        except NotAsSigned as error:
            for definition in error.definitions:
                self.blocked.setdefault(definition, f"{path} is {error.state}, and its traces were signed")
            raise Ignored(error.problem) from error

    def fingerprint(self) -> bytes:
        """Fingerprint of the state of all files, the signer and the manifest."""
        return digest_of([super().fingerprint(), self.signed.digest])


def read_unlinked(path: str) -> bytes:
    """Read a file that may have been replaced by a link or a pipe; the caller compares its content.

    Raises:
        Ignored: It is no regular file, or larger than any record.
    """
    try:
        return read_regular(path, _MAX_RECORD_BYTES)
    except NotRegular as error:
        raise Ignored(f"it {error}") from error
