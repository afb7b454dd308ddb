"""Extraction of ``documented_names.json`` from the documents that describe ``flashinfer_bench``.

It extracts facts only: names, parameters, options. Run ``python read_documents.py FOLDER`` with the folder of the
documents; `test_documented_names` reads the result.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
OUTPUT = Path(__file__).with_name("documented_names.json")


def _parameters(code: str) -> list[str]:
    """The parameters of the last function in a text; ``*`` precedes keyword-only parameters."""
    source = code[code.rindex("def ") :].rstrip()
    arguments = ast.parse(f"{source}{'' if source.endswith(':') else ':'} ...").body[0].args  # type: ignore[attr-defined]
    named = [argument.arg for argument in arguments.kwonlyargs]
    found = [argument.arg for argument in arguments.args]
    return [name for name in found if name not in ("self", "cls")] + (["*", *named] if named else [])


# -- two current pages, as rendered ----------------------------------------------------------------


def rendered(text: str) -> Iterator[Row]:
    module = owner = ""
    for line in re.findall(r"^- (.*)¶$", text, re.MULTILINE):
        if found := re.match(r"class (flashinfer_bench[\w.]*)\.(\w+)", line):
            module, owner = found.groups()
            yield {"module": module, "name": owner}
        elif found := re.match(r"(?:(?:abstract|static|classmethod|field) )*(\w+)(\(.*?\))?(?: |:|$)", line):
            name, arguments = found.groups()
            row = {"module": module, "name": owner if name == "__init__" else f"{owner}.{name}"}
            yield row if arguments is None else {**row, "parameters": _parameters(f"def f{arguments}:")}


# -- the page of facts about the other areas -----------------------------------------------------------------

_SECTIONS = {
    "Data": "flashinfer_bench.data",
    "Bench": "flashinfer_bench.bench",
    "Apply": "flashinfer_bench.apply",
    "Tracing": "flashinfer_bench.tracing",
}
_FUNCTIONS = frozenset({"apply", "enable_apply", "enable_tracing", "disable_tracing"})
_MODULE_OF_CLASS = dict.fromkeys(("ApplyKey", "ApplyKeyBuilder"), "flashinfer_bench.apply.key")
_CLASS_OF_TAG = {"scalar": "ScalarInput", "safetensors": "SafetensorsInput"}
_PROSE_WORDS = frozenset({"adds", "also"})


def facts(text: str) -> Iterator[Row]:
    for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        for bullet in re.split(r"^- ", body, flags=re.MULTILINE)[1:]:
            joined = " ".join(bullet.split())
            if title == "Exports":
                yield from _exports(joined)
            elif title in _SECTIONS:
                yield from _signatures(_SECTIONS[title], joined)


def _exports(bullet: str) -> Iterator[Row]:
    parts = re.split(r"`(flashinfer_bench|\.\w+)`", bullet)
    for module, names in zip(parts[1::2], parts[2::2], strict=True):
        place = module if not module.startswith(".") else f"flashinfer_bench{module}"
        for name, arguments in re.findall(r"\b([A-Za-z]\w*)(\([^()]*\))?", names):
            if name not in _PROSE_WORDS:
                yield {"module": place, "name": name, **({"parameters": _listed(arguments)} if arguments else {})}


def _signatures(module: str, bullet: str) -> Iterator[Row]:
    """The classes of a bullet with their parameters and members."""
    owner = None
    pattern = r"(?P<dot>`\.)?(?P<name>\b[A-Za-z_]\w*(?:\.\w+)?)\((?P<arguments>(?:[^()]|\([^()]*\))*)\)"
    for found in re.finditer(pattern, bullet):
        name, parameters = found["name"], _listed(found["arguments"])
        if "builders:" in bullet[: found.start()]:
            owner = "ApplyKeyBuilder"
        if found["dot"]:
            owner = "InputDumpPolicy" if name == "dump" else "FilterPolicy"
        name = _CLASS_OF_TAG.get(name, name)
        if name[0].isupper():
            owner = name.partition(".")[0]
        elif name in _FUNCTIONS:
            owner = None
        elif name.startswith(("keep_", "attention")) or owner is None:
            continue
        else:
            name = f"{owner}.{name}"
        place = _MODULE_OF_CLASS.get(owner or "", module)
        yield {"module": place, "name": name, "parameters": parameters}
    for owner, name in re.findall(r"`(ResolvedEvalConfig)`: [^`]*; (\w+)=", bullet):
        yield {"module": module, "name": f"{owner}.{name}"}
    for owner, names in re.findall(r"(Members|paths): ([^.]*)", bullet):
        kind = "Definition" if owner == "Members" else "TraceSet"
        for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b(?!=)", re.sub(r"\([^()]*(\([^()]*\))?[^()]*\)", "", names)):
            yield {"module": module, "name": f"{kind}.{name}"}


def _listed(arguments: str) -> list[str]:
    """The names in a list of parameters such as ``shape: list[str] | None, dtype, libs={}``."""
    parts = arguments.strip("()").replace("[,", ",").split(",")
    found = (re.match(r"\s*([a-z_]\w*)\]?\s*(?:[=:(\"]|$)", part) for part in parts)
    return [match[1] for match in found if match]


# -- tables of names ------------------------------------------------------------------------------------

_OWN_MODULE = {
    "get_default_registry": "apply.presets",
    "apply": "apply.apply_api",
    "enable_apply": "apply.apply_api",
    "disable_apply": "apply.apply_api",
    "render_report": "data.validate_render",
}
"""Of the names of rows with several modules; the others are in the first one."""
_MEMBERS = frozenset({"submit", "drain", "reset", "can_evaluate", "build_baseline", "check_correctness"})
_MEMBERS |= {"eval_performance", "evaluate"}
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)?)(\([^()]*\))?(?: ->.*)?")


def table(text: str) -> Iterator[Row]:
    """The rows of ``## Further current names``."""
    for modules, names in re.findall(r"^\| (`[a-z].*?`) \| (.*) \|$", text.partition("## Further")[2], re.MULTILINE):
        yield from _table_row(re.findall(r"`([\w.]+)`", modules), names)


