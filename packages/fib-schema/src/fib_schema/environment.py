"""Paths of data sets and caches from the two environment variables that all FIB packages share."""

from __future__ import annotations

import os
from pathlib import Path


def get_fib_dataset_path() -> Path:
    """The data set's root: ``FIB_DATASET_PATH``, else ``~/.cache/flashinfer_bench/dataset``."""
    return _path_variable("FIB_DATASET_PATH", "dataset")


def get_fib_cache_path() -> Path:
    """The root of our caches: ``FIB_CACHE_PATH``, else ``~/.cache/flashinfer_bench/cache``."""
    return _path_variable("FIB_CACHE_PATH", "cache")


def _path_variable(variable: str, folder: str) -> Path:
    if value := os.environ.get(variable):
        return Path(value).expanduser().absolute()  # a subprocess may have another working directory
    return Path.home() / ".cache" / "flashinfer_bench" / folder
