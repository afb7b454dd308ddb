"""Tests of settings: validation, YAML, and policies of other packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_schema import FibError, UnknownName
from fib_tracer import (
    FilterPolicy,
    InputDumpPolicy,
    InvalidSetting,
    PolicyRegistry,
    Rule,
    TracingConfig,
    TracingConfigRegistry,
    get_attention_only_configs,
    get_default_configs,
    get_full_configs,
)
from fib_tracer.config import to_registry
from fib_tracer.policies.dumping import DumpInt
from fib_tracer.policies.filtering import KeepFirstK, KeepRandomK
from hypothesis import given
from hypothesis import strategies as st

from .conftest import DECODE, GATHER, SILU

NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(["null", "on", "1", "0e0", "~", "a: b", "é"])
DUMPS = st.sampled_from(["dump_all", "dump_none", "dump_int"]) | st.lists(NAMES, max_size=3)
KS = st.fixed_dictionaries({"k": st.integers(1, 99)})
FILTERS = st.one_of(
    st.tuples(st.sampled_from(["keep_all", "keep_none", "keep_first"]), st.just({})),
    st.tuples(st.sampled_from(["keep_first_k", "keep_random_k", "keep_first_k_by_axes", "attention"]), KS),
    st.tuples(
        st.just(["keep_all", {"name": "keep_first_k_by_axes", "k": 2, "axes": ["M"]}, "keep_random_k"]), st.just({})
    ),
)
CONFIGS = st.builds(lambda dump, chosen: TracingConfig(dump, {}, *chosen), DUMPS, FILTERS)
REGISTRIES = st.builds(
    TracingConfigRegistry,
    st.none() | CONFIGS,
    st.dictionaries(NAMES, CONFIGS, max_size=3),
    st.lists(st.builds(Rule, CONFIGS, NAMES, NAMES), max_size=3),
)


@given(REGISTRIES)
def test_settings_round_trip_through_yaml(registry: TracingConfigRegistry) -> None:
    assert TracingConfigRegistry.from_yaml(registry.to_yaml()) == registry


@pytest.mark.parametrize("preset", [get_default_configs, get_full_configs, get_attention_only_configs])
def test_presets_are_saved_and_loaded(preset: Any, tmp_path: Path) -> None:
    preset().save(tmp_path / "settings.yaml")
    assert to_registry(tmp_path / "settings.yaml") == preset()


def test_all_keys_of_a_settings_file_are_optional() -> None:
    assert TracingConfigRegistry.from_yaml("") == TracingConfigRegistry()
    assert TracingConfigRegistry.from_yaml("default: null").default is None
    found = TracingConfigRegistry.from_yaml("definitions: {a: {input_dump_policy: dump_int}}")
    assert found.per_definition == {"a": TracingConfig("dump_int")}


@given(CONFIGS)
def test_settings_of_a_definition_round_trip_through_plain_objects(config: TracingConfig) -> None:
    assert TracingConfig.from_plain(config.to_plain()) == config
    with pytest.raises(InvalidSetting, match="expected a mapping of input_dump_policy"):
        TracingConfig.from_plain({**config.to_plain(), "filter": "keep_all"})


def test_an_unknown_policy_is_refused_with_the_known_names() -> None:
    with pytest.raises(UnknownName, match="dump_int"):
        TracingConfig("dump_ints")
    with pytest.raises(UnknownName, match="keep_first_k"):
        TracingConfig(filter_policy="keep_first_j")


def test_functions_and_objects_are_settings_that_cannot_be_saved() -> None:
    made = TracingConfig(lambda inputs: ["x"], filter_policy=lambda: KeepFirstK(2))
    assert isinstance(made.make_filter_policy(), KeepFirstK)
    assert isinstance(TracingConfig(DumpInt()).make_dump_policy(), DumpInt)
    for config in (made, TracingConfig(DumpInt())):
        with pytest.raises(InvalidSetting, match="cannot be written"):
            config.to_plain()
    with pytest.raises(InvalidSetting, match="FilterPolicy"):
        TracingConfig(filter_policy=list)


def test_a_key_function_is_imported_by_its_path() -> None:
    text = "default: {filter_policy: keep_first_k_by_key, filter_policy_kwargs: {key: 'operator:attrgetter', k: 2}}"
    registry = TracingConfigRegistry.from_yaml(text)
    assert TracingConfigRegistry.from_yaml(registry.to_yaml()) == registry


def test_own_settings_precede_rules_and_rules_precede_the_default() -> None:
    own, first, second, default = (TracingConfig("dump_all", filter_policy=name) for name in _POLICIES)
    rules = [Rule(first, op_type="act*", name="*_h9"), Rule(second, op_type="act*"), Rule(first)]
    registry = TracingConfigRegistry(default, {"gather_h8": own}, rules)
    h9 = attrs.evolve(SILU, name="silu_h9")
    assert [registry.get(d.name, d) for d in (GATHER, h9, SILU, DECODE)] == [own, first, second, first]
    assert registry.get("silu_h8") is default


_POLICIES = ("keep_all", "keep_first", "keep_none", "keep_random_k")


def test_settings_are_registered_all_or_none() -> None:
    registry = TracingConfigRegistry(None)
    registry.register("a", TracingConfig())
    wrong: Any = {"b": TracingConfig(), "a": TracingConfig("dump_int")}
    with pytest.raises(InvalidSetting, match="override"):
        registry.register_many(wrong)
    assert [*registry.per_definition] == ["a"]
    registry.register_many(wrong, override=True)
    assert registry.per_definition["a"] == TracingConfig("dump_int")
    not_settings: Any = {}
    with pytest.raises(InvalidSetting, match="TracingConfig"):
        registry.register("c", not_settings)


DEFINITIONS = {d.name: d for d in (SILU, GATHER, DECODE)}


def test_names_that_match_nothing_are_refused() -> None:
    """A name must be an input of at least one definition that the settings apply to."""
    TracingConfigRegistry(TracingConfig(["rows", "kv_indptr", "dump_none"])).check(DEFINITIONS)
    with pytest.raises(UnknownName, match="no_such") as caught:
        TracingConfigRegistry(TracingConfig(["rows", "no_such"])).check(DEFINITIONS)
    assert "kv_indptr" in str(caught.value)
    with pytest.raises(UnknownName, match="rows"):
        TracingConfigRegistry(TracingConfig(), rules=[Rule(TracingConfig(["rows"]), op_type="act*")]).check(DEFINITIONS)
    for policy in ("keep_first_k_by_axes", ["keep_first_k", {"name": "keep_first_k_by_axes", "axes": ["M", "rows"]}]):
        options = {} if isinstance(policy, list) else {"axes": ["M", "rows"]}
        config = TracingConfig("dump_none", filter_policy=policy, filter_policy_kwargs=options)
        with pytest.raises(UnknownName, match="no axis is named 'rows'"):
            TracingConfigRegistry(config).check(DEFINITIONS)
    axes = {"axes": ["M"]}
    by_axes = TracingConfig("dump_none", filter_policy="keep_first_k_by_axes", filter_policy_kwargs=axes)
    TracingConfigRegistry(by_axes).check(DEFINITIONS)
    with pytest.raises(UnknownName, match="silu_h7"):
        TracingConfigRegistry(None, {"silu_h7": TracingConfig()}).check(DEFINITIONS)


def test_rules_without_patterns_name_what_the_set_has() -> None:
    for matching in ({"name": "silu_h8"}, {"op_type": "gather"}, {"name": "none*", "op_type": "n?ne"}):
        TracingConfigRegistry(None, rules=[Rule(TracingConfig(), **matching)]).check(DEFINITIONS)
    with pytest.raises(UnknownName, match="no definition is named 'silu_h7'"):
        TracingConfigRegistry(None, rules=[Rule(TracingConfig(), name="silu_h7")]).check(DEFINITIONS)
    with pytest.raises(UnknownName, match="no op_type is named 'gatherer'"):
        TracingConfigRegistry(None, rules=[Rule(TracingConfig(), op_type="gatherer")]).check(DEFINITIONS)
    damaged = [*DEFINITIONS, "damaged"]
    TracingConfigRegistry(None, rules=[Rule(TracingConfig(), op_type="gatherer")]).check(DEFINITIONS, damaged)


def test_names_are_checked_once_and_not_for_each_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading entry points takes milliseconds, and a data set has hundreds of definitions."""
    registry = TracingConfigRegistry(TracingConfig(["x"]))
    asked: list[str] = []
    monkeypatch.setattr("fib_tracer.policies.registry.entry_points", lambda **group: asked.append("once") or [])
    registry.check({f"silu_{number}": SILU for number in range(200)})
    assert len(asked) <= 2