def agents(text: str) -> Iterator[Row]:
    """The functions for agents."""
    section = text.partition("## `flashinfer_bench.agents`")[2].partition("\n## ")[0]
    for names in re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE):
        yield from _table_row(["agents"], names)


def _table_row(modules: list[str], names: str) -> Iterator[Row]:
    owner = ""
    for span in re.findall(r"(?<!-> )`([^`]+)`", names):
        found = _NAME.fullmatch(span)
        if found is None or (found[1].isupper() and found[1].startswith("FIB_")):
            continue
        name = found[1]
        if name in _MEMBERS:
            name = f"{owner}.{name}"
        owner = name.partition(".")[0] if name[0].isupper() else owner
        module = _OWN_MODULE.get(name, modules[0])
        row = {"module": f"flashinfer_bench.{module if module in modules else modules[0]}", "name": name}
        yield row if found[2] is None else {**row, "parameters": _listed(found[2].replace("*,", ""))}


# -- values and options ---------------------------------------------------------------------------------


def values(text: str) -> dict[str, list[str]]:
    """The values of each enumeration."""
    words = {"DType": "DType", "SupportedLanguages": "Languages", "SupportedBindings": "Bindings"}
    words["EvaluationStatus"] = "Statuses"
    return {name: re.search(rf"{word}: ([\w\s-]+)\.", text)[1].split() for name, word in words.items()}  # type: ignore[index]


def flags(text: str) -> dict[str, list[str]]:
    """The options of each command."""
    section = text.partition("## Command line")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    for part in re.split(r"^- |; ", section, flags=re.MULTILINE):
        if command := re.match(r"\s*`([a-z-]+)([a-z |]*)", part):
            for name in command[2].split("|"):
                found[f"{command[1]} {name.strip()}".strip()] = sorted(set(re.findall(r"--[a-z-]+", part)))
    return found


def serve_flags(text: str) -> list[str]:
    """The options of ``serve``."""
    options = text.partition("## `flashinfer-bench serve`")[2].partition("Options:")[2].partition("\n\n")[0]
    return sorted({*re.findall(r"--[a-z-]+", options), "--log-level"})


def main() -> None:
    folder = Path(sys.argv[1])
    current = (folder / "api-current.md").read_text("utf-8")
    today = [row for page in ("compile.md", "traceset.md") for row in rendered((folder / page).read_text("utf-8"))]
    agent_tools = (folder / "agents-and-service.md").read_text("utf-8")
    content = {
        "current": _public([*today, *facts(current), *table(current), *agents(agent_tools)]),
        "values": values(current),
        "flags": flags(current) | {"serve": serve_flags(agent_tools)},
    }
    OUTPUT.write_text(_formatted(content), "utf-8")
    print({key: len(value) for key, value in content.items()})


def _public(rows: list[Row]) -> list[Row]:
    """The public names without duplicates; a module is a row too."""
    kept: dict[str, Row] = {}
    for row in rows:
        if not any(part.startswith("_") for part in row["name"].split(".")):
            kept[row["module"]] = {"module": row["module"]}
            place = f"{row['module']}:{row['name']}"
            kept[place] = {**kept.get(place, {}), **row}
    return sorted(kept.values(), key=lambda row: (row["module"], row.get("name", "")))


def _formatted(content: dict[str, Any]) -> str:
    """JSON with one row per line, for readable diffs."""
    parts = []
    for key, value in content.items():
        rows = value if isinstance(value, list) else [{name: item} for name, item in value.items()]
        parts.append(f'"{key}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
