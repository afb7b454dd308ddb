"""Signed files: reads the files of a data set for programs that must use what was signed and nothing else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Self

import attrs

from .envelope import read_envelope
from .errors import FileState, NotAsSigned, NotSigned
from .keys import PublicKey
from .manifest import Manifest, SignedFile
from .reading import read_signed


@attrs.frozen
class SignedFiles:
    """The files of a data set as one owner signed them; made by `open`."""

    root: str
    signer: PublicKey
    manifest: Manifest
    digest: bytes
    """Differs for other signers and other manifests."""
    _files: dict[str, SignedFile]

    @classmethod
    def open(cls, root: str | os.PathLike[str], signers: Sequence[PublicKey]) -> Self:
        """Verify the manifest of the first signer who has signed the set; those of others are not used.

        Raises:
            NotSigned: None has, or the manifest or its signature is not valid.
        """
        for signer in signers:
            found = read_envelope(root, signer)
            if found is not None:
                manifest, data = found
                digest = hashlib.sha256(signer.text.encode() + b"\0" + data).digest()
                return cls(os.fspath(root), signer, manifest, digest, {file.path: file for file in manifest.files})
        names = ", ".join(signer.fingerprint for signer in signers)
        raise NotSigned(os.fspath(root), f"it has no signature by {names}; sign it with 'fib-schema sign'")

    def paths(self, folder: str, suffix: str) -> list[str]:
        """The signed paths below a folder, sorted; whether the files exist is not checked."""
        return [path for path in self._files if path.startswith(folder + "/") and path.endswith(suffix)]

    def covers(self, path: str) -> bool:
        """Whether a path is in the manifest."""
        return path in self._files

    def read(self, path: str) -> bytes:
        """The content of a file; of a file of lines that has grown, the signed part.

        Raises:
            NotAsSigned: The file was not signed, is missing, or has changed.
        """
        if path not in self._files:
            raise NotAsSigned(path, FileState.ADDED, "not signed: added after signing")
        return read_signed(self.root, self._files[path])
