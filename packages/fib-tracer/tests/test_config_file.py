"""Settings files: problems are named with their line; a bad file never breaks an engine."""

import logging
import os

import pytest
import torch
from fib_schema.settings import InvalidConfigFile
from fib_tracer import (
    InvalidSetting,
    Rule,
    TracingConfig,
    TracingConfigRegistry,
    TracingRuntime,
    get_full_configs,
    get_tracing_runtime,
    start_by_environment,
)
from fib_tracer.settings import CONFIG_VARIABLE, ENABLE_VARIABLE, RuntimeOptions, read_configuration

EVERYTHING = """
default: null              # definitions without a rule are not traced
rules:
  - {op_type: "gqa*", input_dump_policy: dump_int, filter_policy: attention, filter_policy_kwargs: {k: 2}}
  - {name: "*_h8", filter_policy: keep_random_k, max_kept: null}
definitions:
  silu_h8: {filter_policy: keep_first_k_by_axes, max_kept: 100}
max_bytes: 1000000
exit_seconds: 1e-2
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "tracing.yaml"
        path.write_text(text)
        return path

    return write


def test_all_settings_are_read(write):
    rules = (
        Rule(TracingConfig("dump_int", {}, "attention", {"k": 2}), op_type="gqa*"),
        Rule(TracingConfig(filter_policy="keep_random_k", max_kept=None), name="*_h8"),
    )
    own = {"silu_h8": TracingConfig(filter_policy="keep_first_k_by_axes", max_kept=100)}
    registry = TracingConfigRegistry(None, own, rules)
    assert read_configuration(write(EVERYTHING), {}) == (registry, RuntimeOptions(1_000_000, 0.01))


def test_problems_of_all_parts_are_named_with_their_line(write):
    text = (
        "default:\n  input_dump_polcy: dump_int\n  max_kept: 0\n"
        "rules:\n  - {nom: a}\n  - {name: 3}\n  - a\n  - {filter_policy: keep_first_j}\n"
        "definitions:\n  a: {filter_policy: keep_first_k, filter_policy_kwargs: {j: 3}}\n"
        "rulse: []\nmax_kept: 3\nmax_bytes: 1.5\nexit_seconds: .inf\n"
    )
    with pytest.raises(InvalidConfigFile) as raised:
        TracingConfigRegistry.load(write(text))
    found = {problem.line: f"{problem.path}: {problem.message}" for problem in raised.value.problems}
    assert list(found) == [2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 14]
    assert found[3] == "default.max_kept: got 0, expected an integer from 1 on, or None"
    assert found[5] == "rules[0].nom: no setting is named 'nom'; did you mean 'name'?"
    assert "did you mean 'input_dump_policy'" in found[2]
    assert "did you mean 'keep_first_k'" in found[8]
    assert "expected arguments of KeepFirstK" in found[10]
    assert found[12].startswith("max_kept: no setting is named 'max_kept'; ")
    assert found[14] == "exit_seconds: got inf, expected a number of seconds from 0 on"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "expected a mapping"),
        ("default: 3", "expected a mapping"),
        ("default: {input_dump_policy: 3}", "expected a policy's name"),
        ("default: {input_dump_policy_kwargs: 5}", "expected a mapping"),
        ("default: {filter_policy: 3}", "expected a policy's name"),
        ("default: {filter_policy: keep_first_k, filter_policy_kwargs: {k: 0}}", "expected an integer from 1 on"),
        ("default: {filter_policy: keep_first_k_by_key, filter_policy_kwargs: {key: text}}", "a function"),
        ("definitions: [a]", "expected a mapping"),
        ("rules: 5", "expected a list of mappings"),
    ],
)
def test_texts_that_are_no_settings(text, message):
    with pytest.raises(InvalidConfigFile, match=message):
        TracingConfigRegistry.from_yaml(text)


def test_arguments_count_before_the_options_of_a_file(root, write):
    runtime = TracingRuntime(root, write(EVERYTHING))
    assert (runtime.budget.size_bytes, runtime.config.default) == (1_000_000, None)
    assert TracingRuntime(root, write(EVERYTHING), max_bytes=5).budget.size_bytes == 5
    with pytest.raises(InvalidSetting, match="max_bytes"):
        TracingRuntime(root, write(EVERYTHING), max_bytes=0)


def test_the_file_of_the_environment_counts_where_the_program_passes_nothing(root, write, monkeypatch):
    monkeypatch.setenv(CONFIG_VARIABLE, str(write(EVERYTHING)))
    assert TracingRuntime(root).config.default is None
    given = TracingConfig("dump_all")
    assert TracingRuntime(root, given).config == TracingConfigRegistry(given)
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    assert TracingRuntime(root).config == get_full_configs()


@pytest.mark.parametrize("kind", ["invalid", "missing", "named pipe", "unknown definition"])
def test_an_engine_with_an_unusable_file_runs_untraced_and_logs_it(kind, root, silu, tmp_path, monkeypatch, caplog):
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
