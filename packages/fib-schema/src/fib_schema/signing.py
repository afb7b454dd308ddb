"""Signatures of data sets by their owners: one manifest of all files, signed with ``ssh-keygen -Y``.

`sign` writes ``signatures/manifest.json``, the list of all files with their hashes, and the signature beside it.
`verify` compares the files with the list, and `SignedFiles` reads files for programs that must use what was signed and
nothing else. Keys are those of OpenSSH; ``ssh-keygen`` asks for passphrases and uses agents and hardware keys.
See "How a data set is signed" in the documentation.
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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self

import attrs
import msgspec

from .data_files import is_below
from .display import escape_line
from .errors import FibError
from .files import atomic_write, open_regular, read_regular, walk

__all__ = [
    "CannotSign",
    "FileReport",
    "FileState",
    "InvalidKey",
    "NotAsSigned",
    "NotSigned",
    "PublicKey",
    "SignedFile",
    "SignedFiles",
    "Verification",
    "read_public_keys",
    "sign",
    "verify",
]

FORMAT = 3
"""Of the manifest."""
NAMESPACE = "fib-data-set"
"""Signatures for other purposes, such as commits, are not valid for a data set."""
FOLDERS = ("definitions", "solutions", "workloads", "traces", "blob")
"""The folders that a manifest covers."""
MANIFEST = "signatures/manifest.json"
SIGNATURE = f"{MANIFEST}.sig"
_MAX_MANIFEST_BYTES = 64 << 20  # enough for 250,000 files
_OWNER = "owner"
_KEY_TYPES = ("ssh-", "ecdsa-", "sk-")
_FINGERPRINT = re.compile(rb"key (SHA256:\S+)")


class FileState(StrEnum):
    """Result of comparing a file with the manifest."""

    UNCHANGED = "unchanged"
    GROWN = "grown"
    """Lines were appended; the signed part is unchanged."""
    CHANGED = "changed"
    MISSING = "missing"
    ADDED = "added"
    """The manifest does not list it."""


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
class CannotSign(FibError, ValueError):
    """A data set that cannot be signed; nothing was written."""

    root: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        lines = "\n  ".join(self.problems)
        return f"data set {self.root!r} cannot be signed:\n  {lines}"


@attrs.frozen
class NotAsSigned(FibError, ValueError):
    """A file that is not what the manifest says."""

    path: str
    state: FileState
    problem: str
    definitions: tuple[str, ...] = ()
    """The definitions whose traces the signed file holds."""

    def __str__(self) -> str:
        return f"{escape_line(self.path)}: {self.problem}"


# -- keys --------------------------------------------------------------------------------------------


@attrs.frozen
class PublicKey:
    """The public key of an owner."""

    text: str
    """As in a ``.pub`` file, without a comment."""

    @classmethod
    def parse(cls, text: str, source: str = "public key") -> Self:
        """Parse one line of a ``.pub`` file.

        Raises:
            InvalidKey: It is no OpenSSH public key.
        """
        kind, content, *_ = [*text.split(), "", ""]
        try:
            data = base64.b64decode(content, validate=True) if kind.startswith(_KEY_TYPES) else b""
        except binascii.Error:
            data = b""
        if not data or "-cert-" in kind or data[4 : 4 + len(kind)] != kind.encode():  # after the length of the type
            remedy = "pass the content of a .pub file; 'ssh-keygen -t ed25519 -f FILE' makes a key"
            raise InvalidKey(source, f"{text.strip()[:40]!r} is no OpenSSH public key; {remedy}")
        return cls(f"{kind} {content}")

    @property
    def fingerprint(self) -> str:
        """As ``ssh-keygen -l`` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.text.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def read_public_keys(given: str | os.PathLike[str]) -> tuple[PublicKey, ...]:
    """Read public keys, one in each line.

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
            raise InvalidKey(
                source, f"the public key cannot be read: {reason}; pass the path of a .pub file"
            ) from error
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    if "PRIVATE KEY-----" in text:
        raise InvalidKey(source, "is a private key; pass the public one, a file whose name ends in .pub")
    if not lines:
        raise InvalidKey(source, "holds no key; pass the .pub file that 'ssh-keygen' wrote")
    return tuple(dict.fromkeys(PublicKey.parse(line, source) for line in lines))


def _ssh_keygen(*arguments: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh-keygen``; it asks for a passphrase on the terminal, not on stdin.

    Raises:
        InvalidKey: It is not installed.
    """
    program = shutil.which("ssh-keygen")
    if program is None:
        raise InvalidKey("ssh-keygen", "is not installed; signatures need it: install OpenSSH's client, 8.1 or later")
    return subprocess.run([program, *map(str, arguments)], input=data, capture_output=True, check=False)


