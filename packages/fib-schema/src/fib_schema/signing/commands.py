"""Commands of ``fib-schema`` about signatures."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..display import counted
from ..errors import DataSetNotFound
from .errors import InvalidKey, PassphraseNeeded
from .keys import PrivateKey, read_public_keys
from .owner import check_key_place, sign
from .verification import FileReport, verify


def read_passphrase(path: Path | None) -> str | None:
    """The first line of a file; None without a path."""
    return None if path is None else path.read_text().partition("\n")[0]


def ask_new_passphrase() -> str:
    """Ask for a passphrase twice.

    Raises:
        InvalidKey: The answers differ.
    """
    passphrase = getpass.getpass("passphrase: ")
    if getpass.getpass("again: ") != passphrase:
        raise InvalidKey("passphrase", "the two differ; nothing was written")
    return passphrase


def keygen(path: Path, passphrase: str | None, comment: str) -> int:
    """``fib-schema keygen``."""
    key = PrivateKey.generate(path, passphrase, comment)
    print(f"private key: {path}\npublic key:  {path}.pub\nfingerprint: {key.public.fingerprint}")
    return 0


def sign_set(root: Path, key_path: Path, passphrase: str | None, serial: int | None, *, writes: bool) -> int:
    """``fib-schema sign``."""
    _check_root(root)
    check_key_place(root, key_path)
    try:
        key = PrivateKey.load(key_path, passphrase)
    except PassphraseNeeded:
        if not sys.stdin.isatty():
            raise
        key = PrivateKey.load(key_path, getpass.getpass(f"passphrase of {key_path}: "))
    done = sign(root, key, serial=serial, writes=writes)
    _print_reports(done.differences)
    state = f"serial {done.manifest.serial}, {counted(len(done.manifest.files), 'file')}, by {done.signer.fingerprint}"
    print(f"signed: {state}" if writes else f"not signed (--dry-run): {state}")
    return 0


def verify_set(root: Path, signers: Sequence[str], *, allows_appended: bool, min_serial: int) -> int:
    """``fib-schema verify``."""
    _check_root(root)
    keys = [key for given in signers for key in read_public_keys(given)]
    found = verify(root, keys)
    _print_reports(found.differences)
    print(found.summary)
    if found.manifest.serial < min_serial:
        print(f"serial {found.manifest.serial} is older than {min_serial}, the oldest one that is accepted")
        return 1
    return 0 if found.is_ok(allows_appended=allows_appended) else 1


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise DataSetNotFound(os.fspath(root))


def _print_reports(reports: Iterable[FileReport]) -> None:
    for report in reports:
        print(report)
