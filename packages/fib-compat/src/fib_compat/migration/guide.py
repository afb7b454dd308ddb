"""Tables of the migration guide. ``python -m fib_compat.migration.guide PAGE`` writes them into the page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ..names.legacy_members import LEGACY_MEMBERS
from ..replaced import REPLACED
from ..table import MODULES, PACKAGE, Origin, names_of
from .replacements import MEMBERS, replacement

BEGIN, END = "<!-- generated tables: begin -->\n", "<!-- generated tables: end -->\n"


def tables() -> str:
    """The replaced names, the names without a replacement, and the members, as Markdown."""
    replaced: dict[Origin, list[str]] = {}
    others: dict[str, str] = {}
    for module, name in _documented():
        found = replacement(module, name)
        old = f"{module}.{name}".removeprefix(PACKAGE)
        if isinstance(found, Origin):
            replaced.setdefault(found, []).append(old)
        else:
            others[old] = found
    lines = ["### Names", "", "| FIB | `flashinfer_bench...` |", "| --- | --- |"]
    for origin, names in sorted(replaced.items()):
        lines.append(f"| `{origin.module}.{origin.name}` | {', '.join(f'`{name}`' for name in sorted(names))} |")
    lines += ["", "### Names without an equal", "", "| `flashinfer_bench...` | instead |", "| --- | --- |"]
    lines += [f"| `{name}` | {others[name]} |" for name in sorted(others)]
    lines += ["", "### Members that only fib-compat adds", "", "| member | instead |", "| --- | --- |"]
    lines += [f"| `{name}` | {advice} |" for name, advice in MEMBERS.items() if name.startswith("model_")]
    for cls, members in LEGACY_MEMBERS.items():
        lines += [f"| `{cls}.{name}` | {MEMBERS.get(name, m.__doc__)} |" for name, m in members.items()]
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """A page whose part between the two markers is replaced by the current tables."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


def _documented() -> Iterator[tuple[str, str]]:
    for below in MODULES:
        module = f"{PACKAGE}.{below}".rstrip(".")
        if below != "__main__":
            yield from ((module, name) for name in names_of(module))
            yield from ((module, name) for name in REPLACED.get(module, {}))


if __name__ == "__main__":
    _page = Path(sys.argv[1])
    _page.write_text(with_tables(_page.read_text("utf-8")), "utf-8")
