"""Validation: every kind of bad data is reported with its place and a remedy."""

import copy
import json
import math
import os
import struct
import warnings
from contextlib import suppress

import pytest
from fib_schema import DataSetNotFound, DataWarning, FibError, Trace, TraceSet, data_files, load_jsonl_file, validate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DEFINITION = "definitions/attention/attend.json"
SOLUTION = "solutions/ada/attention/attend/quick.json"
WORKLOADS = "workloads/attention/attend.jsonl"
TRACES = "traces/ada/attention/attend.jsonl"
BLOB = "blob/workloads/attention/attend/attend_w0.safetensors"


def definition_plain():
    return {
        "name": "attend",
        "op_type": "attention",
        "axes": {"n": {"type": "var"}, "m": {"type": "var"}, "d": {"type": "const", "value": 8}},
        "inputs": {
            "q": {"shape": ["n", "d"], "dtype": "bfloat16"},
            "indptr": {"shape": ["m"], "dtype": "int32"},
            "scale": {"shape": None, "dtype": "float32"},
            "bias": {"shape": ["d"], "dtype": "float32", "optional": True},
        },
        "outputs": {"y": {"shape": ["n", "d"], "dtype": "bfloat16"}},
        "constraints": ["m == n + 1", "n == indptr[-1].item()", "q.shape[1] == d", "bias is None or n > 0"],
        "reference": "def run(q, indptr, scale, bias=None):\n    return q\n",
    }


def solution_plain():
    return {
        "name": "quick",
        "definition": "attend",
        "author": "ada",
        "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"},
        "sources": [{"path": "main.py", "content": "def run(q, indptr, scale, bias, y): ...\n"}],
    }


def workload_plain():
    inputs = {
        "q": {"type": "random"},
        "indptr": {"type": "safetensors", "path": f"./{BLOB}", "tensor_key": "indptr"},
        "scale": {"type": "scalar", "value": 0.5},
    }
    return {"definition": "attend", "workload": {"axes": {"n": 3, "m": 4}, "inputs": inputs, "uuid": "w0"}}


def trace_plain():
    evaluation = {
        "status": "PASSED",
        "environment": {"hardware": "cpu", "libs": {}},
        "timestamp": "2026-01-01T00:00:00",
        "log": "",
        "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0},
        "performance": {"latency_ms": 1.0, "reference_latency_ms": 2.0, "speedup_factor": 2.0},
    }
    return {**workload_plain(), "solution": "quick", "evaluation": evaluation}


def safetensors(tensors):
    """A file of zeros: dtype, shape and size in bytes by name."""
    header, end = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"made": "here"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


class Folder:
    def __init__(self, root):
        self.root = root

    def write(self, path, content):
        data = json.dumps(content) if isinstance(content, dict) else content
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)

    def write_lines(self, path, *records):
        self.write(path, "".join(json.dumps(record) + "\n" for record in records))

    def problems(self):
        return list(validate(self.root).problems)

    def only_problem(self):
        (problem,) = validate(self.root).problems
        return problem

    def only_warning(self):
        report = validate(self.root)
        assert report.is_ok, report.to_text()
        (warning,) = report.warnings
        return warning


@pytest.fixture
def folder(tmp_path):
    """A small data set without any problem."""
    made = Folder(tmp_path / "set")
    made.write(DEFINITION, definition_plain())
    made.write(SOLUTION, solution_plain())
    made.write_lines(WORKLOADS, workload_plain())
    made.write_lines(TRACES, trace_plain())
    made.write(BLOB, safetensors({"indptr": ("I32", [4], 16)}))
    return made


