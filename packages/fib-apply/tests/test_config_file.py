"""Configuration files: every problem is named with its line and its remedy; a bad file never breaks an engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from apply_samples import THREE, new_definition, new_solution, new_trace, write_set
from fib_apply import (
    ApplyConfig,
    ApplyConfigRegistry,
    InvalidConfigFile,
    apply,
    enable_apply,
    events,
)
from fib_apply.cli import main
from fib_apply.config import read_config
from fib_apply.errors import ConfigProblem
from fib_schema import TraceSet

EVERYTHING = """
default:
  on_error: fallback     # an error of a solution must not reach a request
  shadow_ratio: 1e-2
  max_atol: 0.5
definitions:
  scale:
    baseline: engine_scale
    max_atol: null
  other:
stats: true
"""
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "apply.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(autouse=True)
def _reports_again() -> None:
    events._reported.clear()


@pytest.fixture(name="found")
def found_fixture(tmp_path: Path) -> Path:
    write_set(tmp_path / "set", new_trace("fast", m=2), solutions=[new_solution("fast", content=THREE)])
    return tmp_path / "set"


def problems_of(path: Path) -> tuple[ConfigProblem, ...]:
    with pytest.raises(InvalidConfigFile) as raised:
        read_config(path)
    return raised.value.problems


class TestContent:
    def test_all_settings_are_read(self, write: Write) -> None:
        file = read_config(write(EVERYTHING))
        default = ApplyConfig(on_error="fallback", shadow_ratio=0.01, max_atol=0.5)
        scale = attrs.evolve(default, baseline="engine_scale", max_atol=None)
        assert file.registry == ApplyConfigRegistry(default, {"scale": scale, "other": default})
        assert file.stats

    @pytest.mark.parametrize("text", ["", "# nothing\n", "default:\ndefinitions:\n"])
    def test_what_is_not_given_is_the_default(self, write: Write, text: str) -> None:
        assert read_config(write(text)).registry == ApplyConfigRegistry()

    def test_all_problems_are_named_with_line_and_remedy(self, write: Write) -> None:
        text = (
            "default:\n  on_eror: fallback\n  margin: -1\n  margin: 2\n"
            "definitions:\n  a: {baseline: 3}\n  b: [1]\n"
            "on_error: raise\nstat: true\nstats: 1\n"
        )
        assert problems_of(write(text)) == (
            ConfigProblem(2, "default.on_eror", "no setting is named 'on_eror'; did you mean 'on_error', 'aot_ratio'?"),
            ConfigProblem(3, "default.margin", "got -1, expected a number >= 0"),
            ConfigProblem(4, "default.margin", "given twice; remove one"),
            ConfigProblem(6, "definitions.a.baseline", "got 3, expected a text"),
            ConfigProblem(7, "definitions.b", "got [1], expected a mapping of settings to values"),
            ConfigProblem(8, "on_error", "a setting of definitions; put it below 'default', or below 'definitions'"),
            ConfigProblem(9, "stat", "no setting is named 'stat'; did you mean 'stats'?"),
            ConfigProblem(10, "stats", "got 1, expected true or false"),
        )


def served(x: torch.Tensor) -> str:
    @apply("scale")
    def scale(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    return {2.0: "fallback", 3.0: "solution"}[scale(x)[0, 0].item()]


X = torch.ones(2, 4)


class TestPrecedence:
    def test_the_file_counts_where_the_program_passes_nothing(
        self, write: Write, found: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FIB_APPLY_CONFIG", str(write("default: {on_error: fallback}\nstats: true")))
        with enable_apply(found) as runtime:
            assert served(X) == "solution"
            assert runtime.config.default.on_error == "fallback"
            assert runtime.stats()["scale"].calls == 1

    def test_arguments_count_before_the_file(self, write: Write, found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FIB_APPLY_CONFIG", str(write("default: {on_error: fallback}\nstats: true")))
        with enable_apply(found, ApplyConfig(margin=0.5), stats=False) as runtime:
            assert served(X) == "solution"
            assert runtime.config.default == ApplyConfig(margin=0.5)
            assert runtime.stats() == {}
        with enable_apply(found, ApplyConfig(margin=0.5)) as runtime:  # each argument counts for its part
            assert served(X) == "solution"
            assert runtime.stats()["scale"].calls == 1

    def test_the_kill_switch_counts_before_all(
        self, write: Write, found: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FIB_APPLY_CONFIG", str(write("stats: true")))
        monkeypatch.setenv("FIB_ENABLE_APPLY", "0")
        with enable_apply(found):
            assert served(X) == "fallback"

    def test_an_invalid_file_as_argument_is_an_error_of_the_program(self, write: Write, found: Path) -> None:
        with pytest.raises(InvalidConfigFile):
            enable_apply(found, write("margin: 1"))


class TestBadFileOfTheEnvironment:
    @pytest.mark.parametrize("kind", ["invalid", "missing", "named pipe", "folder"])
    def test_nothing_is_routed_and_it_is_reported_once(
        self,
        kind: str,
        write: Write,
        found: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        path = tmp_path / "apply.yaml"
        if kind == "invalid":
            write("default: {on_eror: raise}")
        elif kind == "named pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        monkeypatch.setenv("FIB_APPLY_CONFIG", str(path))
        for settings in (None, ApplyConfig()):
            with enable_apply(found, settings):
                assert served(X) == "fallback"
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1
        assert str(path) in errors[0]
        assert "nothing is routed until the file is corrected" in errors[0]

    def test_a_reload_reads_the_corrected_file(
        self, write: Write, found: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FIB_APPLY_CONFIG", str(write("stats: 1")))
        with enable_apply(found) as runtime:
            with pytest.raises(InvalidConfigFile):
                runtime.reload()
            assert served(X) == "fallback"
            write("stats: true")
            runtime.reload()
            assert served(X) == "solution"
            assert runtime.stats()["scale"].calls == 1


class TestNames:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (
                "definitions: {scal: {margin: 1}}",
                "definitions.scal: no definition is named 'scal'; did you mean",
            ),
            ("default: {baseline: fats}", "default.baseline: no solution is named 'fats'; did you mean 'fast'?"),
            ("definitions: {scale: {exclude: [fats]}}", "definitions.scale.exclude: no solution is named 'fats'"),
            ("definitions: {scale: {only: [other]}}", "definitions.scale.only: 'other' is a solution of 'other_scale'"),
            ("default: {nearest: {M: 2}}", "default.nearest: it has no effect without on_miss_policy: nearest"),
            ("default: {on_miss_policy: nearest}", "default.on_miss_policy: it has no effect without axes in nearest"),
            (
                "default: {on_miss_policy: nearest, nearest: {K: 2}}",
                "default.nearest: no variable axis is named 'K'; known are 'M'",
            ),
        ],
    )
    def test_names_and_settings_without_effect(
        self,
        write: Write,
        found: Path,
        capsys: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
        text: str,
        problem: str,
    ) -> None:
        made = TraceSet.from_path(found)
        made.add_definitions([new_definition("other_scale")])
        made.add_solutions([new_solution("other", definition="other_scale")])
        path = write(text)
        assert main(["table", str(found), "--config", str(path)]) == 0
        assert problem in capsys.readouterr().err
        with enable_apply(found, path):
            assert any(problem in one.getMessage() for one in caplog.records if one.levelname == "WARNING")

    def test_what_definitions_inherit_is_a_problem_of_the_default_alone(
        self, write: Write, found: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        TraceSet.from_path(found).add_definitions([new_definition("other_scale")])
        text = "default: {baseline: fast, exclude: [fast]}\ndefinitions: {scale: {margin: 1}, other_scale: {margin: 1}}"
        assert main(["table", str(found), "--config", str(write(text))]) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("setting", ["enabled: false", "exclude: [fast]", "only: [slow]"])
def test_an_operator_turns_a_solution_off_and_on_by_a_reload(write: Write, found: Path, setting: str) -> None:
    @apply("scale")
    def scale(x: Any) -> Any:
        return 2 * x

    path = write("default: {}")
    with enable_apply(found, path) as runtime:
        assert scale(torch.ones(2, 4))[0, 0] == 3
        write(f"definitions: {{scale: {{{setting}}}}}")
        runtime.reload()
        assert scale(torch.ones(2, 4))[0, 0] == 2
        write("default: {}")
        runtime.reload()
        assert scale(torch.ones(2, 4))[0, 0] == 3
