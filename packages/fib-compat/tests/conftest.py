"""A data set, and runners of the command line in this process and of code in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import fib_compat
import pytest
from fib_apply import disable_apply, set_apply_hook, set_runtime
from fib_tracer import disable_tracing, policies

fib_compat.install()
INSTALL = "import fib_compat; fib_compat.install()\n"
sys.path.insert(0, str(Path(__file__).parent / "support"))

Run = Callable[..., str]


@pytest.fixture(scope="session")
def cache_path(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def clean_process(cache_path):
    """Restore what programs change in the process: variables, routing, tracing, registered policies."""
    registered = mock.patch.dict(policies._FILTER_POLICIES.registered)
    with mock.patch.dict(os.environ, {"FIB_CACHE_PATH": str(cache_path)}), registered:
        yield
        set_apply_hook(None)
        disable_tracing()
        disable_apply()
        set_runtime(None)


@pytest.fixture(scope="session")
def run(cache_path):
    """Run code in a process of its own, where a warning is an error; return stdout, and fail if that fails."""

    def run(code, **environment):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", INSTALL + code],
            env={**os.environ, "FIB_CACHE_PATH": str(cache_path), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def data_set(tmp_path):
    """One definition with a solution and two workloads."""
    import compat_samples

    return compat_samples.write(tmp_path / "data")


@pytest.fixture
def command(capfd, monkeypatch):
    """Run the command line in this process, on the CPU; returns the exit code, stdout and stderr."""
    from fib_compat.cli import cli

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*words):
        try:
            code = cli([str(word) for word in words])
        except SystemExit as error:
            code = int(str(error.code))
        captured = capfd.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    return run
