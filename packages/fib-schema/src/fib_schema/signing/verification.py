"""Verification of a whole data set: every file, compared with the manifest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

import attrs

from ..display import escape_line
from .errors import FileState, NotAsSigned
from .files import SignedFiles
from .keys import PublicKey
from .manifest import Manifest
from .reading import check_signed
from .tree import list_tree


@attrs.frozen
class FileReport:
    """The state of a file."""

    path: str
    state: FileState
    problem: str = ""

    def __str__(self) -> str:
        detail = f": {self.problem}" if self.problem else ""
        return f"{self.state:9} {escape_line(self.path)}{detail}"


@attrs.frozen
class Verification:
    """The comparison of a data set with a manifest."""

    signer: PublicKey
    manifest: Manifest
    files: tuple[FileReport, ...]
    """All files, sorted by path."""

    @property
    def differences(self) -> list[FileReport]:
        """The files that are not unchanged."""
        return [file for file in self.files if file.state is not FileState.UNCHANGED]

    def is_ok(self, *, allows_appended: bool = False) -> bool:
        """Whether all files are unchanged.

        Args:
            allows_appended: Whether grown and added files are accepted: programs that require the signature
                ignore what was appended.
        """
        harmless = {FileState.GROWN, FileState.ADDED} if allows_appended else set()
        return all(file.state in harmless for file in self.differences)

    @property
    def summary(self) -> str:
        """One line: the counts by state, the signer, the serial and the time of signing."""
        counts = Counter(file.state for file in self.files)
        states = ", ".join(f"{counts[state]} {state}" for state in FileState if counts[state]) or "no files"
        manifest = self.manifest
        return f"{states}; signed by {self.signer.fingerprint}, serial {manifest.serial}, {manifest.created}"


def verify(root: str | os.PathLike[str], signers: Sequence[PublicKey]) -> Verification:
    """Compare every file of a data set with the manifest of the first signer who has signed it.

    Raises:
        NotSigned: None has, or the manifest or its signature is not valid.
    """
    signed = SignedFiles.open(root, signers)
    reports = compare(root, signed.manifest)
    return Verification(signed.signer, signed.manifest, tuple(reports))


def compare(root: str | os.PathLike[str], manifest: Manifest) -> list[FileReport]:
    """The state of every file below the root, and of every file of the manifest, sorted by path."""
    known = {file.path for file in manifest.files}
    added = (
        FileReport(entry.path, FileState.ADDED, entry.problem or "")
        for entry in list_tree(root)
        if entry.path not in known
    )
    return sorted([*added, *_signed_states(os.fspath(root), manifest)], key=lambda report: report.path)


def _signed_states(root: str, manifest: Manifest) -> Iterator[FileReport]:
    for file in manifest.files:
        try:
            more = check_signed(root, file)
        except NotAsSigned as error:
            yield FileReport(file.path, error.state, error.problem)
        else:
            state = FileState.GROWN if more else FileState.UNCHANGED
            yield FileReport(file.path, state, f"{more} bytes after the signed {file.size}" if more else "")
