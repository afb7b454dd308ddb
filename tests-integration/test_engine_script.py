"""Resumption of the harness of engines: `on_gpu.sh` is killed at each step, and called again until it is complete.

The steps are programs that write what the real ones write, in two halves (`support/engine_program.py`); rounds and the
report are the harness itself. Whatever was killed, the run ends with the same files as one that was not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest

FOLDER = Path(__file__).parent
AGAIN = 75
_MOST_CALLS = 40
_STEPS = ("trace-eager", "trace-graphs", "solutions", "bench", "warm-routed", "warm-winners")
_ENGINES = ("engine-eager-plain", "engine-eager-routed", "engine-graphs-winners")
_SETTINGS = ("setting-fp8-cache", "setting-chunked-prefill", "setting-speculative")
KILLS = [
    *(f"{step} {place} {who}" for step in _STEPS for place in ("begin", "half", "end") for who in ("self", "all")),
    *(f"arms {place} {who}" for place in ("half-routed", "half-winners", "end") for who in ("self", "all")),
    *(f"{step} {place} all" for step in _ENGINES for place in ("begin", "half", "end", "over")),
    *(f"{step} {place} all" for step in _SETTINGS for place in ("begin", "half", "end")),
    *(f"{place} all" for place in ("start-set half", "warm-start half", "start-measure begin", "start-measure end")),
    *(f"{step} {place} all" for step in ("measure", "report") for place in ("begin", "end")),
    *(f"{step} half script" for step in ("trace-eager", "bench", "engine-eager-routed", "setting-speculative")),
]
_FAST = ("trace-graphs half all", "engine-graphs-winners end all", "setting-fp8-cache half all", "bench half script")


@attrs.frozen
class Run:
    """A run of the script in a folder of its own."""

    folder: Path

    @property
    def out(self) -> Path:
        """The folder of results."""
        return self.folder / "out"

    def call(self, *options: str, **environment: str) -> int:
        """Call the script once, in a session of its own; its status."""
        program, definitions = self.folder / "bin" / "python3", self.folder / "definitions"
        if not program.exists():
            for folder in (program.parent, definitions, self.out):
                folder.mkdir(parents=True)
            source = (FOLDER / "support" / "engine_program.py").read_text()
            program.write_text(f"#!{sys.executable}\n{source}")
            program.chmod(0o755)
        path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
        of_test = {"OUT_OF_TEST": str(self.out), "ENGINES_OF_TEST": str(FOLDER / "engines")}
        command = ["bash", str(FOLDER / "engines" / "on_gpu.sh"), "site", str(definitions), str(self.out)]
        command += ["--rounds", "1", "--turns", "2", "--arms", "plain", "routed", "winners", *options]
        with (self.folder / "log").open("a") as log:
            return subprocess.run(
                command, env={**os.environ, "PATH": path, **of_test, **environment}, cwd=FOLDER.parent, check=False,
                start_new_session=True, stdout=log, stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip

    def complete(self, *options: str, **environment: str) -> list[int]:
        """Call the script until it does not ask for another call; the statuses. A lost call is followed by another."""
        codes: list[int] = []
        while not codes or codes[-1] in (AGAIN, -9):
            assert len(codes) < _MOST_CALLS, (self.folder / "log").read_text()
            codes.append(self.call(*options, **environment))
            time.sleep(0.05)
        return codes

    def files(self) -> set[str]:
        """Files of a run, without logs and what only this test needs."""
        paths = (path.relative_to(self.out).as_posix() for path in self.out.rglob("*") if path.is_file())
        others = ("events", "killed", "lock")
        return {path for path in paths if path not in others and not path.endswith((".log", ".part"))}

    def events(self) -> list[str]:
        """The places that steps have reached."""
        return (self.out / "events").read_text().splitlines()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing has killed; it fails in its report because it has one round."""
    run = Run(tmp_path_factory.mktemp("whole"))
    assert run.complete() == [AGAIN, AGAIN, AGAIN, AGAIN, 1]
    return run


