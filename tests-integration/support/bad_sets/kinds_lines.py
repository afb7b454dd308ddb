"""Kinds of bad values in the lines of workloads and traces."""

import json

from .healthy import BLOB, TRACES, WORKLOADS, trace, workload
from .kind import REMOVED, Kind, Raw, edit_json, field_kinds, nested
from .kinds_values import BIDI, HUGE, HUGER, LAZY, LONG, SILENT, VALIDATED, WARNED

_UNNAMED = {"is_error": None, "named": ()}


def _blob_at(path, key="x"):
    return {"type": "safetensors", "path": path, "tensor_key": key}


_WORKLOAD = field_kinds(
    WORKLOADS,
    [
        ("uuid missing", "workload/uuid", REMOVED),
        ("uuid a number", "workload/uuid", 5),
        ("uuid empty", "workload/uuid", ""),
        ("uuid a path", "workload/uuid", "../../x", WARNED | {"named": ()}),
        ("uuid with a newline", "workload/uuid", "a\nb", WARNED | {"named": ()}),
        ("uuid of 10,000 characters", "workload/uuid", LONG, WARNED | {"named": ()}),
        ("uuid a lone surrogate", "workload/uuid", Raw('"\\ud800"')),
        ("uuid of another workload", "workload/uuid", "victim-2", LAZY),
        # A uuid identifies a workload of its definition.
        ("uuid of the keeper", "workload/uuid", "keeper-1", _UNNAMED | {"keeps_rest": False}),
        ("definition unknown", "definition", "nobody", {"named": ("victim.jsonl", "nobody")} | VALIDATED),
        ("definition a path", "definition", "../keeper"),
        ("definition a number", "definition", 3),
        ("definition the keeper", "definition", "keeper", {"keeps_rest": False} | VALIDATED),
        ("no workload", "workload", REMOVED),
        ("workload a list", "workload", []),
        ("axes missing", "workload/axes", REMOVED),
        ("axes a list", "workload/axes", [16]),
        ("axes empty", "workload/axes", {}, LAZY),
        ("axis unknown", "workload/axes", {"n": 16, "m": 3}, LAZY),
        ("axis negative", "workload/axes/n", -1),
        ("axis zero", "workload/axes/n", 0, LAZY | WARNED | {"named": ()}),
        ("axis a fraction", "workload/axes/n", 16.5),
        ("axis a whole float", "workload/axes/n", 16.0, WARNED),
        ("axis true", "workload/axes/n", True),
        ("axis a string", "workload/axes/n", "16"),
        ("axis NaN", "workload/axes/n", Raw("NaN")),
        ("axis of 400 digits", "workload/axes/n", HUGE),
        ("axis of 5,000 digits", "workload/axes/n", HUGER),
        ("axis 2**63", "workload/axes/n", 2**63),
        ("axis against the constraint", "workload/axes/n", 10**12, LAZY),
        ("inputs missing", "workload/inputs", REMOVED),
        ("inputs empty", "workload/inputs", {}, LAZY),
        ("input unknown", "workload/inputs/z", {"type": "random"}, LAZY),
        ("input null", "workload/inputs/x", None),
        ("input a string", "workload/inputs/x", "random"),
        ("input of an unknown type", "workload/inputs/x", {"type": "numpy"}),
        ("input of type 3", "workload/inputs/x", {"type": 3}),
        ("input without type", "workload/inputs/x", {}),
        ("scalar for a tensor", "workload/inputs/x", {"type": "scalar", "value": 1}, LAZY),
        ("random for a scalar", "workload/inputs/s", {"type": "random"}, _UNNAMED),
        ("scalar a string", "workload/inputs/s/value", "2"),
        ("scalar null", "workload/inputs/s/value", None),
        ("scalar NaN", "workload/inputs/s/value", Raw("NaN"), _UNNAMED | LAZY),
        ("scalar infinite", "workload/inputs/s/value", Raw("1e999"), _UNNAMED | LAZY),
        ("scalar of 400 digits", "workload/inputs/s/value", HUGE, WARNED | LAZY),
        ("scalar of 5,000 digits", "workload/inputs/s/value", HUGER, WARNED | LAZY),
        ("unknown key nested 900 deep", "extra", nested(900), SILENT),
        ("unknown key nested 100,000 deep", "extra", nested(100_000), WARNED),
        ("unknown key an integer of 5,000 digits", "workload/extra", HUGER, _UNNAMED),
        ("unknown key a lone surrogate", "workload/extra", "\ud800", _UNNAMED),
        ("misspelled key", "workload/inptus", {}, WARNED | {"is_warned": True}),
        ("blob path above the set", "workload/inputs/x", _blob_at("../x.safetensors")),
        ("blob path above the set, from inside", "workload/inputs/x", _blob_at("blob/../../x")),
        ("blob path absolute", "workload/inputs/x", _blob_at("/dev/zero")),
        ("blob path with NUL", "workload/inputs/x", _blob_at("blob/\0")),
        ("blob path a record", "workload/inputs/x", _blob_at(WORKLOADS), LAZY),
        ("blob path the set", "workload/inputs/x", _blob_at(".")),
        ("blob path empty", "workload/inputs/x", _blob_at("")),
        ("blob path of 10,000 characters", "workload/inputs/x", _blob_at(LONG)),
        ("blob path a lone surrogate", "workload/inputs/x", _blob_at("\ud800")),
        ("blob path with a drive", "workload/inputs/x", _blob_at("C:\\x")),
        ("blob key missing in the file", "workload/inputs/x", _blob_at(BLOB, "y"), LAZY),
        ("blob key a number", "workload/inputs/x", _blob_at(BLOB, 1)),
        ("blob for a scalar", "workload/inputs/s", _blob_at(BLOB), LAZY),
        ("a trace among workloads", "solution", "victim_py", LAZY),
    ],
)

