import sys

import pytest
from workshop.errors import Missing
from workshop.machine import MACHINE, PINNED, Host, find_compiler, find_cuda_torch, find_host, note_host, read_json


def program(folder, name):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(folder)


def test_no_compiler_on_the_path_is_explained(tmp_path):
    with pytest.raises(Missing) as caught:
        find_compiler({"PATH": str(tmp_path)})
    text = str(caught.value)
    assert text.startswith("a C++ compiler is missing: none of c++, g++, clang++ is on the path.")
    assert "why: C++ solutions are compiled" in text
    assert "set CXX to your compiler" in text


def test_a_variable_that_names_an_absent_compiler_is_explained(tmp_path):
    path = program(tmp_path / "bin", "g++")
    with pytest.raises(Missing, match="CXX names 'icpx', which is not on the path"):
        find_compiler({"PATH": path, "CXX": "icpx -O2"})


def test_a_compiler_is_found_by_variable_or_by_name(tmp_path):
    path = program(tmp_path / "bin", "g++")
    assert find_compiler({"PATH": path}) == "g++"
    assert find_compiler({"PATH": path, "CXX": "g++ -O2"}) == "g++ -O2"


def fake_torch(folder, cuda):
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text(f"cuda = {cuda!r}\n")
    (folder / "torch" / "__init__.py").write_text("from . import version\n__version__ = '2.11.0'\n")


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """A folder whose modules import here and in child processes, and no torch that was loaded before."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return tmp_path


def test_a_cuda_torch_that_imports_is_found_once_and_remembered(importable):
    fake_torch(importable, "13.0")
    cache = importable / "work" / "torch.json"
    assert find_cuda_torch(cache) == "2.11.0"
    assert read_json(cache)["version"] == "2.11.0"
    cache.write_text(cache.read_text().replace("2.11.0", "remembered"))
    assert find_cuda_torch(cache) == "remembered"


def test_a_torch_without_cuda_or_one_that_does_not_import_is_not_used(importable):
    fake_torch(importable, None)
    assert find_cuda_torch(importable / "torch.json") == ""
    (importable / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13')\n")
    assert find_cuda_torch(importable / "torch.json") == ""


def test_the_machines_cuda_torch_decides_the_environment(importable, checkout, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(checkout.root))
    assert find_host(checkout).kind == PINNED
    fake_torch(importable, "13.0")
    host = find_host(checkout)
    assert (host.kind, host.torch) == (MACHINE, "2.11.0")


def test_one_interpreter_is_one_host_under_all_its_names(importable, checkout, tmp_path, monkeypatch):
    """Else the environment is made anew when `python3` is typed after `python`."""
    monkeypatch.setattr(sys, "prefix", str(checkout.root))
    fake_torch(importable, None)
    program(tmp_path / "bin", "python3.11")
    hosts = set()
    for name in ("python", "python3"):
        (tmp_path / "bin" / name).symlink_to("python3.11")
        monkeypatch.setattr(sys, "_base_executable", str(tmp_path / "bin" / name))
        hosts.add(find_host(checkout).python)
    assert hosts == {str(tmp_path / "bin" / "python3.11")}


@pytest.mark.parametrize("host", [Host("/usr/bin/python3"), Host("/usr/bin/python3", MACHINE, "2.11.0", "/outer")])
def test_one_of_our_environments_stands_for_the_host_it_was_made_from(checkout, monkeypatch, host):
    """Else a run from inside of it would make it anew, from itself."""
    monkeypatch.setattr(sys, "prefix", str(checkout.root))
    note_host(checkout.root, host)
    assert find_host(checkout) == host


@pytest.mark.parametrize("content", ["", "{torn", "[1]"])
def test_a_damaged_note_counts_as_absent(tmp_path, content):
    path = tmp_path / "note.json"
    path.write_text(content)
    assert read_json(path) == {}
