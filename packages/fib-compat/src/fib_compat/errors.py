"""Exceptions of fib-compat."""

from __future__ import annotations

from fib_schema import FibError


class NotOffered(FibError, ImportError):
    """A documented name that fib-compat does not offer, at all or without an extra; says what to use instead."""


class AlreadyImported(FibError, RuntimeError):
    """The real `flashinfer_bench` has been imported before `fib_compat.install`."""
