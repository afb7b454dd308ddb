"""Kinds of bad values: in each field of definitions and solutions."""

import json

from .healthy import DEFINITION, SOLUTION, definition, solution
from .kind import PART_NAMES, REMOVED, Kind, Raw, edit_json, field_kinds, nested

HUGE = Raw("1" * 400)
HUGER = Raw("7" * 5000)
LONG = "n" * 10_000
LAZY = {"shows_when": "used"}
LISTED = {"shows_when": "listed"}
VALIDATED = {"shows_when": "validated"}
WARNED = {"is_error": None}
"""Legitimate, or at most a warning."""
SILENT = {"is_error": None, "named": ()}
"""Unknown fields are kept and nothing has to be said about them; the record is processed."""
BIDI = "vic\u202etim\u2066"

_DEFINITION = field_kinds(
    DEFINITION,
    [
        ("name missing", "name", REMOVED, LISTED),
        ("name a number", "name", 7, LISTED),
        ("name empty", "name", "", LISTED),
        ("name with a path", "name", "../victim", LISTED),
        ("name absolute", "name", "/etc/passwd", LISTED),
        ("name with a newline", "name", "vic\ntim", LISTED),
        ("name with an escape sequence", "name", "vic\x1b[31mtim", WARNED),
        ("name with bidi characters", "name", BIDI, WARNED),
        ("name with NUL", "name", "vic\0tim", LISTED),
        ("name of 10,000 characters", "name", LONG, WARNED),
        ("name a lone surrogate", "name", Raw('"\\ud800"'), LISTED),
        ("name other than the file's", "name", "somebody", WARNED),
        ("op_type a number", "op_type", 3),
        ("op_type missing", "op_type", REMOVED),
        ("op_type a path", "op_type", "../../x"),
        ("axes null", "axes", None),
        ("axes a list", "axes", ["n"]),
        ("axis of an unknown type", "axes/n", {"type": "dynamic"}),
        ("constant axis a string", "axes/k/value", "4"),
        ("constant axis negative", "axes/k/value", -4),
        ("constant axis of 400 digits", "axes/k/value", HUGE, LAZY | WARNED),
        ("constant axis true", "axes/k/value", True),
        ("constant axis a fraction", "axes/k/value", 1.5),
        ("constant axis NaN", "axes/k/value", Raw("NaN")),
        ("inputs null", "inputs", None),
        ("inputs empty", "inputs", {}, WARNED),
        ("shape with an unknown axis", "inputs/x/shape", ["m"]),
        ("shape with an integer of 31 digits", "inputs/x/shape", [10**30], LAZY | WARNED),
        ("shape of nested lists", "inputs/x/shape", [["n"]]),
        ("shape a string", "inputs/x/shape", "n"),
        ("dtype unknown", "inputs/x/dtype", "float23"),
        ("dtype a number", "inputs/x/dtype", 32),
        ("dtype null", "inputs/x/dtype", None),
        ("outputs empty", "outputs", {}, WARNED),  # no document forbids it
        ("output of an input's name", "outputs", {"x": {"shape": ["n"], "dtype": "float32"}}),
        ("reference that does not compile", "reference", "def run(x, s:\n    return x\n", LAZY),
        ("reference without run", "reference", "def walk(x, s):\n    return x\n", LAZY),
        ("reference a number", "reference", 5),
        ("reference with other parameters", "reference", "def run(q):\n    return q\n", LAZY),
        ("reference with NUL", "reference", "def run(x, s):\n    return x\n\0", LAZY),
        ("reference a lone surrogate", "reference", Raw("\"def run(x, s):\\n    return '\\ud800'\\n\""), LAZY),
        (
            "reference that raises",
            "reference",
            "raise ValueError('boom')\ndef run(x, s):\n    return x\n",
            LAZY | WARNED,
        ),
        ("reference that exits", "reference", "import os\nos._exit(3)\ndef run(x, s): return x\n", LAZY | WARNED),
        ("reference that returns a string", "reference", "def run(x, s):\n    return 'x'\n", LAZY | WARNED),
        (
            "reference of 9 MB",
            "reference",
            "def run(x, s):\n    return x * s\n" + "# \n" * 3_000_000,
            WARNED | {"named": ()},
        ),
        (
            "reference nested 5,000 deep",
            "reference",
            "def run(x, s):\n    return " + "(" * 5000 + "x" + ")" * 5000,
            LAZY,
        ),
        ("constraints a string", "constraints", "n > 0"),
        ("constraint a number", "constraints", [1]),
        ("constraint that does not parse", "constraints", ["n >"]),
        ("constraint with an unknown name", "constraints", ["m > 0"], LAZY),
        ("constraint that pads", "constraints", ["'%9999999999d' % n"], LAZY),
        ("constraint with a huge power", "constraints", ["9**9**9 > n"], LAZY),
        ("constraint with a huge shift", "constraints", ["1 << 99999999999 > n"], LAZY),
        ("constraint with a chain of powers", "constraints", ["(n**n)**n**n > 1"], LAZY),
        ("constraint that repeats a string", "constraints", ["'a' * 10**11 != n"], LAZY),
        ("constraint that repeats a list", "constraints", ["len([0] * 10**11) > n"], LAZY),
        ("constraint of 10,000 parentheses", "constraints", ["(" * 10_000 + "n" + ")" * 10_000 + " > 0"], LAZY),
        ("constraint of 100,000 terms", "constraints", ["+".join(["n"] * 100_000) + " > 0"], LAZY | WARNED),
        ("constraint that imports", "constraints", ["__import__('os').system('true') == 0"]),
        ("constraint with attributes", "constraints", ["n.__class__.__mro__"]),
        ("constraint that divides by zero", "constraints", ["n // 0 > 1"], LAZY),
        ("constraint with a lambda loop", "constraints", ["(lambda f: f(f))(lambda f: f(f))"]),
        ("constraint with a comprehension", "constraints", ["sum(i for i in range(10**12)) > n"], LAZY),
        ("constraint with a number of 5,000 digits", "constraints", ["7" * 5000 + " > n"], LAZY),
        ("tags a string", "tags", "fast"),
        ("tags with a number", "tags", ["fast", 3]),
        ("description a number", "description", 7),
        ("description a lone surrogate", "description", Raw('"\\udfff"'), WARNED | {"named": ()}),
        ("misspelled key", "descripton", "Scales.", WARNED | {"is_warned": True}),
        ("unknown key nested 900 deep", "surplus", nested(900), SILENT),
        ("unknown key nested 100,000 deep", "surplus", nested(100_000), WARNED),
        (
            "unknown key of mappings nested 100,000 deep",
            "extra",
            nested(100_000, '{"a":', "}").replace(":}", ":1}"),
            WARNED,
        ),
        ("unknown key an integer of 5,000 digits", "surplus", HUGER, WARNED | {"named": ()}),
        ("unknown key a lone surrogate", "surplus", {"\ud800": "\ud800"}, WARNED | {"named": ()}),
        ("unknown key 1e999", "surplus", Raw("1e999"), WARNED | {"named": ()}),
        ("unknown key of 5 MB", "surplus", "x" * 5_000_000, SILENT),
        ("unknown key __class__", "__class__", {"a": 1}, SILENT),
        ("unknown key of 100,000 keys", "surplus", {str(i): i for i in range(100_000)}, SILENT),
    ],
)


