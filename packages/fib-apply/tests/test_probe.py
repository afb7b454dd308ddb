"""Load probe: finds solutions that end, crash or hang the process that loads them."""

import gc
import logging
import os
import signal
import subprocess
import sys
import time
import types

import pytest
from apply_samples import loading as pair
from fib_apply.build_service import probe as probe_module
from fib_apply.build_service.probe import probe
from fib_schema import format_json

pytestmark = pytest.mark.usefixtures("cache_path")
NO_TIMEOUT = 300.0


def touch(path):
    """Code that adds a character to a file, which counts how often it ran."""
    return f"with open({str(path)!r}, 'a') as file:\n    file.write('x')\n"


def cached(cache_path):
    return list((cache_path / "apply-v1" / "probes").iterdir())


@pytest.mark.slow
def test_only_solutions_that_end_the_process_are_blamed(monkeypatch, capfd):
    monkeypatch.setattr(probe_module, "_EXIT_SECONDS", 2.0)  # one of them lives on without descriptors
    pairs = [
        pair("works"),
        pair("raises", "raise ValueError('no')"),
        pair("leaves", "import os; os._exit(3)"),
        pair("exits", "import sys; sys.exit('bye')"),
        pair("interrupts", "raise KeyboardInterrupt"),
        pair("crashes", "import ctypes; ctypes.string_at(0)"),
        pair("prints", "import os\nfor _ in range(400): os.write(1, b'x' * 4096)\nprint('much')"),
        pair("closes", "import os; os.closerange(0, 1000)\nimport threading; threading.Event().wait()"),
        pair("forks", "import os; os.fork()"),
        pair("reads", "import sys; assert not sys.stdin.read()\nraise SystemExit"),
        pair("last"),
    ]
    results = probe(pairs, timeout_seconds=NO_TIMEOUT)

    assert results == {
        **dict.fromkeys(("works", "raises", "exits", "interrupts", "prints", "forks", "reads", "last")),
        "leaves": "it ended the process that loaded it with exit status 3",
        "crashes": "it ended the process that loaded it by SIGSEGV",
        "closes": "it closed the descriptors of the process that loaded it",
    }
    assert capfd.readouterr() == ("", "")


def test_a_solution_that_hangs_times_out_and_the_next_are_probed(tmp_path, monkeypatch, cache_path):
    hangs = tmp_path / "hangs"
    clock = types.SimpleNamespace(monotonic=lambda: 120.5 if hangs.exists() else 0.0, sleep=time.sleep)
    monkeypatch.setattr(probe_module, "time", clock)
    code = f"import time\nprint('waiting for', 'Godot', flush=True)\n{touch(hangs)}\nwhile True: time.sleep(1)"

    results = probe([pair("hangs", code), pair("works")])

    assert results == {"hangs": "it did not load within 120 s (its last output: 'waiting for Godot')", "works": None}
    assert len(cached(cache_path)) == 2


def test_processes_that_a_solution_leaves_are_killed(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = f"import subprocess, sys; subprocess.Popen(['sh', '-c', 'exec sleep 1000 > {pipe}'])"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    # The descriptor that the grandchild writes to is the pipe's only one: it is at its end once that is dead.
    code += f"\nimport os; os.open({str(pipe)!r}, os.O_WRONLY)"

    assert probe([pair("leaves a child", code)], timeout_seconds=NO_TIMEOUT) == {"leaves a child": None}

    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_the_child_sees_this_process_s_modules_and_does_not_route(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FIB_ENABLE_APPLY", "1")
    code = "import os\ntry:\n    import only_here\nexcept ImportError:\n    os._exit(1)\n"
    code += "if os.environ['FIB_ENABLE_APPLY'] != '0': os._exit(2)"

    assert probe([pair("imports", code)], timeout_seconds=NO_TIMEOUT) == {"imports": None}


def test_verdicts_are_cached(tmp_path, monkeypatch):
    good, bad = tmp_path / "good", tmp_path / "bad"
    pairs = [pair("works", touch(good)), pair("leaves", touch(bad) + "import os; os._exit(3)")]
    first = probe(pairs, timeout_seconds=NO_TIMEOUT)
    monkeypatch.setattr(probe_module, "ProbeProcess", None)  # to start a process would be a TypeError

    assert probe(pairs) == first
    assert (good.read_text(), bad.read_text()) == ("x", "x")


def test_damaged_and_foreign_entries_are_probed_again(tmp_path):
    root, count = tmp_path / "root", tmp_path / "count"
    one = [pair("works", touch(count))]
    for content in (
        None,
        b"",
        b'{"format": 1',
        b'{"format": 99, "reason": null}',
        b'{"format": 1, "reason": 7}',
        b"\xff",
    ):
        if content is not None:
            (entry,) = cached(root)
            entry.write_bytes(content)
        assert probe(one, cache_root=root, timeout_seconds=NO_TIMEOUT) == {"works": None}

    assert count.read_text() == "x" * 6
    assert len(cached(root)) == 1


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    root = tmp_path / "file"
    root.write_text("")

    assert probe([pair("works")], cache_root=root, timeout_seconds=NO_TIMEOUT) == {"works": None}
    assert [(record.name, record.levelno) for record in caplog.records] == [("fib_apply", logging.WARNING)]
    assert "works cannot be cached" in caplog.text


def test_a_death_by_an_external_signal_is_not_cached(cache_path):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    results = probe([pair("killed", code)], timeout_seconds=NO_TIMEOUT)

    assert results == {"killed": "it ended the process that loaded it by SIGKILL"}
    assert not (cache_path / "apply-v1").exists()


def test_without_a_process_nothing_is_loaded_or_cached(monkeypatch, cache_path):
    pairs = [pair("one"), pair("two", "pass")]
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    gc.collect()  # what other tests have left open
    descriptors = len(os.listdir("/proc/self/fd"))
    results = probe(pairs)
    assert results.keys() == {"one", "two"}
    assert all(reason and "the probe failed" in reason for reason in results.values())

    monkeypatch.setattr(sys, "executable", "/bin/false")
    results = probe(pairs)
    assert results == dict.fromkeys(("one", "two"), "the probe failed: its process did not start")
    assert not (cache_path / "apply-v1").exists()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_process_that_does_not_wait_for_its_children_can_probe():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        results = probe([pair("leaves", "import os; os._exit(3)"), pair("works")], timeout_seconds=NO_TIMEOUT)
    finally:
        signal.signal(signal.SIGCHLD, before)

    assert results == {"leaves": "it ended the process that loaded it with an unknown status", "works": None}


def test_the_child_does_not_outlive_this_process(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = f"import time\nfile = open({str(pipe)!r}, 'wb', 0)\nfile.write(b'x')\nwhile True: time.sleep(1)\n"
    script = "import sys\nfrom fib_schema import *\nfrom fib_apply.build_service.probe import probe\n"
    script += "probe([(parse_json(sys.argv[1], Definition), parse_json(sys.argv[2], Solution))])"
    records = [format_json(record) for record in pair("hangs", code)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, *records]
    with subprocess.Popen(command, env=environment) as process, pipe.open("rb") as file:
        assert file.read(1) == b"x"
        process.kill()
        assert file.read() == b""  # it is at its end when the one that writes is dead