# -- signed files ------------------------------------------------------------------------------------


class SignedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it was when it was signed."""

    path: str
    """Below the root, with ``/``."""
    size: int
    """Bytes."""
    sha256: str
    """In hexadecimal digits."""
    definitions: tuple[str, ...] = ()
    """Sorted names of the definitions that the lines of a traces file state."""

    @property
    def may_grow(self) -> bool:
        """Whether appended lines leave it valid."""
        return self.path.startswith(("traces/", "workloads/")) and self.path.endswith(".jsonl")


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    files: tuple[SignedFile, ...]


@attrs.frozen
class SignedFiles:
    """The files of a data set as its owner signed them; made by `open`."""

    root: str
    signer: PublicKey
    files: Mapping[str, SignedFile]
    """By path, sorted."""
    digest: bytes
    """Differs for other signers and other manifests."""

    @classmethod
    def open(cls, root: str | os.PathLike[str], signers: Sequence[PublicKey]) -> Self:
        """Read the manifest and verify that one of the signers has signed it.

        Raises:
            NotSigned: None has, the manifest or its signature is not valid, or ``ssh-keygen`` is missing.
        """
        place = os.fspath(root)
        data, signature = (_read_signature_file(place, name) for name in (MANIFEST, SIGNATURE))
        signer = _signer_of(place, data, signature, signers)
        try:
            manifest = msgspec.json.decode(data, type=_Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotSigned(place, f"{MANIFEST} is not valid: {error}") from error
        files = {file.path: file for file in manifest.files}
        if manifest.format != FORMAT or not all(map(_is_covered, files)):
            raise NotSigned(place, f"{MANIFEST} is not valid: format {manifest.format}, or paths that no set has")
        return cls(place, signer, files, hashlib.sha256(signer.text.encode() + b"\0" + data).digest())

    def paths(self, folder: str, suffix: str) -> list[str]:
        """The signed paths below a folder, sorted; whether the files exist is not checked."""
        return [path for path in self.files if path.startswith(folder + "/") and path.endswith(suffix)]

    def read(self, path: str) -> bytes:
        """The content of a file; of a file of lines that has grown, the signed part.

        The returned bytes are those whose hash was compared, and no later ones.

        Raises:
            NotAsSigned: The file was not signed, is missing, or has changed.
        """
        if path not in self.files:
            raise NotAsSigned(path, FileState.ADDED, "not signed: added after signing")
        return _read_as_signed(self.root, self.files[path])[0]


def _read_signature_file(root: str, name: str) -> bytes:
    try:
        return read_regular(os.path.join(root, name), _MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        raise NotSigned(root, f"there is no {name}; sign it with 'fib-schema sign'") from error
    except OSError as error:
        raise NotSigned(root, f"{name} cannot be read: {error.strerror or error}") from error


def _signer_of(root: str, data: bytes, signature: bytes, signers: Sequence[PublicKey]) -> PublicKey:
    """The signer whose key made a signature."""
    with tempfile.TemporaryDirectory(prefix="fib-verify-") as folder:
        allowed, signature_file = Path(folder, "allowed"), Path(folder, "signature")
        allowed.write_text("".join(f'{_OWNER} namespaces="{NAMESPACE}" {key.text}\n' for key in signers))
        signature_file.write_bytes(signature)
        words = ("-Y", "verify", "-f", allowed, "-I", _OWNER, "-n", NAMESPACE, "-s", signature_file)
        try:
            done = _ssh_keygen(*words, data=data)
        except InvalidKey as error:
            raise NotSigned(root, str(error)) from error
    found = _FINGERPRINT.search(done.stdout)
    made = {key.fingerprint: key for key in signers}.get(found[1].decode()) if found else None
    if done.returncode or made is None:
        names, reason = ", ".join(key.fingerprint for key in signers), done.stderr.decode(errors="replace").strip()
        raise NotSigned(root, f"{SIGNATURE} is no signature of {MANIFEST} by {names} ({reason[:200]})")
    return made


def _is_covered(path: str) -> bool:
    """Whether a path is a possible one of a manifest."""
    folder, *parts = path.split("/")
    return folder in FOLDERS and bool(parts) and all(part and not part.startswith(".") for part in parts)


def _read_as_signed(root: str, signed: SignedFile) -> tuple[bytes, int]:
    """The signed part of a file, verified, and the number of bytes behind it.

    Raises:
        NotAsSigned: The file is missing, changed, or cannot be read.
    """
    try:
        with open_regular(f"{root}/{signed.path}") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(signed.size)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAsSigned(signed.path, FileState.MISSING, "signed, but missing", signed.definitions) from error
    except OSError as error:
        raise _differs(signed, f"it cannot be read: {error.strerror or error}") from error
    if len(data) < signed.size or (size > signed.size and not signed.may_grow):
        raise _differs(signed, f"it has {size} bytes, and {signed.size} were signed")
    if (found := hashlib.sha256(data).hexdigest()) != signed.sha256:
        raise _differs(signed, f"its sha256 is {found[:16]}, and {signed.sha256[:16]} was signed")
    return data, size - signed.size


def _differs(signed: SignedFile, problem: str) -> NotAsSigned:
    return NotAsSigned(signed.path, FileState.CHANGED, f"changed after signing: {problem}", signed.definitions)


# -- comparing and signing ---------------------------------------------------------------------------


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
    """The comparison of a data set with its manifest."""

    signer: PublicKey
    files: tuple[FileReport, ...]
    """All files, sorted by path."""

    @property
    def differences(self) -> list[FileReport]:
        """The files that are not unchanged."""
        return [file for file in self.files if file.state is not FileState.UNCHANGED]

    @property
    def summary(self) -> str:
        """One line: the counts by state, and the signer."""
        counts = Counter(file.state for file in self.files)
        states = ", ".join(f"{counts[state]} {state}" for state in FileState if counts[state]) or "no files"
        return f"{states}; signed by {self.signer.fingerprint}"


def verify(root: str | os.PathLike[str], signers: Sequence[PublicKey]) -> Verification:
    """Compare every file of a data set with its manifest.

    Raises:
        NotSigned: None of the signers has signed it, or the manifest or its signature is not valid.
    """
    signed = SignedFiles.open(root, signers)
    reports = [
        FileReport(path, FileState.ADDED, why) for path, why in _list_files(signed.root) if path not in signed.files
    ]
    for file in signed.files.values():
        try:
            more = _read_as_signed(signed.root, file)[1]
        except NotAsSigned as error:
            reports.append(FileReport(file.path, error.state, error.problem))
        else:
            detail = f"{more} bytes after the signed {file.size}" if more else ""
            reports.append(FileReport(file.path, FileState.GROWN if more else FileState.UNCHANGED, detail))
    return Verification(signed.signer, tuple(sorted(reports, key=lambda report: report.path)))


def sign(root: str | os.PathLike[str], key_path: str | os.PathLike[str]) -> SignedFiles:
    """Sign all files of a data set, in the place of the last signature.

    Read before what differs from the last signature (`verify`): it is what the new one vouches for in addition.

    Args:
        root: The data set.
        key_path: The private key; or the public one, if an agent of OpenSSH has the private one.

    Raises:
        CannotSign: The set has no files, or some that cannot be signed; or the key lies in the set, where others can
            read it.
        InvalidKey: The key cannot be used, or ``ssh-keygen`` is missing.
    """
    place, key = os.fspath(root), os.fspath(key_path)
    if is_below(os.path.realpath(key), os.path.realpath(place)):
        raise CannotSign(place, (f"the private key {key} lies in the data set, which others can read; move it",))
    public = _public_key_of(key)
    data = msgspec.json.format(msgspec.json.encode(_Manifest(FORMAT, _hash_files(place))), indent=1)
    done = _ssh_keygen("-Y", "sign", "-f", key, "-n", NAMESPACE, data=data)
    if done.returncode:
        raise InvalidKey(key, f"cannot sign: {done.stderr.decode(errors='replace').strip()}")
    atomic_write(os.path.join(place, MANIFEST), data, durable=True, mode=0o644)
    atomic_write(os.path.join(place, SIGNATURE), done.stdout, durable=True, mode=0o644)
    return SignedFiles.open(place, [public])


def _public_key_of(key_path: str) -> PublicKey:
    done = _ssh_keygen("-y", "-f", key_path)
    if done.returncode == 0:
        return PublicKey.parse(done.stdout.decode(), key_path)
    beside = Path(key_path if key_path.endswith(".pub") else f"{key_path}.pub")
    if not beside.exists():
        raise InvalidKey(key_path, f"cannot be used: {done.stderr.decode(errors='replace').strip()}")
    return read_public_keys(beside)[0]


def _list_files(root: str) -> Iterator[tuple[str, str]]:
    """Every path below the covered folders that is not hidden, and why it cannot be signed; empty if it can."""
    for folder in FOLDERS:
        if os.path.islink(os.path.join(root, folder)):
            yield folder, "is a link; copy what it points to instead"
            continue
        for entry in walk(os.path.join(root, folder), enters=lambda entry: not entry.name.startswith(".")):
            path = os.path.relpath(entry.path, root)
            if "/." in path or entry.is_dir(follow_symlinks=False):
                continue
            if not entry.is_file(follow_symlinks=False):
                yield path, "is a link or no regular file; copy what it points to, or remove it"
            else:
                yield path, "" if path.isprintable() else "has characters that cannot be printed; rename the file"


def _hash_files(root: str) -> tuple[SignedFile, ...]:
    files: list[SignedFile] = []
    problems: list[str] = []
    for path, problem in _list_files(root):
        try:
            if problem:
                raise ValueError(problem)
            files.append(_hash_file(root, path))
        except (OSError, ValueError) as error:
            problems.append(f"{escape_line(path)}: {error}")
    if problems or not files:
        raise CannotSign(root, tuple(problems) or ("it has no files; is it a data set?",))
    return tuple(sorted(files, key=lambda file: file.path))


def _hash_file(root: str, path: str) -> SignedFile:
    """Hash a file as far as it reaches when it is opened; lines that are appended meanwhile are not signed."""
    with open_regular(os.path.join(root, path)) as file:
        data = file.read(os.fstat(file.fileno()).st_size)
    if data.startswith(b"version https://git-lfs"):
        raise ValueError("is a Git LFS pointer and not the file itself; run 'git lfs pull' in the data set")
    definitions = _definitions_in(data) if path.startswith("traces/") else ()
    return SignedFile(path, len(data), hashlib.sha256(data).hexdigest(), definitions)


class _Line(msgspec.Struct):
    definition: str


def _definitions_in(lines: bytes) -> tuple[str, ...]:
    """The definitions that lines state; those of lines that are no traces are left out."""
    found = set()
    decode_line = msgspec.json.Decoder(_Line).decode
    for line in lines.split(b"\n"):
        try:
            found.add(decode_line(line).definition)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
    return tuple(sorted(found))
