import pytest
from devtools import environment
from devtools.environment import Environment, expects_cpu_torch, uv_variables


@pytest.fixture
def pip(monkeypatch):
    """Pip's settings, and no wish for a backend of torch."""
    settings = {}
    monkeypatch.setattr(environment, "pip_settings", lambda: settings)
    monkeypatch.delenv("UV_TORCH_BACKEND", raising=False)
    return settings


def test_uv_uses_the_indexes_of_pip(pip):
    pip |= {
        "index-url": "https://a/simple",
        "extra-index-url": "https://b https://c",
        "find-links": "/a /b",
        "timeout": "9",
    }
    assert uv_variables() == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://a/simple",
        "UV_INDEX": "https://b https://c",
        "UV_FIND_LINKS": "/a,/b",
    }


def test_a_cpu_build_is_expected_if_pip_finds_one_or_uv_is_asked_for_it(pip, tmp_path, monkeypatch):
    pip["find-links"] = f"{tmp_path} https://a"
    assert not expects_cpu_torch()
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    assert expects_cpu_torch()
    pip.clear()
    assert not expects_cpu_torch()
    monkeypatch.setenv("UV_TORCH_BACKEND", "cpu")
    assert expects_cpu_torch()


class Session:
    """Records commands; uv puts a build of torch into the environment."""

    def __init__(self, installed):
        self.commands, self.installed = [], installed

    def run(self, *command, **_):
        self.commands.append(command)
        if "uv" in command:
            if self.installed is None:
                raise environment.CommandFailed("uv")
            self.installed.write_text("__version__ = '2.13.0'\n")

    warn = log = print


@pytest.mark.parametrize("fails", [True, False])
def test_pip_takes_over_if_uv_fails_or_installs_another_build_of_torch(pip, tmp_path, monkeypatch, fails):
    monkeypatch.setattr(environment, "MACHINE_TORCH", "")
    monkeypatch.setattr(environment, "_PIP_ONLY", tmp_path / "pip-only")
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setenv("UV_TORCH_BACKEND", "cpu")
    version = tmp_path / "venv/lib/python3.11/site-packages/torch/version.py"
    version.parent.mkdir(parents=True)
    session = Session(None if fails else version)
    Environment(tmp_path / "venv").install(session, "torch")
    assert "uv" in session.commands[0]
    assert "pip" in session.commands[-1]
    assert "uv" not in session.commands[-1]
    assert not environment.uses_uv()