class TestReport:
    def test_a_good_set_has_none(self, folder):
        report = validate(folder.root)
        assert (report.problems, report.warnings) == ((), ())
        assert report.counts == {"definitions": 1, "solutions": 1, "workloads": 1, "traces": 1, "blobs": 1}
        assert report.summary.endswith("1 trace, 1 blob: 0 errors, 0 warnings")

    def test_all_problems_come_at_once(self, folder):
        folder.write("definitions/x/a.json", "{")
        folder.write("definitions/x/b.json", "[]")
        folder.write_lines(WORKLOADS, workload_plain(), {"definition": 3})
        problems = folder.problems()
        assert [(p.source, p.path) for p in problems] == [
            ("definitions/x/a.json", "$"),
            ("definitions/x/b.json", "$"),
            (f"{WORKLOADS}:2", "$.definition"),
            (f"{WORKLOADS}:2", "$.workload"),
        ]

    def test_plain_form_names_file_line_and_path(self, folder):
        folder.write_lines(WORKLOADS, {**workload_plain(), "definition": 3})
        folder.write_lines(TRACES)
        plain = json.loads(json.dumps(validate(folder.root).to_plain()))
        assert plain["is_ok"] is False
        assert plain["problems"] == [
            {
                "severity": "error",
                "code": "schema",
                "file": WORKLOADS,
                "line": 1,
                "path": "$.definition",
                "message": "expected a string, got integer 3",
            }
        ]

    def test_text_form_has_a_line_per_problem(self, folder):
        folder.write("definitions/README.txt", "words")
        lines = validate(folder.root).to_text().splitlines()
        assert lines[0].startswith("warning: definitions/README.txt: is not read")
        assert lines[-1].endswith("0 errors, 1 warning")

    def test_a_missing_root_raises(self, tmp_path):
        with pytest.raises(DataSetNotFound):
            validate(tmp_path / "nowhere")

    def test_the_public_data_lacks_nothing_but_its_blobs(self, public_data):
        report = validate(public_data)
        assert report.counts["definitions"] > 0
        assert {problem.code for problem in report.problems} <= {"missing-blob"}
        assert len([line for line in report.to_text().splitlines() if line.startswith("error")]) <= 1


def edited(plain, path, value):
    """A copy with one field set, or removed if the value is ``...``."""
    changed = copy.deepcopy(plain)
    *parents, last = path.split(".")
    inner = changed
    for key in parents:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return changed


WORKLOAD_CASES = {
    "a missing axis": ("axes.n", ..., "axes", "there is no value for the variable axis 'n'; add it"),
    "an unknown axis": ("axes.nn", 3, "axes.nn", "no such axis: no axis is named 'nn'; did you mean 'n'?"),
    "another constant": ("axes.d", 9, "axes.d", "is 9, the definition fixes it at 8; leave it out"),
    "a missing input": ("inputs.q", ..., "inputs", "the required input 'q' is missing; say where it comes from"),
    "an unknown input": ("inputs.k", {"type": "random"}, "inputs.k", "no such input: no input is named 'k'"),
    "a scalar for a tensor": (
        "inputs.q", {"type": "scalar", "value": 1}, "inputs.q", "is a scalar, the definition has a tensor of shape [n,",
    ),
    "a scalar of another type": ("inputs.scale.value", True, "inputs.scale.value", "is True, the definition says"),
    "a constraint on axes": ("axes.m", 9, "axes", "constraint 'm == n + 1' does not hold with n=3, m=9"),
    "an absurd size": ("axes", {"n": 2**40, "m": 2**40 + 1}, "axes", "tensor 'q' would take 2**44 bytes or more"),
    "another tensor key": (
        "inputs.indptr.tensor_key", "x", "inputs.indptr.tensor_key", "has no tensor 'x' (it has indptr)",
    ),
    "a layout of no input": (
        "extra", {"layout": {"k": [16, 1]}}, "extra.layout", "extra['layout']['k']: the definition has no such input; ",
    ),
    "a layout in which elements share memory": (
        "extra", {"layout": {"q": [1, 1]}}, "extra.layout", "elements of shape [3, 8] share memory; correct it, or",
    ),
    "a layout of an absurd size": (
        "extra", {"layout": {"q": [2**40, 1]}}, "extra.layout.q", "span more than 2**40 bytes; correct them",
    ),
    "a missing blob": (
        "inputs.indptr.path", "blob/none", "inputs.indptr.path", "the blob blob/none does not exist; get it, or remove",
    ),
}  # fmt: skip


