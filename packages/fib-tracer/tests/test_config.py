"""Tests of settings: validation, YAML, and policies of other packages."""

import sys

import attrs
import pytest
from fib_schema import UnknownName
from fib_tracer import (
    FilterPolicy,
    InputDumpPolicy,
    InvalidSetting,
    PolicyRegistry,
    Rule,
    TracingConfig,
    TracingConfigRegistry,
)
from fib_tracer.policies import DumpInt, KeepFirstK, KeepRandomK
from fib_tracer.settings import read_configuration

from .conftest import DECODE, GATHER, SILU


def test_all_keys_of_a_settings_file_are_optional():
    assert TracingConfigRegistry.from_yaml("") == TracingConfigRegistry(TracingConfig())
    assert TracingConfigRegistry.from_yaml("default: null").default is None
    found = TracingConfigRegistry.from_yaml("definitions: {a: {input_dump_policy: dump_int}}")
    assert found.per_definition == {"a": TracingConfig("dump_int")}


def test_an_unknown_policy_is_refused_with_the_known_names():
    with pytest.raises(UnknownName, match="dump_int"):
        TracingConfig("dump_ints")
    with pytest.raises(UnknownName, match="keep_first_k"):
        TracingConfig(filter_policy="keep_first_j")


def test_own_settings_precede_rules_and_rules_precede_the_default():
    own, first, second, default = (TracingConfig("dump_all", filter_policy=name) for name in _POLICIES)
    rules = [Rule(first, op_type="act*", name="*_h9"), Rule(second, op_type="act*"), Rule(first)]
    registry = TracingConfigRegistry(default, {"gather_h8": own}, rules)
    h9 = attrs.evolve(SILU, name="silu_h9")
    assert [registry.get(d.name, d) for d in (GATHER, h9, SILU, DECODE)] == [own, first, second, first]
    assert registry.get("silu_h8") is default


_POLICIES = ("keep_all", "keep_first", "keep_none", "keep_random_k")


def test_settings_are_registered_all_or_none():
    registry = TracingConfigRegistry(None)
    registry.register("a", TracingConfig())
    wrong = {"b": TracingConfig(), "a": TracingConfig("dump_int")}
    with pytest.raises(InvalidSetting, match="override"):
        registry.register_many(wrong)
    assert [*registry.per_definition] == ["a"]
    registry.register_many(wrong, override=True)
    assert registry.per_definition["a"] == TracingConfig("dump_int")
    not_settings = {}
    with pytest.raises(InvalidSetting, match="TracingConfig"):
        registry.register("c", not_settings)


DEFINITIONS = {d.name: d for d in (SILU, GATHER, DECODE)}


def test_names_that_match_nothing_are_refused():
    """A name must be an input of at least one definition that the settings apply to."""
    TracingConfigRegistry(TracingConfig(["rows", "kv_indptr", "dump_none"])).check(DEFINITIONS)
    with pytest.raises(UnknownName, match="no_such") as caught:
        TracingConfigRegistry(TracingConfig(["rows", "no_such"])).check(DEFINITIONS)
    assert "kv_indptr" in str(caught.value)
    with pytest.raises(UnknownName, match="rows"):
        TracingConfigRegistry(TracingConfig(), rules=[Rule(TracingConfig(["rows"]), op_type="act*")]).check(DEFINITIONS)
    config = TracingConfig(filter_policy="keep_first_k_by_axes", filter_policy_kwargs={"axes": ["M", "rows"]})
    with pytest.raises(UnknownName, match="no axis is named 'rows'"):
        TracingConfigRegistry(config).check(DEFINITIONS)
    axes = {"axes": ["M"]}
    by_axes = TracingConfig("dump_none", filter_policy="keep_first_k_by_axes", filter_policy_kwargs=axes)
    TracingConfigRegistry(by_axes).check(DEFINITIONS)
    with pytest.raises(UnknownName, match="silu_h7"):
        TracingConfigRegistry(None, {"silu_h7": TracingConfig()}).check(DEFINITIONS)


