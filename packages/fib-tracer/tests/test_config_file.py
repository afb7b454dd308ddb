"""Settings files: every problem is named with its line and its remedy; a bad file never breaks an engine."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fib_apply import InvalidConfigFile
from fib_apply.errors import ConfigProblem
from fib_tracer import (
    InvalidSetting,
    Rule,
    TracingConfig,
    TracingConfigRegistry,
    TracingRuntime,
    enable_tracing,
    get_full_configs,
    get_tracing_runtime,
    start_by_environment,
)
from fib_tracer.config_file import SettingsFile, parse_settings, read_settings
from fib_tracer.tracing_config import CONFIG_VARIABLE, ENABLE_VARIABLE, RuntimeOptions
from hypothesis import given
from hypothesis import strategies as st

EVERYTHING = """
default: null              # definitions without a rule are not traced
rules:
  - {op_type: "gqa*", input_dump_policy: dump_int, filter_policy: attention, filter_policy_kwargs: {k: 2}}
  - {name: "*_h8", filter_policy: [keep_first_k_by_axes, {name: keep_random_k, k: 8}], max_kept: null}
definitions:
  silu_h8: {filter_policy: keep_first_k_by_axes, max_kept: 100}
max_bytes: 1000000
wait_seconds: 1e-2
drafts: true
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "tracing.yaml"
        path.write_text(text)
        return path

    return write


def problems_of(text: str) -> tuple[ConfigProblem, ...]:
    with pytest.raises(InvalidConfigFile) as raised:
        parse_settings(text.encode(), "tracing.yaml")
    return raised.value.problems


class TestContent:
    def test_all_settings_are_read(self, write: Any) -> None:
        file = read_settings(write(EVERYTHING))
        sampled = ["keep_first_k_by_axes", {"name": "keep_random_k", "k": 8}]
        rules = (
            Rule(TracingConfig("dump_int", {}, "attention", {"k": 2}), op_type="gqa*"),
            Rule(TracingConfig(filter_policy=sampled, max_kept=None), name="*_h8"),
        )
        own = {"silu_h8": TracingConfig(filter_policy="keep_first_k_by_axes", max_kept=100)}
        assert (file.default, file.definitions, file.rules) == (None, own, rules)
        assert file.options == RuntimeOptions(1_000_000, 0.01, True)

    @pytest.mark.parametrize("text", ["", "# nothing\n", "rules:\ndefinitions:\n"])
    def test_what_is_not_given_is_the_default(self, text: str) -> None:
        assert parse_settings(text.encode(), "") == SettingsFile()
        assert TracingConfigRegistry.from_yaml(text) == TracingConfigRegistry()

    def test_all_problems_are_named_with_line_and_remedy(self) -> None:
        text = (
            "default:\n  input_dump_polcy: dump_int\n  max_kept: 0\n"
            "rules:\n  - {nom: a}\n  - {name: 3}\n  - a\n  - {filter_policy: keep_first_j}\n"
            "definitions:\n  a: {filter_policy: keep_first_k, filter_policy_kwargs: {j: 3}}\n"
            "  b: {input_dump_policy: dump_ints}\n  b: {}\n  c: [1]\n"
            "rulse: []\nmax_kept: 3\nmax_bytes: 1.5\nwait_seconds: .inf\ndrafts: 1\n"
        )
        found = {(p.line, p.path): p.message for p in problems_of(text)}
        assert found == {
            (2, "default.input_dump_polcy"): found[2, "default.input_dump_polcy"],
            (3, "default.max_kept"): "got 0, expected an integer from 1 on, or None",
            (5, "rules[0].nom"): "no setting is named 'nom'; did you mean 'name'?",
            (6, "rules[1].name"): "got 3, expected a pattern as text",
            (7, "rules[2]"): "expected a mapping of settings to values, such as 'filter_policy: keep_first'",
            (8, "rules[3].filter_policy"): found[8, "rules[3].filter_policy"],
            (10, "definitions.a.filter_policy_kwargs"): found[10, "definitions.a.filter_policy_kwargs"],
            (11, "definitions.b.input_dump_policy"): found[11, "definitions.b.input_dump_policy"],
            (12, "definitions.b"): "given twice; remove one",
            (13, "definitions.c"): "expected a mapping of settings to values, such as 'filter_policy: keep_first'",
            (14, "rulse"): "no setting is named 'rulse'; did you mean 'rules'?",
            (15, "max_kept"): "a setting of definitions; put it below 'default', 'rules' or 'definitions'",
            (16, "max_bytes"): "got 1.5, expected an integer from 1 on",
            (17, "wait_seconds"): "got inf, expected a number of seconds from 0 on",
            (18, "drafts"): "got 1, expected true or false",
        }
        assert "did you mean 'input_dump_policy'" in found[2, "default.input_dump_polcy"]
        assert "did you mean 'keep_first_k'" in found[8, "rules[3].filter_policy"]
        assert "expected arguments of KeepFirstK" in found[10, "definitions.a.filter_policy_kwargs"]
        assert "did you mean 'dump_int'" in found[11, "definitions.b.input_dump_policy"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "not valid YAML"),
            ("- a", "expected a mapping"),
            ("default: 3", "expected a mapping"),
            ("default: {input_dump_policy: 3}", "expected a policy's name"),
            ("default: {input_dump_policy_kwargs: 5}", "expected a mapping by the names of arguments"),
            ("default: {input_dump_policy_kwargs: {1: 2}}", "expected a mapping by the names of arguments"),
            ("default: {filter_policy_kwargs: [k]}", "expected a mapping by the names of arguments"),
            ("default: {filter_policy: 3}", "expected a policy's name"),
            ("default: {filter_policy: [3]}", "expected a policy's name"),
            ("default: {filter_policy: [{k: 3}]}", "expected a policy's name"),
            ("default: {filter_policy: keep_first_k, filter_policy_kwargs: {k: 0}}", "expected an integer from 1 on"),
            (
                "default: {filter_policy: keep_first_k_by_key, filter_policy_kwargs: {key: 'no.mod:x'}}",
                "expected a function",
            ),
            (
                "default: {filter_policy: keep_first_k_by_key, filter_policy_kwargs: {key: 'os:no_such'}}",
                "expected a function",
            ),
            ("default: {filter_policy: keep_first_k_by_key, filter_policy_kwargs: {key: ''}}", "expected a function"),
            ("default: {max_kept: true}", "expected an integer from 1 on"),
            ("definitions: [a]", "expected a mapping"),
            ("rules: 5", "expected a list of mappings"),
            ("rules: {name: a}", "expected a list of mappings"),
            ("rules: [{name: 2026-13-45}]", "not a plain value"),
            ("default: &a {max_kept: 1}\ndefinitions: {x: *a}", "the alias *a is not allowed"),
            ("a: " + "[" * 5000, "nested more than 8 levels"),
            ("default: {input_dump_policy: !!python/object:os.system x}", "not a plain value"),
        ],
    )
    def test_texts_that_are_no_settings(self, text: str, message: str) -> None:
        assert message in problems_of(text)[0].message

    @given(st.text() | st.binary())
    def test_no_content_raises_another_error(self, content: str | bytes) -> None:
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        with contextlib.suppress(InvalidConfigFile):
            parse_settings(data, "any.yaml")