class TestWorkloads:
    @pytest.mark.parametrize("case", WORKLOAD_CASES)
    def test_contradictions_of_the_definition(self, folder, case):
        field, value, path, message = WORKLOAD_CASES[case]
        folder.write_lines(WORKLOADS, edited(workload_plain(), f"workload.{field}", value))
        folder.write_lines(TRACES)
        found = [p for p in folder.problems() if message in p.message]
        assert [(p.source, p.path) for p in found] == [(f"{WORKLOADS}:1", f"$.workload.{path}")], folder.problems()

    def test_a_valid_layout_is_no_problem(self, folder):
        folder.write_lines(WORKLOADS, edited(workload_plain(), "workload.extra", {"layout": {"q": [16, 1]}}))
        folder.write_lines(TRACES)
        assert folder.problems() == []

    def test_a_path_out_of_the_root_is_a_schema_error(self, folder):
        folder.write_lines(WORKLOADS, edited(workload_plain(), "workload.inputs.indptr.path", "../x"))
        folder.write_lines(TRACES)
        problem = folder.only_problem()
        assert problem.path.startswith("$.workload.inputs.indptr")
        assert "'..' would leave its folder; blobs stay below the data set's root" in problem.message

    def test_a_constraint_on_values_is_left_open(self, folder):
        constraints = ["indptr == q", "indptr.max().item() < 0", "q in [1]", "not indptr", "scale[0] == 1"]
        folder.write(DEFINITION, edited(definition_plain(), "constraints", constraints))
        assert folder.problems() == []

    def test_a_constraint_on_axes_that_cannot_be_evaluated(self, folder):
        folder.write(DEFINITION, edited(definition_plain(), "constraints", ["d % (n - 3) == 0"]))
        folder.write_lines(TRACES)
        assert "ZeroDivisionError" in folder.only_problem().message

    def test_one_uuid_twice(self, folder):
        folder.write_lines(WORKLOADS, workload_plain(), workload_plain())
        problem = folder.only_problem()
        assert (problem.line, problem.code) == (2, "duplicate-workload")
        assert problem.message == f"the uuid 'w0' is that of {WORKLOADS}:1 too; give one of them another"


BLOB_CASES = {
    "dtype": (safetensors({"indptr": ("I64", [4], 32)}), f"{BLOB}: the tensor is I64, the definition says int32 (I32)"),
    "shape": (safetensors({"indptr": ("I32", [5], 20)}), f"{BLOB}: the tensor has shape [5], the axes say [4] (m=4)"),
    "rank": (
        safetensors({"indptr": ("I32", [2, 2], 16)}),
        f"{BLOB}: the tensor has shape [2, 2], the definition has the axes [m]",
    ),
    "a pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        f"the blob {BLOB} is a Git LFS pointer; run 'git lfs pull' in the data set",
    ),
    "nothing": (b"", f"the blob {BLOB} is not a valid safetensors file: "),
    "another format": (b"PK\x03\x04" * 9, f"the blob {BLOB} is not a valid safetensors file: "),
    "no JSON": (struct.pack("<Q", 2) + b"{,", f"the blob {BLOB} is not a valid safetensors file: "),
    "cut off": (safetensors({"indptr": ("I32", [4], 16)})[:-4], f"the blob {BLOB} is not a valid safetensors file: "),
    "a wrong size": (safetensors({"indptr": ("I32", [4], 20)}), f"the blob {BLOB} is not a valid safetensors file: "),
}


class TestBlobs:
    @pytest.mark.parametrize("case", BLOB_CASES)
    def test_headers_that_contradict(self, folder, case):
        data, message = BLOB_CASES[case]
        folder.write(BLOB, data)
        problem = folder.only_problem()
        assert problem.source == f"{WORKLOADS}:1"
        assert problem.path.startswith("$.workload.inputs.indptr")
        assert problem.message.startswith(message)

    def test_a_tensor_for_a_scalar(self, folder):
        source = {"type": "safetensors", "path": BLOB, "tensor_key": "scale"}
        folder.write(BLOB, safetensors({"indptr": ("I32", [4], 16), "scale": ("F32", [1], 4)}))
        folder.write_lines(WORKLOADS, edited(workload_plain(), "workload.inputs.scale", source))
        folder.write_lines(TRACES)
        message = f"{BLOB}: the tensor has shape [1], the definition says it is a scalar"
        assert folder.only_problem().message == message

    def test_a_link_out_of_the_set(self, folder, tmp_path):
        (folder.root / BLOB).rename(tmp_path / "outside")
        (folder.root / BLOB).symlink_to(tmp_path / "outside")
        problem = folder.only_problem()
        assert problem.message == f"the blob {BLOB} leads out of the data set through a link; copy the file instead"

    def test_a_bad_file_is_reported_once(self, folder):
        (folder.root / BLOB).unlink()
        folder.write_lines(WORKLOADS, workload_plain(), edited(workload_plain(), "workload.uuid", "w1"))
        assert folder.only_problem().code == "missing-blob"


