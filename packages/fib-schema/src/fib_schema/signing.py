"""Signed data sets: reading of files whose hashes an owner has signed, with ``sha256sum`` and ``ssh-keygen``.

``signatures/sha256sums`` lists files as ``sha256sum`` prints them, and ``signatures/sha256sums.sig`` is its signature
by ``ssh-keygen -Y sign -n fib-data-set``. `SignedFiles` reads files for programs that must use what was signed and
nothing else. See "How a data set is signed" in the documentation.
"""

from __future__ import annotations

import base64
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
from .errors import FibError, InvalidField
from .files import read_regular

__all__ = ["NotAsSigned", "NotSigned", "SignedFiles", "read_public_keys"]

NAMESPACE = "fib-data-set"
"""Signatures for other purposes, such as commits, are not valid for a data set."""
SUMS = "signatures/sha256sums"
SIGNATURE = f"{SUMS}.sig"
_MAX_SUMS_BYTES = 64 << 20  # enough for 250,000 files
_OWNER = "owner"
_KEY_TYPES = ("ssh-", "ecdsa-", "sk-")
_REMEDY = "pass the .pub file that 'ssh-keygen -t ed25519 -f FILE' writes"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]((?:[^./\n\\][^/\n\\]*/)+[^./\n\\][^/\n\\]*)")
"""A hash and a path below a folder, without hidden parts: no reader of a data set takes others."""


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
    """The public keys in a text or a file, one in each line, without their comments.

    Raises:
        InvalidField: The file cannot be read, has no key, or a line is no key.
    """
    source, text = "public key", os.fspath(given)
    if isinstance(given, os.PathLike) or not ("\n" in text or text.startswith(_KEY_TYPES)):
        source = text or source
        try:
            text = read_regular(text, 1 << 16).decode(errors="replace")
        except OSError as error:
            raise InvalidField(source, f"the public key cannot be read: {error.strerror}; {_REMEDY}") from error
    keys: dict[str, None] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        kind, content, *_ = [*line.split(), ""]
        if not line.startswith("#"):
            if not _is_public_key(kind, content):
                raise InvalidField(source, f"{line[:40]!r} is no OpenSSH public key; {_REMEDY}")
            keys[f"{kind} {content}"] = None
    if not keys:
        raise InvalidField(source, f"holds no key; {_REMEDY}")
    return tuple(keys)


def _is_public_key(kind: str, content: str) -> bool:
    """Whether the first two words of a line are a key: the data repeat its type behind the length of that."""
    try:
        data = base64.b64decode(content, validate=True)
    except ValueError:
        return False
    return kind.startswith(_KEY_TYPES) and "-cert-" not in kind and data[4 : 4 + len(kind)] == kind.encode()


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
        """Read the list of files and verify that one of the signers, by their public keys, has signed it.

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
