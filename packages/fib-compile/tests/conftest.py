import sys
from pathlib import Path

import pytest
from fib_compile.device import is_cuda_available

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(autouse=True)
def cache_path(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("FIB_CACHE_PATH", str(path))
    return path


@pytest.fixture
def needs_gpu():
    if not is_cuda_available():
        pytest.skip("needs a CUDA device")