DEFINITION_CASES = {
    "a missing field": ("reference", ..., "schema", "$.reference", "misses the required field 'reference'"),
    "a wrong type": ("axes.d.value", 4.7, "schema", "$.axes.d.value", "expected an integer, got number 4.7"),
    "the name": ("name", "other", "path-contradicts", "$", "its record belongs to definitions/attention/other.json"),
    "the op_type": ("op_type", "gemm", "path-contradicts", "$", "its record belongs to definitions/gemm/attend.json"),
    "a constraint on nothing": (
        "constraints", ["nn == m"], "constraint", "$.constraints[0]", "'nn' is neither an axis nor an input",
    ),
    "an absurd constant": ("axes.d.value", 2**41, "size", "$.inputs.bias", "would take 2**43 bytes or more"),
}  # fmt: skip


class TestDefinitionsAndSolutions:
    @pytest.mark.parametrize("case", DEFINITION_CASES)
    def test_a_bad_definition(self, folder, case):
        field, value, code, path, message = DEFINITION_CASES[case]
        folder.write(DEFINITION, edited(definition_plain(), field, value))
        found = [p for p in folder.problems() if p.source == DEFINITION]
        assert [(p.code, p.path) for p in found] == [(code, path)]
        assert message in found[0].message

    def test_a_bad_definition_does_not_make_its_records_bad(self, folder):
        folder.write(DEFINITION, edited(definition_plain(), "reference", ...))
        assert folder.only_problem().source == DEFINITION

    def test_two_definitions_of_one_name(self, folder):
        folder.write("definitions/attention/more.json", definition_plain())
        problems = [problem for problem in folder.problems() if problem.code == "duplicate-name"]
        assert [problem.source for problem in problems] == [DEFINITION, "definitions/attention/more.json"]
        assert problems[1].message.startswith(f"two definitions are named 'attend', so neither is used ({DEFINITION})")

    def test_two_solutions_of_one_name(self, folder):
        folder.write("solutions/bob/attention/attend/quick.json", edited(solution_plain(), "author", "bob"))
        assert ["two solutions are named 'quick'" in problem.message for problem in folder.problems()] == [True, True]

    @pytest.mark.parametrize(
        "path",
        [
            "solutions/bob/attention/attend/quick.json",
            "solutions/ada/gemm/attend/quick.json",
            "solutions/ada/attention/other/quick.json",
            "solutions/ada/attention/attend/other.json",
            "solutions/other.json",
        ],
    )
    def test_a_solution_in_the_wrong_place(self, folder, path):
        (folder.root / SOLUTION).unlink()
        folder.write(path, solution_plain())
        problem = folder.only_problem()
        assert (problem.source, problem.code) == (path, "path-contradicts")
        assert problem.message == f"its record belongs to {SOLUTION}; move it, or correct the record"

    def test_a_file_at_another_depth_is_a_warning(self, folder):
        (folder.root / SOLUTION).unlink()
        folder.write("solutions/quick.json", solution_plain())
        assert folder.only_warning().message == f"lies at another depth than usual; move it to {SOLUTION}"

    def test_a_solution_of_an_unknown_definition(self, folder):
        folder.write(
            "solutions/ada/attention/atend/slow.json", {**solution_plain(), "name": "slow", "definition": "atend"}
        )
        problem = folder.only_problem()
        assert problem.path == "$.definition"
        assert problem.message == "no definition is named 'atend'; did you mean 'attend'?"

    def test_parameters_in_another_order_are_a_warning(self, folder):
        reference = 'def run(indptr, q, scale, bias):\n    return "\\d"\n'
        folder.write(DEFINITION, edited(definition_plain(), "reference", reference))
        warning = folder.only_warning()
        assert warning.message.startswith("run takes (indptr, q, scale, bias), the inputs are (q, indptr, scale, bias)")

    def test_a_reference_that_uses_an_undefined_name_is_a_warning(self, folder):
        reference = "def run(q, indptr, scale, bias):\n    return _turn(q)\n"
        folder.write(DEFINITION, edited(definition_plain(), "reference", reference))
        assert folder.only_warning().message.startswith("uses _turn, which nothing in it defines")

    @pytest.mark.parametrize("parameters", ["q", "q, indptr, scale, bias, more", "q, indptr, scale, bias, *, more", ""])
    def test_a_reference_that_does_not_take_the_inputs_is_an_error(self, folder, parameters):
        folder.write(DEFINITION, edited(definition_plain(), "reference", f"def run({parameters}):\n    return 1\n"))
        problem = folder.only_problem()
        assert problem.path == "$.reference"
        assert problem.message.endswith("the inputs are (q, indptr, scale, bias): it cannot be called with them")


