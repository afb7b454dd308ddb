"""The command ``fib-compat serve``, by ``fib-serve run`` with the documented options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from pkgutil import resolve_name

from fib_schema import get_fib_dataset_path

from ..errors import MissingExtra
from ..table import PACKAGE, missing_extra

__all__ = ["serve", "service_command"]

_SERVICE = "fib_serve.cli.main:main"
_OPTIONS = ("warmup_runs", "iterations", "num_trials", "rtol", "atol", "timeout")
_LEVELS = {"CRITICAL": "error"}
"""Levels that fib-serve does not have."""


def serve(args: argparse.Namespace) -> int:
    """Run the service until it is told to end; returns the exit code.

    Raises:
        MissingExtra: fib-serve is not installed.
    """
    if (reason := missing_extra(f"{PACKAGE}.serve")) is not None:
        raise MissingExtra(f"serve: {reason}")
    code: int = resolve_name(_SERVICE)(list(service_command(args)))
    return code


def service_command(args: argparse.Namespace) -> Iterator[str]:
    """The arguments of ``fib-serve``.

    flashinfer-bench's service has no tokens. fib-serve works without them on loopback addresses only, because whoever
    reaches it may run code.
    """
    root = get_fib_dataset_path() if args.local is None else Path(args.local)
    yield from ("run", str(root.absolute()), f"--host={args.host}", f"--port={args.port}")
    yield f"--log-level={_LEVELS.get(args.log_level, args.log_level.lower())}"
    if _is_loopback(args.host):
        yield "--no-auth"
    for name in _OPTIONS:
        yield f"--{name.replace('_', '-')}={getattr(args, name)}"
    if args.devices is not None:
        yield f"--devices={','.join(args.devices)}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