@pytest.mark.parametrize("wrong", [3, ["a"], {"a": 3}, {"a": "dump_all"}])
def test_other_types_of_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidSetting):
        to_registry(wrong)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that offers policies."""
    (tmp_path / "of_others.py").write_text(
        "from fib_tracer import FilterPolicy\nfrom fib_tracer.policies.dumping import DumpNone\n"
        "class Mine(FilterPolicy):\n    def __init__(self, k=1): self.k = k\n"
        "class Less(DumpNone): pass\n"
    )
    information = tmp_path / "of_others-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: of-others\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[fib_tracer.filter_policies]\nmine = of_others:Mine\nmissing = of_others:Nobody\nnone = of_nobody:Mine\n"
        "wrong = os:getcwd\n[fib_tracer.input_dump_policies]\nless = of_others:Less\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("of_others", None)


def test_policies_of_other_packages_are_found_by_name(package: Path) -> None:
    assert {"mine", "keep_all"} <= set(PolicyRegistry.list_filter_policies())
    assert "less" in PolicyRegistry.list_input_dump_policies()
    config = TracingConfig(["x", "less"], filter_policy="mine", filter_policy_kwargs={"k": 5})
    assert vars(config.make_filter_policy())["k"] == 5
    assert config.named_inputs() == ("x",)


@pytest.mark.parametrize("name", ["missing", "none", "wrong"])
def test_a_policy_that_cannot_be_loaded_is_refused(package: Path, name: str) -> None:
    with pytest.raises(InvalidSetting, match="filter policy"):
        TracingConfig(filter_policy=name)


def test_a_program_registers_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyRegistry, "_filtering", dict(PolicyRegistry._filtering))
    monkeypatch.setattr(PolicyRegistry, "_dumping", dict(PolicyRegistry._dumping))

    @PolicyRegistry.register_filter_policy("my_sample")
    class Mine(KeepRandomK):
        pass

    PolicyRegistry.register_input_dump_policy("my_integers", DumpInt)
    assert isinstance(TracingConfig("my_integers", filter_policy="my_sample").make_filter_policy(), Mine)
    with pytest.raises(InvalidSetting, match="override"):
        PolicyRegistry.register_filter_policy("my_sample", KeepFirstK)
    PolicyRegistry.register_filter_policy("my_sample", KeepFirstK, override=True)
    assert PolicyRegistry.get_filter_policy("my_sample") is KeepFirstK
    with pytest.raises(InvalidSetting, match=InputDumpPolicy.__name__):
        PolicyRegistry.register_input_dump_policy("no_policy", FilterPolicy)


def test_all_errors_of_settings_are_fib_errors() -> None:
    for make in (lambda: TracingConfig("no_such"), lambda: TracingConfig(3), lambda: to_registry(FibError)):  # type: ignore[arg-type]
        with pytest.raises(FibError):
            make()
