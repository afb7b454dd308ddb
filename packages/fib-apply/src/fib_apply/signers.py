"""Required signers: the keys of whose owners one must have signed the data set."""

from __future__ import annotations

import os
from collections.abc import Iterable

from fib_schema import FibError

from .errors import InvalidSetting

SIGNERS_VARIABLE = "FIB_REQUIRE_SIGNED_BY"
"""A file with public keys, or their text: required of every data set whose settings name no keys."""
_WANTED = "a file with public keys, the text of a key, or a sequence of these; or None"


def to_signers(value: object, name: str = "require_signed_by") -> tuple[str, ...] | None:
    """The keys of a setting, each as the text of its public key; None if no signature is required.

    Raises:
        InvalidSetting: There is no key, or one is not valid. An empty value is an error, because
            nothing would be verified.
    """
    if value is None:
        return None
    given = [value] if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(given, Iterable) or isinstance(given, (bytes, bytearray)):
        raise InvalidSetting(name, value, _WANTED)
    from fib_schema.signing import read_public_keys

    found: dict[str, None] = {}
    for item in given:
        if not isinstance(item, (str, os.PathLike)):
            raise InvalidSetting(name, value, _WANTED)
        try:
            found.update(dict.fromkeys(key.text for key in read_public_keys(item)))
        except FibError as error:
            raise InvalidSetting(name, str(item)[:200], f"{_WANTED} ({error})") from error
    if not found:
        raise InvalidSetting(name, value, _WANTED)
    return tuple(found)


def signers_from_environment() -> tuple[str, ...] | None:
    """The keys that the environment requires.

    Raises:
        InvalidSetting: The variable is set, but to no key.
    """
    return to_signers(os.environ.get(SIGNERS_VARIABLE), SIGNERS_VARIABLE)
