"""Values that break readers: JSON texts, keys, names of files, and bytes."""

from __future__ import annotations

import json
import random

KEYS = (
    "name",
    "definition",
    "solution",
    "evaluation",
    "extra",
    "uuid",
    "axes",
    "inputs",
    "outputs",
    "type",
    "value",
    "shape",
    "dtype",
    "spec",
    "sources",
    "path",
    "content",
    "constraints",
    "status",
    "log",
    "flags",
    "timing",
    "performance",
    "latency_ms",
    "",
    "__class__",
    "\u202e",
    "a\nb",
    "x" * 300,
    "n",
    "_x",
    "x",
    "s",
    "victim",
    "k",
    "binding",
    "op_type",
)
NAMES = tuple(
    name.encode() if isinstance(name, str) else name
    for name in (
        "other",
        "VICTIM",
        ".hidden",
        "vic\ntim",
        "vic\x1b[2Jtim",
        "vic\u202etim",
        b"\xff\xfe",
        "v" * 240,
        "a b",
        "-x",
        "[red]",
        "%s",
        "~",
        "victim.json",
        "CON",
        "\u00e9",
        "e\u0301",
        "nul\x7f",
        "a:b",
        "'\"",
        "$(x)",
    )
)
BYTES = (
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\n",
    b"\r\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b",",
    b":",
    b"\xed\xa0\x80",
    b"NaN",
    b"1e999",
    b"-0",
    b"null",
    b"\xc0\x80",
    b"\x1f\x8b\x08",
    b"{}\n",
    b"[[[[[[[[[[",
    b"9" * 50,
    b"\\ud800",
    b"// x\n",
    b" ",
    b"\xe2\x80\xa8",
    b"\x85",
    b"\x0c",
)
_NUMBERS = (
    "0",
    "-0",
    "-1",
    "1",
    "2",
    "1.0",
    "1e0",
    "0.1",
    "1e308",
    "1e309",
    "-1e309",
    "1e-320",
    "NaN",
    "Infinity",
    "-Infinity",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "1" * 30,
    "1" * 310,
    "1" * 400,
    "7" * 5000,
    "1e400",
    "0." + "1" * 400,
    "1E-400",
    "true",
    "false",
    "null",
)
_STRINGS = (
    "",
    "n",
    "x",
    "s",
    "run",
    "victim",
    "victim_py",
    "keeper",
    "random",
    "scalar",
    "safetensors",
    "PASSED",
    "float32",
    "int64",
    "float4_e2m1",
    "bool",
    "python",
    "triton",
    "cpp",
    "cuda",
    "torch",
    "tvm-ffi",
    "cpu",
    "../x",
    "/etc/passwd",
    "C:\\x",
    "a\0b",
    "a\nb",
    "\x1b[2J",
    "\u202e",
    "\u2028",
    "\ufeff",
    "NaN",
    "Infinity",
    "1e5",
    "1" * 400,
    "n" * 5000,
    "[bold]",
    "%s",
    "{0}",
    "main.py::run",
    "main.py",
    "def run(x, s):\n    return x\n",
    "def run(",
    "import os",
    "n > 0",
    "n ** n ** n",
    "n //",
    "1 << n * 99",
    "blob/x.safetensors",
    "__import__",
    "\U0001f600",
    "e\u0301",
    "2026-11-22T10:00:00+00:00",
    "linked",
    "host",
    "__proto__",
)
_RAW = ('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', "[]", "{}", "[[]]", '{"a": 1, "a": 2}', "[null]", '{"": {}}')


def draw_json(rng: random.Random, depth: int = 0) -> str:
    """A JSON text, or nearly one."""
    choice = rng.random()
    if choice < 0.35:
        return rng.choice(_NUMBERS)
    if choice < 0.7:
        return json.dumps(rng.choice(_STRINGS))
    if choice < 0.8:
        return rng.choice(_RAW)
    if choice < 0.82:
        levels = rng.choice((20, 300, 900, 5000, 100_000))
        return "[" * levels + "]" * levels
    if choice < 0.84:
        levels = rng.choice((20, 300, 900, 5000))
        return '{"a":' * levels + "0" + "}" * levels
    if depth > 2:
        return "0"
    items = [draw_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    if choice < 0.92:
        return "[" + ", ".join(items) + "]"
    return "{" + ", ".join(f"{json.dumps(rng.choice(KEYS))}: {item}" for item in items) + "}"