class TestFiles:
    def test_a_named_pipe_is_refused_without_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "tracing.yaml")
        with pytest.raises(OSError, match="it is a named pipe, not a regular file"):
            read_settings(tmp_path / "tracing.yaml")

    def test_a_large_file_is_refused(self, write: Any) -> None:
        with pytest.raises(OSError, match="at most 1048576 are read"):
            read_settings(write("#" * 2_000_000))

    def test_the_error_names_the_file(self, write: Any) -> None:
        path = write("rulse: []")
        with pytest.raises(InvalidConfigFile) as raised:
            TracingConfigRegistry.load(path)
        assert f"{path}:1: rulse: no setting" in str(raised.value)


class TestRuntimes:
    def test_options_of_a_file_are_used(self, root: Path, write: Any) -> None:
        runtime = TracingRuntime(root, write(EVERYTHING))
        assert runtime.budget.size_bytes == 1_000_000
        assert runtime.config.default is None

    def test_arguments_count_before_the_options_of_a_file(self, root: Path, write: Any) -> None:
        assert TracingRuntime(root, write(EVERYTHING), max_bytes=5).budget.size_bytes == 5
        with pytest.raises(InvalidSetting, match="max_bytes"):
            TracingRuntime(root, write(EVERYTHING), max_bytes=0)

    def test_the_file_of_the_environment_counts_where_the_program_passes_nothing(
        self, root: Path, write: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CONFIG_VARIABLE, str(write(EVERYTHING)))
        assert TracingRuntime(root).config.default is None
        assert TracingRuntime(root, TracingConfig("dump_all")).config == TracingConfigRegistry(
            TracingConfig("dump_all")
        )
        monkeypatch.setenv(CONFIG_VARIABLE, "")
        assert TracingRuntime(root).config == get_full_configs()

    @pytest.mark.parametrize("kind", ["invalid", "missing", "named pipe", "unknown definition"])
    def test_an_engine_with_an_unusable_file_runs_untraced_and_logs_it(
        self,
        kind: str,
        root: Path,
        silu: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        path = tmp_path / "tracing.yaml"
        if kind == "invalid":
            path.write_text("default: {filter_polic: keep_all}")
        elif kind == "named pipe":
            os.mkfifo(path)
        elif kind == "unknown definition":
            path.write_text("definitions: {silu_h9: {}}")
        monkeypatch.setenv(CONFIG_VARIABLE, str(path))
        monkeypatch.setenv(ENABLE_VARIABLE, "1")
        monkeypatch.setenv("FIB_DATASET_PATH", str(root))
        with caplog.at_level(logging.ERROR, "fib_tracer"):
            start_by_environment()
        assert get_tracing_runtime() is None
        assert silu(torch.ones(2, 8)).shape == (2, 8)
        (message,) = [record.getMessage() for record in caplog.records]
        assert "tracing cannot start" in message
        if kind == "invalid":
            assert f"{path}:1: default.filter_polic: no setting is named" in message

    def test_an_engine_is_traced_with_the_settings_of_the_environment(
        self, root: Path, silu: Any, write: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CONFIG_VARIABLE, str(write("default: {filter_policy: keep_first}\nmax_bytes: 123456")))
        with enable_tracing(root) as runtime:
            for size in (1, 2, 3):
                silu(torch.ones(size, 8))
            assert runtime.flush()["silu_h8"].stored == 1
            assert runtime.budget.size_bytes == 123456
