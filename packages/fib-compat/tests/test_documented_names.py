"""Every documented public name exists.

``documented_names.json`` has the names, parameters, values and options of the documents.
"""

import importlib
import inspect
import json
from pathlib import Path

import attrs
import flashinfer_bench.data
import pytest
from fib_compat.table import missing_extra

DOCUMENTED = json.loads(Path(__file__).with_name("documented_names.json").read_text("utf-8"))
CURRENT = [row for row in DOCUMENTED["current"] if "name" in row]
MODULES = sorted({row["module"] for row in DOCUMENTED["current"]})
ROWS = {f"{row['module']}:{row['name']}": row for row in CURRENT}
OWN_CLASSES = {
    *("ApplyConfig", "ApplyConfigRegistry", "ApplyRuntime", "Benchmark", "BenchmarkConfig", "TraceSet"),
    *("TracingConfig", "TracingConfigRegistry", "TracingRuntime"),  # subclasses with the documented behaviour
    *("FilterPolicy", "InputDumpPolicy", "PolicyRegistry", "WorkloadEntry"),  # protocols, and what they receive
    *("AttentionFilterPolicy", "DumpAllPolicy", "DumpIntPolicy", "DumpNonePolicy", "KeepAllPolicy", "KeepFirstPolicy"),
    *("KeepFirstKByAxesPolicy", "KeepFirstKPolicy", "KeepNonePolicy"),
    *("DefaultEvaluator", "DsaSparseAttentionEvaluator", "DsaTopkIndexerEvaluator", "Evaluator", "LowBitEvaluator"),
    *("SamplingEvaluator", "ArgBinder", "ContextStore"),
    "ResolvedEvalConfig",
    *("CheckMessage", "CheckResult", "DatasetReport", "DefinitionReport", "ReportConfig"),
}


@pytest.mark.parametrize("module", MODULES)
def test_every_documented_module_imports(module):
    importlib.import_module(module)


@pytest.mark.parametrize("place", ROWS)
def test_every_name_exists(place):
    module, _, name = place.partition(":")
    if missing_extra(module) is None:
        resolve(module, name)


@pytest.mark.parametrize("place", [place for place, row in ROWS.items() if "parameters" in row])
def test_documented_parameters_are_accepted(place):
    """By name if documented as keyword-only, else by name or by position."""
    row = ROWS[place]
    if missing_extra(row["module"]) is None:
        rejected = list(rejected_parameters(resolve(row["module"], row["name"]), row["parameters"]))
        assert not rejected, f"{place} does not take {rejected}"


@pytest.mark.parametrize("module", MODULES)
def test_classes_are_those_of_the_packages(module):
    """fib-compat defines classes of its own only where the documented behaviour requires one."""
    if missing_extra(module) is not None:
        return
    loaded = importlib.import_module(module)
    own = {name for name in public(loaded) if is_own_class(getattr(loaded, name))}
    assert own <= OWN_CLASSES


def test_enumerations_have_the_documented_values():
    for entry in DOCUMENTED["values"]:
        for name, values in entry.items():
            known = [str(member) for member in getattr(flashinfer_bench.data, name)]
            assert set(values) <= set(known), name


def resolve(module, name):
    """The object of a name; for a field of an attrs class, its attribute definition."""
    found = importlib.import_module(module)
    for part in name.split("."):
        fields = {field.name: field for field in attrs.fields(found)} if is_attrs(found) else {}
        if part in fields:
            found = fields[part]
        elif part in getattr(found, "__annotations__", {}) and not hasattr(found, part):
            found = found.__annotations__[part]
        elif is_instance_attribute(found, part):
            found = part
        else:
            found = getattr(found, part)
    return found


def is_attrs(found):
    return isinstance(found, type) and attrs.has(found)


def is_instance_attribute(found, name):
    """Whether a class or one of its bases sets the attribute in a method."""
    if not isinstance(found, type) or hasattr(found, name):
        return False
    return any(f"self.{name} =" in inspect.getsource(base) for base in found.__mro__ if base.__module__ != "builtins")


def rejected_parameters(function, parameters):
    ours = list(inspect.signature(function).parameters.values())
    if ours and ours[0].name == "self":
        ours = ours[1:]
    by_name = {p.name for p in ours if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = {p.kind for p in ours} & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    places = [p.name for p in ours if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
    is_named = False
    for index, name in enumerate(parameters):
        if name == "*":
            is_named = True
        elif name not in by_name and not takes_any:
            takes_place = index < len(places) and places[index] not in parameters
            if is_named or not takes_place:
                yield name


def public(module):
    return [name for name in getattr(module, "__all__", ()) if not name.startswith("_")]


def is_own_class(value):
    return isinstance(value, type) and value.__module__.startswith("fib_compat")