def _beside(path, content=""):
    """The sources of a solution, behind another file."""
    return [{"path": path, "content": content}, *solution("a", "b")["sources"]]


_SOLUTION = field_kinds(
    SOLUTION,
    [
        ("name missing", "name", REMOVED, LISTED),
        ("name a list", "name", ["victim_py"], LISTED),
        ("name with a path", "name", "../../victim_py", LISTED),
        ("name with a newline", "name", "victim\npy", LISTED),
        ("name with bidi characters", "name", BIDI, WARNED),
        ("name a lone surrogate", "name", Raw('"\\udc80"'), LISTED),
        ("name of 10,000 characters", "name", LONG, WARNED),
        ("definition unknown", "definition", "nobody", VALIDATED | {"named": ("victim_py", "nobody")}),
        ("definition in another case", "definition", "Victim", VALIDATED | {"named": ("victim_py", "Victim")}),
        ("definition null", "definition", None),
        ("author a number", "author", 1),
        ("author a path", "author", "../me", WARNED),
        ("author with an escape sequence", "author", "m\x1b]0;x\x07e", WARNED | {"named": ()}),
        ("spec null", "spec", None),
        ("spec a list", "spec", []),
        ("language unknown", "spec/language", "fortran"),
        ("language null", "spec/language", None),
        ("binding unknown", "spec/binding", "pybind"),
        ("target_hardware a string", "spec/target_hardware", "cpu"),
        ("target_hardware empty", "spec/target_hardware", [], WARNED),
        ("entry point without symbol", "spec/entry_point", "main.py"),
        ("entry point in a missing file", "spec/entry_point", "other.py::run"),
        ("entry point without such a function", "spec/entry_point", "main.py::walk", LAZY | WARNED),
        ("entry point no identifier", "spec/entry_point", "main.py::1 + 1", LAZY | WARNED),
        ("entry point a dunder", "spec/entry_point", "main.py::__builtins__", LAZY | WARNED),
        ("entry point with NUL", "spec/entry_point", "main.py::run\0", LAZY | WARNED),
        ("entry point of 10,000 characters", "spec/entry_point", "main.py::" + LONG, LAZY | WARNED),
        ("destination_passing_style a string", "spec/destination_passing_style", "false"),
        ("misspelled key", "descripton", "Scales.", WARNED | {"is_warned": True}),
        ("dependencies a string", "spec/dependencies", "torch"),
        ("compile options a list", "spec/compile_options", ["-O3"], WARNED),
        ("sources null", "sources", None),
        ("sources empty", "sources", []),
        ("source without content", "sources/0", {"path": "main.py"}),
        ("source content a number", "sources/0/content", 3),
        (
            "source content a lone surrogate",
            "sources/0/content",
            Raw('"# \\ud83d\\ndef run(x, s): return x"'),
            LAZY | WARNED,
        ),
        ("source path above the folder", "sources/0/path", "../main.py"),
        ("source path absolute", "sources/0/path", "/tmp/main.py"),
        ("source path with a drive", "sources/0/path", "C:\\main.py"),
        ("source path with backslashes", "sources/0/path", "..\\..\\main.py"),
        ("source path with NUL", "sources/0/path", "main\0.py"),
        ("source path empty", "sources/0/path", ""),
        ("source path a dot", "sources/0/path", "."),
        ("source path a folder", "sources/0/path", "main.py/"),
        ("source path of 10,000 characters", "sources/0/path", LONG + ".py"),
        ("source path with a newline", "sources/0/path", "ma\nin.py", {"is_error": True}),
        ("source path a lone surrogate", "sources/0/path", Raw('"\\ud800.py"')),
        ("source path __init__.py", "sources", _beside("__init__.py", "boom("), LAZY | WARNED),
        ("two sources of one path", "sources", solution("a", "b")["sources"] * 2),
        ("two sources of one path in other cases", "sources", _beside("MAIN.py"), LAZY | WARNED | {"named": ()}),
        ("two sources of one path by a dot", "sources", _beside("./main.py")),
        ("a source that is a folder of another", "sources", _beside("main.py/x.py")),
        ("source that does not compile", "sources/0/content", "def run(x, s:\n", LAZY | WARNED),
        ("source with NUL", "sources/0/content", "def run(x, s):\n    return x * s\n\0", LAZY | WARNED),
        (
            "source with another coding",
            "sources/0/content",
            "# -*- coding: rot13 -*-\nqrs eha(k, f): erghea k\n",
            LAZY | WARNED,
        ),
        ("source that raises SystemExit", "sources/0/content", "raise SystemExit(0)\n", LAZY | WARNED),
        (
            "source nested 5,000 deep",
            "sources/0/content",
            "def run(x, s):\n    return " + "-" * 50_000 + "x",
            LAZY | WARNED,
        ),
        (
            "source that prints bidi characters and escapes",
            "sources/0/content",
            "print('\\u202e\\x1b[2J')\nraise ValueError('\\u202e\\x1b[2J')",
            LAZY | WARNED | {"named": ()},
        ),
        ("unknown key nested 900 deep", "surplus", nested(900), SILENT),
        ("unknown key nested 100,000 deep", "surplus", nested(100_000), WARNED),
        ("unknown key an integer of 5,000 digits", "surplus", HUGER, WARNED | {"named": ()}),
        ("description bidi characters", "description", "\u202e", WARNED | {"named": ()}),
    ],
)