class TestTraces:
    def test_of_many_unknown_names_the_first_have_suggestions(self, folder):
        plain = {**trace_plain(), "solution": None}
        folder.write(TRACES, "".join(json.dumps({**plain, "solution": f"s{n}"}) + "\n" for n in range(300)))
        problems = [problem for problem in validate(folder.root).problems if problem.code == "unknown-solution"]
        assert [len(problem.message.split(";")) for problem in problems] == [2] * 100 + [1] * 200
        assert problems[-1].message == "no solution is named 's299'"

    def test_an_unknown_solution_is_one_line_of_text(self, folder):
        folder.write_lines(TRACES, trace_plain(), *[edited(trace_plain(), "solution", "quack")] * 3)
        assert [(problem.source, problem.path) for problem in folder.problems()] == [
            (f"{TRACES}:{line}", "$.solution") for line in (2, 3, 4)
        ]
        line, _ = validate(folder.root).to_text().splitlines()
        assert "no solution is named 'quack'; did you mean 'quick'? (and 2 more like it: " in line

    def test_an_unknown_definition(self, folder):
        folder.write_lines("traces/ada/attention/none.jsonl", edited(trace_plain(), "definition", "none"))
        messages = [problem.message for problem in folder.problems()]
        assert messages == [
            "no definition is named 'none'; known are 'attend'",
            "solution 'quick' is for 'attend', not for 'none'",
        ]

    def test_a_record_that_contradicts_its_file(self, folder):
        folder.write("definitions/attention/other.json", {**definition_plain(), "name": "other"})
        record = edited(edited(workload_plain(), "definition", "other"), "workload.uuid", "w1")
        folder.write_lines(WORKLOADS, workload_plain(), record)
        problem = folder.only_problem()
        assert (problem.line, problem.path) == (2, "$.definition")
        assert problem.message == "is of 'other', and its file is named for 'attend'; move it to a file of its own"

    def test_a_file_named_for_no_definition_is_a_warning(self, folder):
        (folder.root / WORKLOADS).rename(folder.root / "workloads/all.jsonl")
        assert "the file is named for no definition" in folder.only_warning().message

    def test_an_author_and_an_op_type_that_contradict_the_path(self, folder):
        folder.write_lines("traces/bob/gemm/attend.jsonl", trace_plain())
        assert folder.only_problem().message == f"belongs to {TRACES}; move it"

    def test_an_unknown_workload_is_a_warning(self, folder):
        (folder.root / WORKLOADS).unlink()
        warning = folder.only_warning()
        assert (warning.source, warning.path) == (f"{TRACES}:1", "$.workload.uuid")
        assert warning.message == "no workload file has a workload of this uuid"

    def test_a_workload_that_only_a_trace_has_is_checked(self, folder):
        (folder.root / WORKLOADS).unlink()
        folder.write_lines(TRACES, *[edited(trace_plain(), "workload.axes.m", 9)] * 2)
        assert [p.code for p in folder.problems()] == ["blob-contradicts", "constraint"]

    def test_another_workload_of_the_same_uuid_is_a_warning(self, folder):
        folder.write_lines(TRACES, edited(trace_plain(), "workload.inputs.scale.value", 0.25))
        assert (
            folder.only_warning().message == f"has the uuid of {WORKLOADS}:1 and differs from it; give it another uuid"
        )

    def test_a_workload_with_axes_that_synthesis_has_enlarged_is_none(self, folder):
        trace = edited(trace_plain(), "workload.inputs.scale.value", 0.25)
        folder.write_lines(TRACES, edited(trace, "evaluation.extra", {"enlarged_axes": {"n": 4}}))
        assert not folder.problems()

    @pytest.mark.parametrize(("text", "shown"), [("0.0", "0.0"), ("NaN", "nan"), ('"Infinity"', "inf")])
    def test_a_latency_that_no_measurement_gives_is_a_warning(self, folder, text, shown):
        line = json.dumps(trace_plain()).replace('"latency_ms": 1.0', f'"latency_ms": {text}')
        folder.write(TRACES, line + "\n")
        warning = folder.only_warning()
        assert warning.path == "$.evaluation.performance.latency_ms"
        assert warning.message.startswith(f"is {shown}, which no measurement gives")


