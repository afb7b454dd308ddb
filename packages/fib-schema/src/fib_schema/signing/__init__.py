"""Signatures of data sets by their owners. Needs the extra ``signing``, which is imported when keys are used.

`sign` writes a signed list of all files, `verify` compares the files with it, and `SignedFiles` reads files
for programs that must use what was signed and nothing else. See "How a data set is signed" in the documentation.
"""

from __future__ import annotations

from .errors import CannotSign, FileState, InvalidKey, NotAsSigned, NotSigned
from .files import SignedFiles
from .keys import PrivateKey, PublicKey, read_public_keys
from .manifest import Manifest, SignedFile
from .owner import sign
from .verification import FileReport, Verification, verify

__all__ = [
    "CannotSign",
    "FileReport",
    "FileState",
    "InvalidKey",
    "Manifest",
    "NotAsSigned",
    "NotSigned",
    "PrivateKey",
    "PublicKey",
    "SignedFile",
    "SignedFiles",
    "Verification",
    "read_public_keys",
    "sign",
    "verify",
]