def _odd_inputs(*names):
    def damage(root):
        record = definition("victim")
        vector = record["inputs"]["x"]
        record["inputs"] = dict.fromkeys(names, vector)
        record["reference"] = f"def run({', '.join(names)}):\n    return {names[0]}\n"
        (root / DEFINITION).write_text(json.dumps(record))

    said = ", ".join(name[:12] for name in names[:3])
    return Kind(
        f"definition: inputs named {said!r}", damage, "definition", ("victim",), is_error=None, shows_when="used"
    )


def _native(about, content="", *, is_endless=False, **spec):
    """A solution in C++ with another source, or with other fields of its specification."""

    def damage(root):
        record = solution("victim_py", "victim", "cpp")
        record["sources"][0]["content"] = content or record["sources"][0]["content"]
        record["spec"] |= spec
        (root / SOLUTION).write_text(json.dumps(record))

    named = ("victim_py",)
    return Kind(f"solution: C++ {about}", damage, "solution", named, None, shows_when="used", is_endless=is_endless)


def _twice(about, part_path, second, *named, **changes):
    """A second record; two of one name are refused by contract: no command can know which one is meant."""

    def damage(root):
        other = root / second
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes((root / part_path).read_bytes())
        edit_json(other, *changes.items())

    part = PART_NAMES[part_path]
    return Kind(f"{part}: {about}", damage, part, named, is_error=True if named else None, keeps_rest=not named)


