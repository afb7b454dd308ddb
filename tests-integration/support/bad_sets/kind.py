"""Kind: one kind of damage to the healthy set, as data. The modules ``kinds_*`` each have a tuple of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .healthy import ALL_PARTS, BLOB, DEFINITION, SOLUTION, TRACES, WORKLOADS

PART_NAMES = {DEFINITION: "definition", SOLUTION: "solution", WORKLOADS: "workload", TRACES: "trace", BLOB: "blob"}


@dataclass(frozen=True)
class Kind:
    """One kind of damage.

    Attributes:
        name: Unique, in words.
        damage: Damages the set below the folder it is given.
        part: What is damaged (a value of `PART_NAMES`, or ``set``): commands that read this part must name the file.
        named: Texts, of which one has to be in the output; empty if nothing has to be named.
        is_error: ``validate`` has to exit with 1; None: it may exit with 0 or 1, and nothing has to be named with 0.
        keeps_rest: The rest of the set has to be processed.
        path: Where the set is that commands get, relative to the folder of the case.
        is_unprivileged: Commands run without root's right to ignore the permissions of files.
        shows_when: ``listed``: already the listing of names fails; ``parsed``; ``used``: only `run` and
            `validate` have to name it, `run` by its record; or ``validated``: only `validate` does.
        is_warned: ``validate`` has to name it, error or not.
        is_endless: Its compilation ends at the limit of the compiler.
    """

    name: str
    damage: Callable[[Path], None]
    part: str
    named: tuple[str, ...]
    is_error: bool | None = True
    keeps_rest: bool = True
    path: str = "set"
    is_unprivileged: bool = False
    shows_when: str = "parsed"
    is_warned: bool = False
    is_endless: bool = False


class Raw(str):
    """JSON text that is inserted as it is, where `json` cannot write the value."""


_MARK = "\ue000raw%d\ue000"
REMOVED = object()


def edit_json(path, *changes, line=None):
    """Set values in a JSON file, or in one line of a JSON Lines file.

    Args:
        path: The file.
        changes: Pairs of a path of keys, separated by ``/``, and a value: `Raw` text, or `REMOVED`.
        line: The line, counted from 0; None: the file is one record.
    """
    lines = path.read_text().splitlines() if line is not None else [path.read_text()]
    record, texts = json.loads(lines[line or 0]), []
    for keys, value in changes:
        *parents, last = (int(key) if key.isdigit() else key for key in keys.split("/"))
        target = record
        for key in parents:
            target = target[key] if isinstance(target, list) else target.setdefault(key, {})
        if value is REMOVED:
            del target[last]
        elif isinstance(value, Raw):
            target[last] = _MARK % len(texts)
            texts.append(value)
        else:
            target[last] = value
    text = json.dumps(record)
    for number, raw in enumerate(texts):
        text = text.replace(json.dumps(_MARK % number), raw)
    lines[line or 0] = text
    path.write_text("\n".join(lines) + "\n")


def field_kinds(part_path, rows, **defaults):
    """Kinds of one bad value each.

    Args:
        part_path: The file to damage, relative to the set.
        rows: Tuples of the kind's name, the path of keys, the value, and optionally a mapping of fields of `Kind`.
        defaults: Fields of `Kind` for all rows.
    """
    part = PART_NAMES[part_path]
    line = 0 if part_path.endswith(".jsonl") else None
    found = []
    for name, keys, value, *more in rows:

        def damage(root, keys=keys, value=value):
            edit_json(root / part_path, (keys, value), line=line)

        fields = {"part": part, "named": (Path(part_path).name,), **defaults, **(more[0] if more else {})}
        found.append(Kind(f"{part}: {name}", damage, **fields))
    return found


def each_part(name, damage, parts=ALL_PARTS, **fields):
    """One kind of unreadable file, for a file of each part; `damage` gets the path of the file."""
    kinds = []
    for part_path in parts:

        def damage_part(root, part_path=part_path):
            damage(root / part_path)

        all_fields = {"part": PART_NAMES[part_path], "named": (Path(part_path).name,), "shows_when": "listed"}
        kinds.append(Kind(f"{PART_NAMES[part_path]}: {name}", damage_part, **(all_fields | fields)))
    return kinds


def nested(levels, opening="[", closing="]"):
    """JSON of nested lists."""
    return Raw(opening * levels + closing * levels)
