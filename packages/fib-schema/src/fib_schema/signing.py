"""Signed data sets: reading of files whose hashes an owner has signed, with ``sha256sum`` and ``ssh-keygen``.

``signatures/sha256sums`` lists files as ``sha256sum`` prints them, and ``signatures/sha256sums.sig`` is its signature
by ``ssh-keygen -Y sign -n fib-data-set``. `SignedFiles` reads files for programs that must use what was signed and
nothing else. See "How a data set is signed" in the documentation.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import attrs

from .display import escape_line
from .errors import FibError
from .files import read_regular

__all__ = ["InvalidKey", "NotAsSigned", "NotSigned", "SignedFiles", "read_public_keys"]

NAMESPACE = "fib-data-set"
"""Signatures for other purposes, such as commits, are not valid for a data set."""
SUMS = "signatures/sha256sums"
SIGNATURE = f"{SUMS}.sig"
_MAX_SUMS_BYTES = 64 << 20  # enough for 250,000 files
_OWNER = "owner"
_KEY_TYPES = ("ssh-", "ecdsa-", "sk-")
_LINE = re.compile(r"([0-9a-f]{64}) [ *]((?:[^./\n\\][^/\n\\]*/)+[^./\n\\][^/\n\\]*)")
"""A hash and a path below a folder, without hidden parts: no reader of a data set takes others."""


@attrs.frozen
class InvalidKey(FibError, ValueError):
    """A key that cannot be used."""

    source: str
    problem: str

    def __str__(self) -> str:
        return f"{self.source}: {self.problem}"


@attrs.frozen
class NotSigned(FibError, ValueError):
    """A data set without a valid signature of a required key."""

    root: str
    problem: str

    def __str__(self) -> str:
        return f"data set {self.root!r} is not signed as required: {self.problem}"


@attrs.frozen
class NotAsSigned(FibError, ValueError):
    """A file that is not what was signed."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{escape_line(self.path)}: {self.problem}"


def read_public_keys(given: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read public keys, one in each line, without their comments.

    Args:
        given: The text of keys, or the path of a file with such text. Empty lines and lines with ``#`` are skipped.

    Raises:
        InvalidKey: The file cannot be read, has no key, or a line is no key.
    """
    source, text = "public key", os.fspath(given)
    if isinstance(given, os.PathLike) or not ("\n" in text or text.startswith(_KEY_TYPES)):
        source = text or source
        try:
            text = read_regular(text, 1 << 16).decode()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            problem = f"the public key cannot be read: {reason}; pass the path of a .pub file"
            raise InvalidKey(source, problem) from error
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    if "PRIVATE KEY-----" in text:
        raise InvalidKey(source, "is a private key; pass the public one, a file whose name ends in .pub")
    if not lines:
        raise InvalidKey(source, "holds no key; pass the .pub file that 'ssh-keygen' wrote")
    return tuple(dict.fromkeys(_public_key(line, source) for line in lines))


def _public_key(line: str, source: str) -> str:
    """A line of a ``.pub`` file without its comment."""
    kind, content, *_ = [*line.split(), "", ""]
    try:
        data = base64.b64decode(content, validate=True) if kind.startswith(_KEY_TYPES) else b""
    except binascii.Error:
        data = b""
    if not data or "-cert-" in kind or data[4 : 4 + len(kind)] != kind.encode():  # after the length of the type
        remedy = "pass the content of a .pub file; 'ssh-keygen -t ed25519 -f FILE' makes a key"
        raise InvalidKey(source, f"{line.strip()[:40]!r} is no OpenSSH public key; {remedy}")
    return f"{kind} {content}"


@attrs.frozen
class SignedFiles:
    """The files of a data set as its owner signed them; made by `open`."""

    root: str
    hashes: Mapping[str, str]
    """The SHA-256 of each signed file, by path below the root, sorted."""
    digest: str
    """Differs for other signatures and other files."""

    @classmethod
    def open(cls, root: str | os.PathLike[str], signers: Sequence[str]) -> Self:
        """Read the list of files and verify that one of the signers has signed it.

        Args:
            root: The data set.
            signers: Public keys, as `read_public_keys` returns them.

        Raises:
            NotSigned: None has, or ``ssh-keygen`` is missing.
        """
        place = os.fspath(root)
        data, signature = (_read_signature_file(place, name) for name in (SUMS, SIGNATURE))
        _verify(place, data, signature, signers)
        lines = data.decode("utf-8", "surrogateescape").split("\n")
        found = sorted((match[2], match[1]) for line in lines if (match := _LINE.fullmatch(line)))
        return cls(place, dict(found), hashlib.sha256(signature + b"\0" + data).hexdigest())

    def paths(self, folder: str, suffix: str) -> list[str]:
        """The signed paths below a folder, sorted; whether the files exist is not checked."""
        return [path for path in self.hashes if path.startswith(folder + "/") and path.endswith(suffix)]

    def read(self, path: str, limit_bytes: int) -> bytes:
        """The content of a file, of at most `limit_bytes`.

        The returned bytes are those whose hash was compared, and no later ones.

        Raises:
            NotAsSigned: The file was not signed, is missing, or has changed.
        """
        if path not in self.hashes:
            raise NotAsSigned(path, "not signed: added after signing")
        try:
            data = read_regular(f"{self.root}/{path}", limit_bytes)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAsSigned(path, "signed, but missing") from error
        except OSError as error:
            raise NotAsSigned(path, f"changed after signing: it cannot be read: {error.strerror or error}") from error
        if (found := hashlib.sha256(data).hexdigest()) != self.hashes[path]:
            problem = f"changed after signing: its sha256 is {found[:16]}, and {self.hashes[path][:16]} was signed"
            raise NotAsSigned(path, problem)
        return data


def _read_signature_file(root: str, name: str) -> bytes:
    try:
        return read_regular(os.path.join(root, name), _MAX_SUMS_BYTES)
    except FileNotFoundError as error:
        raise NotSigned(root, f"there is no {name}; sign the set with ssh-keygen") from error
    except OSError as error:
        raise NotSigned(root, f"{name} cannot be read: {error.strerror or error}") from error


def _verify(root: str, data: bytes, signature: bytes, signers: Sequence[str]) -> None:
    """Verify that the key of a signer made a signature."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise NotSigned(root, "ssh-keygen is not installed; install OpenSSH's client, 8.1 or later")
    with tempfile.TemporaryDirectory(prefix="fib-verify-") as folder:
        allowed, signature_file = Path(folder, "allowed"), Path(folder, "signature")
        allowed.write_text("".join(f'{_OWNER} namespaces="{NAMESPACE}" {key}\n' for key in signers))
        signature_file.write_bytes(signature)
        words = ("-Y", "verify", "-f", allowed, "-I", _OWNER, "-n", NAMESPACE, "-s", signature_file)
        done = subprocess.run([program, *words], input=data, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise NotSigned(root, f"{SIGNATURE} is no signature of {SUMS} by {', '.join(signers)} ({reason[:200]})")