TEXT_CASES = {
    "empty": (b" \n", "empty", "is empty; write a definition or remove the file"),
    "no JSON": (b'{"a": }', "json", "is not JSON: Expecting value at line 1 column 7"),
    "null": (b"null", "schema", "expected an object, got null"),
    "a list": (b"[1]", "schema", "expected an object, got list"),
    "torn": (b'{"a": "b', "json", "is not JSON: Unterminated string starting at line 1 column 7"),
    "bad UTF-8": (b'{"name": "\xff"}', "json", "is not UTF-8: byte 10 is 255; save the file as UTF-8"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs", "is a Git LFS pointer and not the file"),
    "nesting": (b'{"extra": ' + b"[" * 200 + b"]" * 200 + b"}", "nesting", "nests too deeply: 201 levels"),
    "absurd nesting": (b"[" * 200_000 + b"]" * 200_000, "nesting", "nests too deeply; at most 100 levels are read"),
    "a huge number": (b'{"a": ' + b"9" * 9000 + b"}", "json", "cannot be read: Exceeds the limit"),
}


class TestTexts:
    @pytest.mark.parametrize("case", TEXT_CASES)
    def test_files_that_hold_no_record(self, folder, case):
        data, code, message = TEXT_CASES[case]
        folder.write("definitions/attention/bad.json", data)
        problem = folder.only_problem()
        assert (problem.source, problem.code) == ("definitions/attention/bad.json", code)
        assert message in problem.message

    def test_a_file_beyond_the_limit(self, folder, monkeypatch):
        folder.write("definitions/attention/large.json", " " * (2 << 20))
        folder.write(WORKLOADS, "x" * (2 << 20))
        monkeypatch.setattr(data_files, "MAX_RECORD_BYTES", 1 << 20)
        assert [problem.message.partition(",")[0] for problem in folder.problems()] == [
            "the file is larger than 1 MiB",
            "the line is larger than 1 MiB",
        ]

    def test_a_torn_last_line(self, folder):
        line = json.dumps(workload_plain())
        folder.write(WORKLOADS, f"{line}\n{line[:50]}")
        problem = folder.only_problem()
        assert (problem.source, problem.code) == (f"{WORKLOADS}:2", "torn-line")
        assert problem.message.startswith("the last line is torn (incomplete JSON, no newline")

    def test_a_last_line_without_a_newline_is_whole(self, folder):
        folder.write(WORKLOADS, json.dumps(workload_plain()))
        assert folder.problems() == []

    def test_an_empty_file_of_lines_is_a_warning(self, folder):
        folder.write(TRACES, "\n\n")
        assert folder.only_warning().message == "holds no record; remove the file"

    def test_names_that_no_terminal_shows(self, folder):
        folder.write(SOLUTION, json.dumps({**solution_plain(), "definition": "\ud800"}))
        assert "contains half of a surrogate pair" in validate(folder.root).to_text()


class TestFiles:
    def test_a_folder_that_is_a_link_out(self, folder, tmp_path):
        (folder.root / "traces").rename(tmp_path / "traces")
        (folder.root / "traces").symlink_to(tmp_path / "traces")
        assert (folder.only_problem().source, folder.only_problem().code) == ("traces", "no-folder")

    def test_links_in_a_circle(self, folder):
        (folder.root / "definitions/attention/again").symlink_to("..")
        assert folder.only_problem().code == "link-to-folder"

    def test_links_to_nothing(self, folder):
        (folder.root / "definitions/gone.json").symlink_to("nothing")
        assert folder.only_problem().message == "is a link to nothing or to itself; remove it"

    def test_a_pipe_is_not_waited_for(self, folder):
        os.mkfifo(folder.root / "definitions/pipe.json")
        assert folder.only_problem().message.startswith("is not a regular file")

    def test_other_suffixes_are_warnings(self, folder):
        folder.write("traces/ada/attention/attend.jsonl.bak", "")
        warning = folder.only_warning()
        assert warning.message == "is not read because its name does not end in .jsonl; rename or remove it"

    def test_hidden_files_are_left_alone(self, folder):
        folder.write("traces/ada/.tmp", "")
        assert validate(folder.root).warnings == ()


VALUES = st.sampled_from([None, True, 4.7, -1, 2**70, math.nan, "", "..", "\ud800", "x" * 300, [], [[]], {}, {"a": 1}])
RECORDS = st.sampled_from([definition_plain(), solution_plain(), workload_plain(), trace_plain()])


@st.composite
def damaged(draw):
    """A record of which fields are replaced, and bytes cut, changed or doubled."""
    plain = json.loads(json.dumps(draw(RECORDS)))
    for _ in range(draw(st.integers(0, 3))):
        inner = plain
        while isinstance(inner, dict) and inner:
            key = draw(st.sampled_from(sorted(inner)))
            if not isinstance(inner[key], dict) or draw(st.booleans()):
                inner[key] = copy.deepcopy(draw(VALUES))
                break
            inner = inner[key]
    data = json.dumps(plain).encode()
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 8)))
    return data[:start] + draw(st.sampled_from([b"", b"\xff", b"\n", b"{", b'"', data[start:end] * 2])) + data[end:]