def problems(run: Run) -> list[str]:
    """The problems at the end of the report."""
    lines = (run.out / "report.md").read_text().partition("\nproblems: ")[2].splitlines()
    return [line.removeprefix("- ") for line in lines if line.startswith("- ")]


def test_steps_are_made_in_order(whole: Run) -> None:
    ends = [event.removesuffix(" end") for event in whole.events() if event.endswith(" end")]
    assert ends[:5] == ["trace-eager", "trace-graphs", "solutions", "bench", "arms"]
    assert sorted(ends[5:7]) == ["warm-routed", "warm-winners"]
    assert sorted(ends[7:13]) == sorted(
        f"engine-{m}-{a}" for m in ("eager", "graphs") for a in ("plain", "routed", "winners")
    )
    assert ends[13] == "measure"
    assert sorted(ends[14:17]) == sorted(_SETTINGS)
    assert ends[17:] == ["measure", "warm-start", "start-measure", "report"]


def test_the_report_is_whole(whole: Run) -> None:
    text = (whole.out / "report.md").read_text()
    assert problems(whole) == [f"{mode}: 1 complete rounds, fewer than 5" for mode in ("eager", "graphs")]
    assert "100.0% (3 of 3, 3 of them by the original; 0 without key) | 95% | met |" in text
    assert "1.50 s (of 1.50), table of 200 definitions; ready for 9 of 9 keys | 2 s | met |" in text
    assert "| eager, overhead arm, fp8-cache: calls that are decided or have a reason | 16 decided; no others |" in text


@pytest.mark.parametrize(
    "kill", [pytest.param(kill, marks=() if kill in _FAST else pytest.mark.slow, id=kill) for kill in KILLS]
)
def test_a_run_that_was_killed_ends_like_one_that_was_not(kill: str, whole: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    codes = run.complete(KILL=kill)
    assert (run.out / "killed").exists(), "the test killed nothing"
    assert codes[-1] == 1, (run.folder / "log").read_text()  # one round only
    assert run.files() == whole.files()
    assert problems(run) == problems(whole)
    for mode in ("eager", "graphs"):  # the processes of a round have lived at the same time
        of_round = [json.loads(path.read_text()) for path in (run.out / "rounds").glob(f"*-{mode}-*.json")]
        assert len({record["attempt"] for record in of_round}) == 1
    assert not list(run.out.rglob("*.partial"))


def test_rounds_of_another_machine_are_measured_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.complete()[-1] == 1
    options = ("--rounds", "2")
    assert run.complete(*options, MACHINE="H200 b")[-1] == 1
    records = [json.loads(path.read_text()) for path in (run.out / "rounds").glob("*.json")]
    assert {record["machine"] for record in records} == {"H200 b"}
    assert len(records) == 12
    assert len(list((run.out / "rounds-set-aside").rglob("*.json"))) == 6
    assert not [problem for problem in problems(run) if "machine" in problem]


def test_a_benchmark_of_which_some_work_could_not_run_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.call()
    assert run.call(FAILS="bench 2") == 2
    assert not (run.out / "benched").exists()
    assert run.call(FAILS="bench 1") == AGAIN
    assert (run.out / "benched").exists()


def test_arms_that_are_not_warm_are_not_measured(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(2):
        run.call()
    for code, expected in (("1", 1), ("124", AGAIN), ("0", AGAIN)):
        assert run.call(FAILS=f"warm-routed {code}") == expected
        assert (run.out / "warmed").exists() is (code == "0")


def test_settings_that_all_fail_are_a_failure(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.complete(FAILS="setting 3")[-1] == 1
    assert not (run.out / "settings" / "complete").exists()
    text = (run.out / "settings" / "fp8-cache.failed").read_text()
    assert text.splitlines() == ["status 3", "setting-fp8-cache fails | as it was told"]
    assert run.complete(FAILS="setting-fp8 3")[-1] == 1  # of its report
    lines = (run.out / "report.md").read_text().splitlines()
    line = next(one for one in lines if one.startswith("| eager, overhead arm, fp8"))
    assert line.split(" | ")[1:] == ["status 3; setting-fp8-cache fails &#124; as it was told", "all", "not run |"]
    assert "eager, routed, fp8-cache: not run" in problems(run)