def _duplicate_key(part_path):
    def damage(root):
        path = root / part_path
        path.write_text('{"name": "impostor", ' + path.read_text().lstrip()[1:])

    return damage


_BESIDE = "definitions/activation"
_ANOTHER = "solutions/me/activation/victim/zz.json"
_OTHERS = [
    _odd_inputs("_x"),
    _odd_inputs("_x", "input0"),
    _odd_inputs("class"),
    _odd_inputs("x y"),
    _odd_inputs("torch", "run"),
    _odd_inputs("self"),
    _odd_inputs("__debug__"),
    _odd_inputs("\uff38", "X"),
    _odd_inputs("x" * 10_000),
    _odd_inputs(*(f"i{number}" for number in range(5000))),
    _native("that does not compile", "int main( {"),
    _native("that includes a device", '#include "/dev/zero"\n'),
    _native("that includes itself", '#include "main.cpp"\n#include "main.cpp"\n', is_endless=True),
    _native("with a plugin flag", compile_options={"cflags": ["-fplugin=/tmp/x.so"]}),
    _native("with flags that are numbers", compile_options={"cflags": [1]}),
    _native("with an unknown dependency", dependencies=["../../x"]),
    _native("without such a function", entry_point="main.cpp::nothing"),
    _twice("two of one name", DEFINITION, "definitions/other/victim.json", "victim.json"),
    _twice("two of one name in other files", DEFINITION, f"{_BESIDE}/zz.json", "zz.json", "victim.json", op_type="b"),
    _twice("names that differ in case", DEFINITION, f"{_BESIDE}/Victim.json", name="VICTIM"),
    _twice("the keeper's name again", DEFINITION, f"{_BESIDE}/zz.json", "zz.json", "keeper.json", name="keeper"),
    _twice("two of one name", SOLUTION, "solutions/you/activation/victim/victim_py.json", "victim_py.json"),
    _twice("the keeper's name again", SOLUTION, _ANOTHER, "zz.json", "keeper_py", name="keeper_py"),
    Kind("definition: a key twice", _duplicate_key(DEFINITION), "definition", ("victim.json", "impostor"), None),
    Kind("solution: a key twice", _duplicate_key(SOLUTION), "solution", ("victim_py.json", "impostor"), None),
]

VALUES = (*_DEFINITION, *_SOLUTION, *_OTHERS)
