"""Reloads: calls go on, and a failure keeps the earlier table."""

import shutil
import threading
import time
from pathlib import Path

import attrs
import pytest
import torch
from apply_samples import THREE, new_solution, new_trace, scale, write_set
from fib_apply import ApplyConfig, EventKind, add_event_listener, enable_apply, remove_event_listener
from fib_schema import DataSetNotFound, format_json
from fib_schema.files import atomic_write

SECONDS = 300.0
X = torch.ones(2, 4)


@attrs.frozen
class Folder:
    """A data set with one solution, which multiplies by a factor."""

    path: Path

    def set_factor(self, factor, extra=""):
        made = new_solution("fast", content=f"{extra}\ndef run(x, y):\n    y.copy_({factor} * x)\n")
        (path,) = (self.path / "solutions").rglob("*.json")
        atomic_write(path, format_json(made).encode())


@pytest.fixture(name="found")
def found_fixture(tmp_path):
    write_set(tmp_path / "set", new_trace("fast", m=2), solutions=[new_solution("fast", content=THREE)])
    return Folder(tmp_path / "set")


def factor():
    return float(scale(X)[0, 0].item())


def test_changed_files_and_settings_are_loaded(found, tmp_path):
    config = tmp_path / "apply.yaml"
    config.write_text("stats: true")
    with enable_apply(found.path, config) as runtime:
        assert factor() == 3
        found.set_factor(5)
        config.write_text("default: {on_error: fallback}")
        runtime.reload()
        assert factor() == 5
        assert runtime.config.default.on_error == "fallback"


def test_what_was_built_of_an_earlier_content_serves_no_call(found):
    with enable_apply(found.path, ApplyConfig(aot_ratio=0.0)) as runtime:
        assert factor() == 2
        assert runtime.wait_until_built(SECONDS)
        assert factor() == 3
        found.set_factor(5)
        runtime.reload()
        assert factor() == 2
        assert runtime.wait_until_built(SECONDS)
        assert factor() == 5


def test_what_cannot_be_loaded_keeps_the_earlier_table(found):
    with enable_apply(found.path) as runtime:
        shutil.move(found.path, found.path.with_name("moved"))
        with pytest.raises(DataSetNotFound):
            runtime.reload()
        assert factor() == 3
        shutil.move(found.path.with_name("moved"), found.path)
        found.set_factor(5)
        runtime.reload()
        assert factor() == 5


def test_a_running_call_keeps_the_earlier_table(found, tmp_path):
    inside, may_end = tmp_path / "inside", tmp_path / "end"
    wait = (
        "import pathlib, time\n"
        "def wait():\n"
        f"    pathlib.Path({str(inside)!r}).touch()\n"
        f"    while not pathlib.Path({str(may_end)!r}).exists(): time.sleep(0.01)\n"
    )
    found.set_factor("(wait(), 3)[1]", wait)
    results = []
    with enable_apply(found.path) as runtime:
        thread = threading.Thread(target=lambda: results.append(factor()))
        thread.start()
        while not inside.exists():
            time.sleep(0.01)
        found.set_factor(5)
        runtime.reload()
        assert factor() == 5
        may_end.touch()
        thread.join(SECONDS)
    assert results == [3]


def test_quarantines_of_a_reload_in_progress_are_kept(found):
    with enable_apply(found.path, ApplyConfig(on_error="fallback")) as runtime:
        assert factor() == 3

        def quarantine(event):
            if event.kind is EventKind.ROUTED:
                runtime.dispatcher("scale").quarantine("fast", "it is wrong")

        add_event_listener(quarantine)
        runtime.reload()
        remove_event_listener(quarantine)
        assert factor() == 2
