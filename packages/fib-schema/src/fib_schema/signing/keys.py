"""Keys of owners: Ed25519 in the file formats of OpenSSH, so that existing keys and tools can be used."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs

from ..files import BINARY, atomic_write
from .errors import InvalidKey, PassphraseNeeded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_TYPE = "ssh-ed25519"
_OTHER_TYPES = ("ssh-", "ecdsa-", "sk-")
_MAX_KEY_BYTES = 1 << 16
MISSING_EXTRA = "signatures need the extra 'signing'; install it with: pip install 'fib-schema[signing]'"


@attrs.frozen
class PublicKey:
    """The public key of an owner."""

    text: str
    """As in a ``.pub`` file, without a comment."""

    @classmethod
    def parse(cls, text: str, source: str = "public key") -> Self:
        """Parse one line of a ``.pub`` file.

        Raises:
            InvalidKey: It is not an Ed25519 key, or the extra ``signing`` is not installed.
        """
        words = text.split()
        if not words or words[0] != _TYPE:
            kind = words[0] if words and words[0].startswith(_OTHER_TYPES) else "no OpenSSH public key"
            raise InvalidKey(source, f"is {kind[:40]!r}, and must be {_TYPE!r}; make one with 'fib-schema keygen'")
        serialization = import_serialization()
        try:
            key = serialization.load_ssh_public_key(" ".join(words[:2]).encode())
        except ValueError as error:
            raise InvalidKey(source, f"is not a valid {_TYPE} key: {error}") from error
        encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        return cls(key.public_bytes(encoding, form).decode())

    @property
    def id(self) -> str:
        """64 hexadecimal digits."""
        return hashlib.sha256(self._blob).hexdigest()

    @property
    def fingerprint(self) -> str:
        """As ``ssh-keygen -l`` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self._blob).digest()).decode().rstrip("=")

    @property
    def _blob(self) -> bytes:
        return base64.b64decode(self.text.split()[1])


def read_public_keys(given: str | os.PathLike[str]) -> tuple[PublicKey, ...]:
    """Read public keys, one in each line.

    Args:
        given: The text of keys, or the path of a file with such text. Empty lines and lines with ``#`` are skipped.

    Raises:
        InvalidKey: The file cannot be read, has no key, or a line is not an Ed25519 key.
    """
    source, text = "public key", os.fspath(given)
    if isinstance(given, os.PathLike) or not _is_key_text(text):
        source, text = text, _read_text(text)
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    if "PRIVATE KEY-----" in text:
        raise InvalidKey(source, "is a private key; pass the public one, a file whose name ends in .pub")
    if not lines:
        raise InvalidKey(source, "holds no key; pass the .pub file that 'fib-schema keygen' wrote")
    return tuple(dict.fromkeys(PublicKey.parse(line, source) for line in lines))


def _is_key_text(text: str) -> bool:
    return "\n" in text or (text.lstrip().startswith(_OTHER_TYPES) and len(text.split()) > 1)


def _read_text(path: str) -> str:
    if not path:
        raise InvalidKey("public key", "is empty; pass a key file or the text of a key")
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_KEY_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidKey(path, f"the public key cannot be read: {reason}") from error


@attrs.frozen
class PrivateKey:
    """The private key of an owner."""

    public: PublicKey
    key: Ed25519PrivateKey = attrs.field(repr=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str], passphrase: str | None = None) -> Self:
        """Load a private key in OpenSSH's format.

        Raises:
            PassphraseNeeded: The key is encrypted, and there is no passphrase.
            InvalidKey: It cannot be read, others than its owner can read it, or it is not an Ed25519 key.
        """
        source, serialization = os.fspath(path), import_serialization()
        data = _read_private(source)
        try:
            key = serialization.load_ssh_private_key(data, None if passphrase is None else passphrase.encode())
        except TypeError as error:
            if passphrase is None:
                raise PassphraseNeeded(source, "is encrypted; pass its passphrase") from error
            raise InvalidKey(source, "is not encrypted; pass no passphrase") from error
        except Exception as error:  # of a wrong passphrase: several types
            raise InvalidKey(
                source, f"is not a private key in OpenSSH's format, or the passphrase is wrong: {error}"
            ) from error
        return cls._from_key(key, source)

    @classmethod
    def generate(cls, path: str | os.PathLike[str], passphrase: str | None = None, comment: str = "") -> Self:
        """Make a key pair: the private key with mode 0600, and the public one beside it with the suffix ``.pub``.

        Raises:
            InvalidKey: A file exists, or the passphrase is empty.
            OSError: A file cannot be written.
        """
        serialization = import_serialization()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        public_path = Path(f"{os.fspath(path)}.pub")
        if passphrase == "":
            raise InvalidKey(os.fspath(path), "the passphrase is empty; pass another one, or none")
        made = cls._from_key(Ed25519PrivateKey.generate(), os.fspath(path))
        encryption = (
            serialization.NoEncryption()
            if passphrase is None
            else serialization.BestAvailableEncryption(passphrase.encode())
        )
        data = made.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, encryption)
        line = " ".join([made.public.text, *comment.split()]) + "\n"
        for name in (path, public_path):
            if os.path.lexists(name):
                raise InvalidKey(os.fspath(name), "exists; keys are never overwritten")
        atomic_write(path, data, durable=True, exclusive=True, mode=0o600)
        atomic_write(public_path, line.encode(), durable=True, exclusive=True, mode=0o644)
        return made

    @classmethod
    def _from_key(cls, key: Any, source: str) -> Self:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidKey(
                source, f"is a {type(key).__name__}, and must be Ed25519; make one with 'fib-schema keygen'"
            )
        serialization = import_serialization()
        encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        return cls(PublicKey(key.public_key().public_bytes(encoding, form).decode()), key)


def _read_private(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | BINARY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidKey(path, "is not a regular file")
            if os.name == "posix" and status.st_mode & 0o077:
                raise InvalidKey(
                    path, f"others than its owner have access (mode {status.st_mode & 0o777:o}); chmod 600"
                )
            return file.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise InvalidKey(path, f"the private key cannot be read: {error.strerror}") from error


def import_serialization() -> Any:
    """The module of `cryptography` that reads and writes keys.

    Raises:
        InvalidKey: The extra ``signing`` is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization
    except ModuleNotFoundError as error:
        raise InvalidKey("fib-schema", MISSING_EXTRA) from error
    return serialization
