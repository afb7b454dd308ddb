"""Every documented public name is there, or has a line that says what replaces it.

``documented_names.json`` holds the names, parameters, values and flags of the documents; `read_documents` makes it.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import flashinfer_bench.data
import pytest
from flashinfer_bench.errors import NotOffered
from flashinfer_bench.replaced import OTHER_ARGUMENTS, REPLACED

DOCUMENTED = json.loads(Path(__file__).with_name("documented_names.json").read_text("utf-8"))
CURRENT = [row for row in DOCUMENTED["current"] if "name" in row]
FIRST = [row for row in DOCUMENTED["first_release"] if "name" in row]
MODULES = sorted({row["module"] for row in DOCUMENTED["current"] + DOCUMENTED["first_release"]})
ROWS = {f"{row['module']}:{row['name']}": row for row in (*FIRST, *CURRENT)}
NOT_SAID_AGAIN = {row["name"] for row in CURRENT}
"""What the current documents say counts; of the first release's parameters, those that nothing current replaces."""


@pytest.mark.parametrize("module", MODULES)
def test_every_module_is_there(module: str) -> None:
    importlib.import_module(module)


@pytest.mark.parametrize("place", ROWS)
def test_every_name_is_there_or_is_explained(place: str) -> None:
    module, _, name = place.partition(":")
    if (line := explain(module, name)) is None:
        resolve(module, name)
    else:
        assert len(line) > 20


@pytest.mark.parametrize("place", [place for place, row in ROWS.items() if "parameters" in row])
def test_documented_parameters_can_be_passed(place: str) -> None:
    """By name where they are documented by name alone, else by name or at their place."""
    row = ROWS[place]
    if explain(row["module"], row["name"]) is not None or (row in FIRST and row["name"] in NOT_SAID_AGAIN):
        return
    refused = list(not_accepted(resolve(row["module"], row["name"]), row["parameters"]))
    assert bool(refused) == (place in OTHER_ARGUMENTS), f"{place} does not take {refused}"


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, lines in REPLACED.items() for n in lines])
def test_no_line_is_stale(module: str, name: str) -> None:
    """A name in the table is documented, and is not there; asking its module for it shows the line."""
    assert f"{module}:{name}" in ROWS
    if "." in name:
        with pytest.raises((AttributeError, NotOffered)):
            resolve(module, name)
        return
    with pytest.raises(NotOffered, match=r"is not offered: \w") as refusal:
        importlib.import_module(module).__getattr__(name)
    assert isinstance(refusal.value, ImportError)


def test_a_replaced_name_says_so_in_a_from_import() -> None:
    with pytest.raises(ImportError, match="redirect_stdio_to_file is not offered: use contextlib"):
        exec("from flashinfer_bench.utils import redirect_stdio_to_file")
    with pytest.raises(ImportError, match="cannot import name"):
        exec("from flashinfer_bench.utils import no_such_name")


@pytest.mark.parametrize("module", MODULES)
def test_names_are_the_very_objects_of_the_packages(module: str) -> None:
    """A class is never one of fib-compat's own, except where the first release's form needs one."""
    loaded = importlib.import_module(module)
    own = {name for name in public(loaded) if isinstance(getattr(loaded, name), type) and is_own(getattr(loaded, name))}
    assert own <= {"TracingRule"}


def test_enumerations_have_the_documented_values() -> None:
    for entry in DOCUMENTED["values"]:
        for name, values in entry.items():
            known = [str(member) for member in getattr(flashinfer_bench.data, name)]
            assert set(values) <= set(known), name


def explain(module: str, name: str) -> str | None:
    """The line for a name, or for the class that it is a member of."""
    lines = REPLACED.get(module, {})
    return lines.get(name) or lines.get(name.partition(".")[0])


def resolve(module: str, name: str) -> Any:
    """What a name stands for; a field of a class of attrs is its attribute."""
    found: Any = importlib.import_module(module)
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


def is_attrs(found: Any) -> bool:
    return isinstance(found, type) and attrs.has(found)


def is_instance_attribute(found: Any, name: str) -> bool:
    """Whether a plain class sets it when an object is made."""
    return isinstance(found, type) and not hasattr(found, name) and f"self.{name} =" in inspect.getsource(found)


def not_accepted(function: Any, parameters: list[str]) -> Iterator[str]:
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


def public(module: Any) -> list[str]:
    return [name for name in getattr(module, "__all__", ()) if not name.startswith("_")]


def is_own(kind: type) -> bool:
    return kind.__module__.startswith("flashinfer_bench")