def test_rules_without_patterns_name_what_the_set_has():
    for matching in ({"name": "silu_h8"}, {"op_type": "gather"}, {"name": "none*", "op_type": "n?ne"}):
        TracingConfigRegistry(None, rules=[Rule(TracingConfig(), **matching)]).check(DEFINITIONS)
    with pytest.raises(UnknownName, match="no definition is named 'silu_h7'"):
        TracingConfigRegistry(None, rules=[Rule(TracingConfig(), name="silu_h7")]).check(DEFINITIONS)
    with pytest.raises(UnknownName, match="no op_type is named 'gatherer'"):
        TracingConfigRegistry(None, rules=[Rule(TracingConfig(), op_type="gatherer")]).check(DEFINITIONS)
    damaged = [*DEFINITIONS, "damaged"]
    TracingConfigRegistry(None, rules=[Rule(TracingConfig(), op_type="gatherer")]).check(DEFINITIONS, damaged)


@pytest.fixture
def package(tmp_path, monkeypatch, write_distribution):
    """An installed package that offers policies."""
    (tmp_path / "of_others.py").write_text(
        "from fib_tracer import FilterPolicy\nfrom fib_tracer.policies import DumpNone\n"
        "class Mine(FilterPolicy):\n    def __init__(self, k=1): self.k = k\n"
        "class Less(DumpNone): pass\n"
    )
    write_distribution(
        tmp_path,
        "of_others",
        "[fib_tracer.filter_policies]\nmine = of_others:Mine\nmissing = of_others:Nobody\nnone = of_nobody:Mine\n"
        "wrong = os:getcwd\n[fib_tracer.input_dump_policies]\nless = of_others:Less\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("of_others", None)


def test_policies_of_other_packages_are_found_by_name(package):
    assert {"mine", "keep_all"} <= set(PolicyRegistry.list_filter_policies())
    assert "less" in PolicyRegistry.list_input_dump_policies()
    config = TracingConfig(["x", "less"], filter_policy="mine", filter_policy_kwargs={"k": 5})
    assert vars(config.make_filter_policy())["k"] == 5
    assert config.named_inputs() == ("x",)


@pytest.mark.parametrize("name", ["missing", "none", "wrong"])
def test_a_policy_that_cannot_be_loaded_is_refused(package, name):
    with pytest.raises(InvalidSetting, match="filter policy"):
        TracingConfig(filter_policy=name)


def test_functions_and_objects_are_settings():
    made = TracingConfig(lambda inputs: ["x"], filter_policy=lambda: KeepFirstK(2))
    assert isinstance(made.make_filter_policy(), KeepFirstK)
    assert isinstance(TracingConfig(DumpInt()).make_dump_policy(), DumpInt)
    with pytest.raises(InvalidSetting, match="FilterPolicy"):
        TracingConfig(filter_policy=list)


def test_a_program_registers_policies():
    @PolicyRegistry.register_filter_policy("my_sample", override=True)
    class Mine(KeepRandomK):
        pass

    PolicyRegistry.register_input_dump_policy("my_integers", DumpInt, override=True)
    assert isinstance(TracingConfig("my_integers", filter_policy="my_sample").make_filter_policy(), Mine)
    with pytest.raises(InvalidSetting, match="override"):
        PolicyRegistry.register_filter_policy("my_sample", KeepFirstK)
    PolicyRegistry.register_filter_policy("my_sample", KeepFirstK, override=True)
    assert PolicyRegistry.get_filter_policy("my_sample") is KeepFirstK
    with pytest.raises(InvalidSetting, match=InputDumpPolicy.__name__):
        PolicyRegistry.register_input_dump_policy("no_policy", FilterPolicy)


@pytest.mark.parametrize("wrong", [3, ["a"], {"a": 3}, {"a": "dump_all"}])
def test_other_types_of_settings_are_refused(wrong):
    with pytest.raises(InvalidSetting):
        read_configuration(wrong, {})
