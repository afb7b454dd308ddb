"""Signature file of one owner: a DSSE envelope around the manifest, made and verified by securesystemslib."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from ..display import counted
from ..files import atomic_write
from .errors import CannotSign, InvalidKey, InvalidManifest, NotSigned
from .keys import MISSING_EXTRA, PrivateKey, PublicKey, import_serialization
from .manifest import Manifest
from .reading import NotRegular, read_regular

PAYLOAD_TYPE = "application/vnd.fib.data-set-manifest.v1+json"
FOLDER = "signatures"
MAX_ENVELOPE_BYTES = 64 << 20
"""Enough for 250,000 files; parsing takes three times as much memory."""


class _Signature(msgspec.Struct, forbid_unknown_fields=True):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    payload: str
    payloadType: str  # noqa: N815 the name is DSSE's
    signatures: list[_Signature]


def signature_path(root: str | os.PathLike[str], signer: PublicKey) -> Path:
    """The signature file of an owner."""
    return Path(root) / FOLDER / f"{signer.id[:32]}.dsse.json"


def write_envelope(root: str | os.PathLike[str], manifest: Manifest, key: PrivateKey) -> Path:
    """Sign a manifest and store it durably; returns the path of the signature file.

    Raises:
        CannotSign: The signature file would be larger than what is read.
    """
    library = _import_library()
    envelope = library.dsse.Envelope(manifest.to_bytes(), PAYLOAD_TYPE, {})
    envelope.sign(library.signer.CryptoSigner(key.key, library_key(key.public)))
    path, data = signature_path(root, key.public), msgspec.json.encode(envelope.to_dict())
    if len(data) > MAX_ENVELOPE_BYTES:
        problem = f"the signature of {counted(len(manifest.files), 'file')} has {len(data)} bytes"
        raise CannotSign(os.fspath(root), (f"{problem}, and at most {MAX_ENVELOPE_BYTES} are read; split the set",))
    atomic_write(path, data, durable=True, mode=0o644)
    return path


def read_envelope(root: str | os.PathLike[str], signer: PublicKey) -> tuple[Manifest, bytes] | None:
    """Read and verify the signature file of an owner.

    Returns:
        The manifest and the bytes of the file; None if the owner has not signed the set.

    Raises:
        NotSigned: The signature file cannot be read, is not valid, or was not signed by the owner.
    """
    path = signature_path(root, signer)
    try:
        data = read_regular(path, MAX_ENVELOPE_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, NotRegular) as error:
        raise NotSigned(os.fspath(root), f"{path} cannot be read: {error}") from error
    try:
        return Manifest.parse(_verified_payload(data, signer)), data
    except InvalidManifest as error:
        raise NotSigned(os.fspath(root), f"{path}: {error}") from error


def _verified_payload(data: bytes, signer: PublicKey) -> bytes:
    """The payload of an envelope, after its signature was verified with the key of the signer and no other."""
    try:
        content = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidManifest(f"it is not a DSSE envelope: {error}") from error
    if content.payloadType != PAYLOAD_TYPE:
        raise InvalidManifest(f"its payload type is {content.payloadType[:80]!r}, and must be {PAYLOAD_TYPE!r}")
    if [signature.keyid for signature in content.signatures] != [signer.id]:
        raise InvalidManifest(f"it must have one signature, by {signer.fingerprint}")
    library = _import_library()
    try:
        envelope = library.dsse.Envelope.from_dict(msgspec.to_builtins(content))
        envelope.verify([library_key(signer)], threshold=1)
    except (library.exceptions.Error, ValueError) as error:
        raise InvalidManifest(f"its signature is not by {signer.fingerprint}") from error
    payload: bytes = envelope.payload
    return payload


def library_key(public: PublicKey) -> Any:
    """The key as an object of securesystemslib, which fixes its algorithm."""
    key = import_serialization().load_ssh_public_key(public.text.encode())
    return _import_library().signer.SSlibKey.from_crypto(key, keyid=public.id)


def _import_library() -> Any:
    try:
        import securesystemslib.dsse
        import securesystemslib.exceptions
        import securesystemslib.signer
    except ModuleNotFoundError as error:
        raise InvalidKey("fib-schema", MISSING_EXTRA) from error
    return securesystemslib
