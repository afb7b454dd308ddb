"""Configuration files: every problem is named with its line and its remedy; a bad file never breaks an engine."""

import os

import attrs
import pytest
import torch
from apply_samples import THREE, new_definition, new_solution, new_trace, scale, write_set
from fib_apply import ApplyConfig, ApplyConfigRegistry, InvalidConfigFile, enable_apply, events
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


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "apply.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(autouse=True)
def _reports_again():
    events._reported.clear()


@pytest.fixture(name="found")
def found_fixture(tmp_path):
    write_set(tmp_path / "set", new_trace("fast", m=2), solutions=[new_solution("fast", content=THREE)])
    return tmp_path / "set"


def problems_of(path):
    with pytest.raises(InvalidConfigFile) as raised:
        read_config(path)
    return raised.value.problems


class TestContent:
    def test_all_settings_are_read(self, write):
        file = read_config(write(EVERYTHING))
        default = ApplyConfig(on_error="fallback", shadow_ratio=0.01, max_atol=0.5)
        scale = attrs.evolve(default, baseline="engine_scale", max_atol=None)
        assert file.registry == ApplyConfigRegistry(default, {"scale": scale, "other": default})
        assert file.stats

    @pytest.mark.parametrize("text", ["", "# nothing\n", "default:\ndefinitions:\n"])
    def test_what_is_not_given_is_the_default(self, write, text):
        assert read_config(write(text)).registry == ApplyConfigRegistry()

    def test_all_problems_are_named_with_line_and_remedy(self, write):
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
            ConfigProblem(8, "on_error", "no setting is named 'on_error'; known are 'default', 'definitions', 'stats'"),
            ConfigProblem(9, "stat", "no setting is named 'stat'; did you mean 'stats'?"),
            ConfigProblem(10, "stats", "got 1, expected true or false"),
        )


def served(x):
    return {2.0: "fallback", 3.0: "solution"}[scale(x)[0, 0].item()]


X = torch.ones(2, 4)


class TestPrecedence:
    def test_the_file_counts_where_the_program_passes_nothing(self, write, found, monkeypatch):
        monkeypatch.setenv("FIB_APPLY_CONFIG", str(write("default: {on_error: fallback}\nstats: true")))
        with enable_apply(found) as runtime:
            assert served(X) == "solution"
            assert runtime.config.default.on_error == "fallback"
            assert runtime.stats()["scale"].calls == 1

    def test_arguments_count_before_the_file(self, write, found, monkeypatch):
        monkeypatch.setenv("FIB_APPLY_CONFIG", str(write("default: {on_error: fallback}\nstats: true")))
        with enable_apply(found, ApplyConfig(margin=0.5), stats=False) as runtime:
            assert served(X) == "solution"
            assert runtime.config.default == ApplyConfig(margin=0.5)
            assert runtime.stats() == {}
        with enable_apply(found, ApplyConfig(margin=0.5)) as runtime:  # each argument counts for its part
            assert served(X) == "solution"
            assert runtime.stats()["scale"].calls == 1

    def test_an_invalid_file_as_argument_is_an_error_of_the_program(self, write, found):
        with pytest.raises(InvalidConfigFile):
            enable_apply(found, write("margin: 1"))


class TestBadFileOfTheEnvironment:
    @pytest.mark.parametrize("kind", ["invalid", "missing", "named pipe", "folder"])
    def test_nothing_is_routed_and_it_is_reported_once(self, kind, write, found, tmp_path, monkeypatch, caplog):
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

    def test_a_reload_reads_the_corrected_file(self, write, found, monkeypatch):
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
            ("definitions: {scal: {margin: 1}}", "definitions.scal: no definition is named 'scal'; did you mean"),
            ("default: {baseline: fats}", "default.baseline: no solution is named 'fats'; did you mean 'fast'?"),
            ("definitions: {scale: {exclude: [fats]}}", "definitions.scale.exclude: no solution is named 'fats'"),
            ("definitions: {scale: {only: [other]}}", "definitions.scale.only: 'other' is a solution of 'other_scale'"),
        ],
    )
    def test_names_that_the_data_set_does_not_have(self, write, found, capsys, caplog, text, problem):
        made = TraceSet.from_path(found)
        made.add_definitions([new_definition("other_scale")])
        made.add_solutions([new_solution("other", definition="other_scale")])
        path = write(text)
        assert main(["table", str(found), "--config", str(path)]) == 0
        assert problem in capsys.readouterr().err
        with enable_apply(found, path):
            assert any(problem in one.getMessage() for one in caplog.records if one.levelname == "WARNING")

    def test_what_definitions_inherit_is_a_problem_of_the_default_alone(self, write, found, capsys):
        TraceSet.from_path(found).add_definitions([new_definition("other_scale")])
        text = "default: {baseline: fast, exclude: [fast]}\ndefinitions: {scale: {margin: 1}, other_scale: {margin: 1}}"
        assert main(["table", str(found), "--config", str(write(text))]) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("setting", ["enabled: false", "exclude: [fast]", "only: [slow]"])
def test_an_operator_turns_a_solution_off_and_on_by_a_reload(write, found, setting):
    path = write("default: {}")
    with enable_apply(found, path) as runtime:
        assert scale(torch.ones(2, 4))[0, 0] == 3
        write(f"definitions: {{scale: {{{setting}}}}}")
        runtime.reload()
        assert scale(torch.ones(2, 4))[0, 0] == 2
        write("default: {}")
        runtime.reload()
        assert scale(torch.ones(2, 4))[0, 0] == 3
