"""Tests of what the fork server computes about Triton ahead of its workers."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from fib_bench.worker.triton_identity import identify_triton


def test_the_digest_of_triton_is_computed_once() -> None:
    pytest.importorskip("triton")
    identify_triton(["9.0a"])
    names = ("triton.runtime.cache", "triton.compiler.compiler")
    digests = [found for name in names if (found := getattr(import_module(name), "triton_key", None)) is not None]
    assert [digest.cache_info().currsize for digest in digests] == [1] * len(digests)
    assert digests


def test_the_version_of_ptxas_is_asked_once_for_each_architecture() -> None:
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    compiler.get_ptxas_version.cache_clear()
    identify_triton(["9.0a", "10.0a"])
    assert compiler.get_ptxas_version.cache_info().currsize == 2


def test_a_missing_triton_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("triton.runtime.cache", "triton.compiler.compiler", "triton.backends.nvidia.compiler"):
        monkeypatch.setitem(sys.modules, name, None)
    identify_triton(["9.0a"])