CONTENTS = st.binary(max_size=60) | damaged() | RECORDS.map(lambda plain: json.dumps(plain).encode())


@pytest.mark.filterwarnings("ignore::fib_schema.DataWarning")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.lists(CONTENTS, min_size=4, max_size=4), st.binary(max_size=60))
def test_no_data_makes_validation_or_reading_raise(folder, contents, blob):
    """Whatever the files hold, validation reports, and readers raise documented errors only."""
    for path, data in zip((DEFINITION, SOLUTION, WORKLOADS, TRACES), contents, strict=True):
        folder.write(path, data)
    folder.write(BLOB, blob)
    report = validate(folder.root)
    report.to_text().encode()
    json.dumps(report.to_plain())
    _read_all(folder.root)


def _read_all(root):
    trace_set = TraceSet.from_path(root)
    for records in (trace_set.definitions, trace_set.solutions):
        for name in records:
            with suppress(FibError):
                _ = records[name]
    with warnings.catch_warnings(action="ignore", category=DataWarning):
        list(trace_set.traces.items())
        list(trace_set.workloads.items())
    for path in (WORKLOADS, TRACES):
        with suppress(FibError):
            load_jsonl_file(Trace, root / path)


class TestLayoutsOfTraces:
    @pytest.mark.parametrize(
        ("layout", "message"), [("x", "must be an object"), ({"q": [-1, 1]}, "must be a list of positive integers")]
    )
    def test_an_invalid_one_is_an_error(self, folder, layout, message):
        folder.write_lines(TRACES, edited(trace_plain(), "evaluation.extra", {"layout": layout}))
        problem = folder.only_problem()
        assert (problem.source, problem.path) == (f"{TRACES}:1", "$.evaluation.extra.layout")
        assert message in problem.message

    @pytest.mark.parametrize(("workload", "evaluation"), [({"q": [16, 1]}, {}), ({}, {"q": [16, 1]})])
    def test_another_one_than_that_of_the_workload_is_a_warning(self, folder, workload, evaluation):
        folder.write_lines(WORKLOADS, edited(workload_plain(), "workload.extra", {"layout": workload}))
        trace = edited(trace_plain(), "workload.extra", {"layout": workload})
        folder.write_lines(TRACES, edited(trace, "evaluation.extra", {"layout": evaluation}))
        warning = folder.only_warning()
        assert (warning.source, warning.code) == (f"{TRACES}:1", "other-layout")
        assert "measured another layout than that of its workload" in warning.message


def test_a_damaged_file_of_counts_is_an_error(folder):
    folder.write("traffic/rank-0.json", "{")
    problem = folder.only_problem()
    assert (problem.source, problem.code) == ("traffic/rank-0.json", "traffic")
    assert "cannot be read as counts" in problem.message