_E, _P = "evaluation", "evaluation/performance"
_EXTRA, _TIMING = f"{_P}/extra", f"{_P}/extra/timing"

_TRACE = field_kinds(
    TRACES,
    [
        ("definition unknown", "definition", "nobody", {"named": ("victim.jsonl", "nobody")} | VALIDATED),
        ("definition the keeper", "definition", "keeper", {"keeps_rest": False} | VALIDATED),
        ("definition a list", "definition", []),
        ("solution unknown", "solution", "nobody", WARNED),
        ("solution a number", "solution", 3),
        ("solution missing", "solution", REMOVED),
        ("solution with bidi characters", "solution", BIDI, WARNED | {"named": ()}),
        ("evaluation missing", _E, REMOVED),
        ("evaluation a list", _E, []),
        ("workload unknown", "workload/uuid", "nobody", WARNED | {"named": ()}),
        ("workload other than in the set", "workload/axes/n", 17, WARNED),
        ("workload axis of 400 digits", "workload/axes/n", HUGE),
        ("status unknown", f"{_E}/status", "GREAT"),
        ("status null", f"{_E}/status", None),
        ("status in lower case", f"{_E}/status", "passed"),
        ("passed without performance", f"{_E}/performance", None),
        ("passed without correctness", f"{_E}/correctness", REMOVED),
        ("failed with performance", f"{_E}/status", "TIMEOUT"),
        ("environment null", f"{_E}/environment", None),
        ("hardware a number", f"{_E}/environment/hardware", 200),
        ("hardware with bidi characters and escapes", f"{_E}/environment/hardware", "\u202eGPU\x1b[2J\n", _UNNAMED),
        ("hardware of 10,000 characters", f"{_E}/environment/hardware", LONG, _UNNAMED),
        ("libs with a number", f"{_E}/environment/libs", {"torch": 2}),
        ("timestamp a number", f"{_E}/timestamp", 12),
        ("timestamp no time", f"{_E}/timestamp", "yesterday", _UNNAMED),
        ("timestamp of the year 99999", f"{_E}/timestamp", "99999-01-01T00:00:00+99:99", _UNNAMED),
        ("log a number", f"{_E}/log", 1),
        ("log of 5 MB", f"{_E}/log", "x" * 5_000_000, _UNNAMED),
        ("log of control characters", f"{_E}/log", "".join(map(chr, range(32))) + "\u202e\u2066\x9b", _UNNAMED),
        ("log a lone surrogate", f"{_E}/log", Raw('"\\ud800"'), _UNNAMED),
        ("log that ends scripts", f"{_E}/log", "</script><script>alert(1)</script><!--", _UNNAMED),
        ("latency of 400 digits", f"{_P}/latency_ms", HUGE),
        ("latency of 5,000 digits", f"{_P}/latency_ms", HUGER),
        ("latency 1e999", f"{_P}/latency_ms", Raw("1e999"), _UNNAMED),
        ("latency 1e-320", f"{_P}/latency_ms", 1e-320, _UNNAMED),
        ("latency 1e308", f"{_P}/latency_ms", 1e308, _UNNAMED),
        ("latency negative", f"{_P}/latency_ms", -1),
        ("latency zero", f"{_P}/latency_ms", 0, _UNNAMED),
        ("latency NaN", f"{_P}/latency_ms", Raw("NaN"), _UNNAMED),
        ("latency a string", f"{_P}/latency_ms", "0.1"),
        ("latency true", f"{_P}/latency_ms", True),
        ("latency null", f"{_P}/latency_ms", None),
        ("reference latency of 400 digits", f"{_P}/reference_latency_ms", HUGE),
        ("reference latency NaN", f"{_P}/reference_latency_ms", Raw("NaN"), _UNNAMED),
        ("speedup infinite", f"{_P}/speedup_factor", "Infinity", _UNNAMED),
        ("speedup of 400 digits", f"{_P}/speedup_factor", HUGE),
        ("error of 400 digits", f"{_E}/correctness/max_absolute_error", HUGE),
        ("error NaN", f"{_E}/correctness/max_relative_error", "NaN", _UNNAMED),
        ("error negative", f"{_E}/correctness/max_absolute_error", -0.5),
        ("extra a list", f"{_E}/extra", []),
        ("extra nested 900 deep", f"{_E}/extra/deep", nested(900), SILENT),
        ("extra nested 100,000 deep", f"{_E}/extra/deep", nested(100_000), WARNED),
        ("extra an integer of 400 digits", f"{_E}/extra/number", HUGE, _UNNAMED),
        ("extra an integer of 5,000 digits", f"{_E}/extra/number", HUGER, _UNNAMED),
        ("extra a lone surrogate", f"{_E}/extra/text", Raw('"\\ud800"'), _UNNAMED),
        ("flags a number", f"{_E}/extra/flags", 5, _UNNAMED),
        ("flags of lists", f"{_E}/extra/flags", [[1], {"a": 2}, None], _UNNAMED),
        ("flags with escapes", f"{_E}/extra/flags", ["\x1b[2J\u202e"], _UNNAMED),
        ("where a string", f"{_E}/extra/where", "here", _UNNAMED),
        ("where of numbers", f"{_E}/extra/where", {"host": 1, "device": [], "device_id": {}}, _UNNAMED),
        ("solution_hash a list", f"{_E}/extra/solution_hash", [1], _UNNAMED),
        ("trials a number", f"{_E}/extra/trials", 3, _UNNAMED),
        ("isolation a list", f"{_E}/extra/isolation", [3], _UNNAMED),
        ("detected_share a string", f"{_E}/extra/detected_share", "all", _UNNAMED),
        ("performance extra a list", _EXTRA, []),
        ("timing a string", _TIMING, "fast", _UNNAMED),
        ("timing null", _TIMING, None, _UNNAMED),
        ("timing a list", _TIMING, [1, 2], _UNNAMED),
        ("timing method a list", f"{_TIMING}/method", ["linked"], _UNNAMED),
        ("timing method with escapes", f"{_TIMING}/method", "\x1b[2J\u202e", _UNNAMED),
        ("interval of strings", f"{_TIMING}/interval_ms", ["a", "b"], _UNNAMED),
        ("interval of one number", f"{_TIMING}/interval_ms", [0.1], _UNNAMED),
        ("interval a number", f"{_TIMING}/interval_ms", 0.1, _UNNAMED),
        ("interval of nulls", f"{_TIMING}/interval_ms", [None, None], _UNNAMED),
        ("interval of 400 digits", f"{_TIMING}/interval_ms", Raw(f"[{HUGE}, {HUGE}]"), _UNNAMED),
        ("interval backwards", f"{_TIMING}/interval_ms", [0.2, 0.1], _UNNAMED),
        ("interval negative", f"{_TIMING}/interval_ms", [-0.2, -0.1], _UNNAMED),
        ("interval NaN", f"{_TIMING}/interval_ms", ["NaN", "NaN"], _UNNAMED),
        ("samples a string", f"{_TIMING}/samples", "many", _UNNAMED),
        ("spread of 400 digits", f"{_TIMING}/spread", HUGE, _UNNAMED),
        ("overhead a list", f"{_TIMING}/overhead_us", [1], _UNNAMED),
        ("baseline a number", f"{_EXTRA}/baseline", 4, _UNNAMED),
        ("roofline a string", f"{_EXTRA}/roofline", "high", _UNNAMED),
        ("device a string", f"{_E}/environment/device", "x", _UNNAMED),
        ("misspelled key", f"{_E}/correctness/extras", {}, WARNED | {"is_warned": True}),
    ],
)


def _second_line(part_path, text):
    def damage(root):
        path = root / part_path
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([lines[0], text, *lines[1:]]))

    return damage


def _many(path, record, count):
    def damage(root):
        with (root / path).open("a") as file:
            for number in range(count):
                record["workload"]["uuid"] = f"many-{number}"
                file.write(json.dumps(record) + "\n")

    return damage


def _repeated(root):
    path = root / TRACES
    path.write_text(path.read_text() * 50)


def _missing_blobs():
    record = workload("victim", "x", has_blob=True)
    record["workload"]["inputs"]["x"]["path"] = "blob/missing.safetensors"
    return record


def _log_of_other_encoding(root):
    edit_json(root / TRACES, ("evaluation/log", "MARK"), line=0)
    path = root / TRACES
    path.write_bytes(path.read_bytes().replace(b"MARK", b"\xff\xfe"))


_LINES = []
for _part, _path in (("workload", WORKLOADS), ("trace", TRACES)):
    _LINES += [
        Kind(f"{_part}: a line of {said}", _second_line(_path, text), _part, ("victim.jsonl",), is_error=is_error)
        for said, text, is_error in (
            ("rubbish", "rubbish\n", True),
            ("an array", "[]\n", True),
            ("null", "null\n", True),
            ("an unclosed object", '{"definition": "victim"\n', True),
            ("two objects", "{}{}\n", True),
            ("5 MB without an end", '"' + "x" * 5_000_000 + "\n", True),
            ("NUL bytes", "\0" * 4096 + "\n", True),
            ("a merge conflict", "<<<<<<< HEAD\n=======\n>>>>>>> other\n", True),
        )
    ]
_LINES += [
    Kind("workload: blank lines", _second_line(WORKLOADS, "\n \n\n"), "workload", (), None),
    Kind("trace: 2,000 lines of rubbish", _second_line(TRACES, "rubbish\n" * 2000), "trace", ("victim.jsonl",)),
    Kind(
        "workload: 500 lines whose blob is missing",
        _many(WORKLOADS, _missing_blobs(), 500),
        "workload",
        ("victim.jsonl", "missing.safetensors"),
        shows_when="used",
    ),
    Kind("trace: 500 lines of unknown workloads", _many(TRACES, trace("victim", "x", "cpu"), 500), "trace", (), None),
    Kind("trace: every line 50 times", _repeated, "trace", (), None),
    Kind("trace: invalid UTF-8 in a log", _log_of_other_encoding, "trace", ("victim.jsonl",), None),
]

LINES = (*_WORKLOAD, *_TRACE, *_LINES)
