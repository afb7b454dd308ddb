"""Migration of legacy data, which is refused elsewhere and rewritten without losing anything."""

import json
import os

import pytest
from fib_schema import DataWarning, Definition, Solution, TargetNotEmpty, Trace, TraceSet, load_json_file, migrate
from fib_schema.migration import upgrade
from hypothesis import given
from hypothesis import strategies as st

OLD_DEFINITION = {
    "name": "scaled",
    "type": "pointwise",
    "axes": {"n": {"type": "var"}},
    "inputs": {"x": {"shape": ["n"], "dtype": "float32"}, "scale": {"shape": [], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
    "reference": "def run(x, scale):\n    return x * scale\n",
    "constraints": None,
    "x_origin": {"model": "m"},
}
SOLUTION = {
    "name": "plain",
    "definition": "scaled",
    "author": "ada",
    "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"},
    "sources": [{"path": "main.py", "content": "def run(x, scale, y): ...\n"}],
}
WORKLOAD = {
    "definition": "scaled",
    "workload": {
        "axes": {"n": 4},
        "inputs": {"x": {"type": "random"}, "scale": {"type": "scalar", "value": 2.0}},
        "uuid": "w0",
    },
    "solution": None,
    "evaluation": None,
}
OLD_TRACE = {
    **WORKLOAD,
    "solution": "plain",
    "evaluation": {
        "status": "RUNTIME_ERROR",
        "log_file": "logs/1.log",
        "environment": {"device": "cpu", "libs": {"torch": "2"}},
        "timestamp": "2025-01-01T00:00:00",
        "error": "it broke",
        "x_run": 7,
    },
}


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(text + "\n" for text in texts))


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def old(tmp_path):
    """A set of the first release, with a solution of the variant."""
    root = tmp_path / "old"
    write(root / "definitions/scaled.json", OLD_DEFINITION)
    write(root / "solutions/plain.json", SOLUTION)
    write(root / "solutions/native.json", {**SOLUTION, "name": "native"})
    write(root / "traces/workloads/pointwise/scaled.jsonl", WORKLOAD)
    write(root / "traces/pointwise/scaled.jsonl", OLD_TRACE, {**OLD_TRACE, "x_new": [1]})
    write(root / "logs/1.log", "Traceback")
    (root / "blob").mkdir()
    (root / "blob/t.safetensors").write_bytes(b"tensors")
    return root


class TestUpgrade:
    def test_an_empty_shape_of_a_current_definition_is_a_tensor(self):
        current = {**OLD_DEFINITION, "op_type": "pointwise"}
        assert upgrade(current, Definition) == current

    JSON = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just("LOCAL"),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    )
    OLD_KEYS = st.sampled_from(["type", "languages", "language", "ld_flags", "log_file", "error", "device"])
    KEYS = OLD_KEYS | st.sampled_from(
        ["op_type", "inputs", "tags", "extra", "spec", "target_hardware", "entry_point", "compile_options", "hardware"]
    )
    KEYS |= st.sampled_from(["evaluation", "environment", "log"])
    OBJECTS = st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON)))

    @given(OBJECTS | JSON, st.sampled_from([Definition, Solution, Trace]))
    def test_it_never_fails_changes_its_argument_or_needs_a_second_pass(self, plain, cls):
        before = json.dumps(plain)
        new = upgrade(plain, cls)
        assert json.dumps(plain) == before
        assert upgrade(new, cls) == new


def test_legacy_records_are_refused_with_the_remedy(old):
    trace_set = TraceSet.from_path(old)
    with pytest.warns(DataWarning, match="'type' is of a legacy schema: rewrite it with 'fib-bench migrate'"):
        assert trace_set.definitions.get("scaled") is None
    with pytest.warns(DataWarning, match="'device' is of a legacy schema"):
        assert [trace for trace in trace_set.traces["scaled"] if trace.evaluation] == []


class TestMigrate:
    def test_everything_is_in_its_place_and_valid(self, old, tmp_path):
        report = migrate(old, tmp_path / "new")
        assert report.is_ok, report.to_text()
        assert (report.validation.problems, report.validation.warnings) == ((), ())
        assert report.counts == {"definitions": 1, "solutions": 2, "workloads": 1, "traces": 2, "files": 2}
        found = sorted(str(p.relative_to(tmp_path / "new")) for p in (tmp_path / "new").rglob("*") if p.is_file())
        assert found == [
            "blob/t.safetensors",
            "definitions/pointwise/scaled.json",
            "logs/1.log",
            "solutions/ada/pointwise/scaled/native.json",
            "solutions/ada/pointwise/scaled/plain.json",
            "traces/ada/pointwise/scaled.jsonl",
            "workloads/pointwise/scaled.jsonl",
        ]

    def test_variants_of_the_first_release_are_read(self, old, tmp_path):
        """Languages in any case, workloads as traces without a solution, and traces that give no uuid."""
        spec = {**SOLUTION["spec"], "language": "Python"}
        write(old / "solutions/native.json", {**SOLUTION, "name": "native", "spec": spec})
        write(old / "traces/workloads/pointwise/scaled.jsonl", {**WORKLOAD, "solution": "", "evaluation": {}})
        nameless = {key: value for key, value in WORKLOAD["workload"].items() if key != "uuid"}
        other = {**nameless, "axes": {"n": 5}}
        write(old / "traces/pointwise/scaled.jsonl", *({**OLD_TRACE, "workload": each} for each in (nameless, other)))
        report = migrate(old, tmp_path / "new")
        assert report.counts == {"definitions": 1, "solutions": 2, "workloads": 1, "traces": 2, "files": 2}
        traces = TraceSet.from_path(tmp_path / "new").traces["scaled"]
        first, second = [trace.workload.uuid for trace in traces if trace.solution is not None]
        assert (first, len(second)) == ("w0", 16)

    def test_no_field_is_lost(self, old, tmp_path):
        migrate(old, tmp_path / "new")
        definition = load_json_file(Definition, tmp_path / "new/definitions/pointwise/scaled.json")
        assert definition.unknown_fields["x_origin"] == {"model": "m"}
        first, second = read_lines(tmp_path / "new/traces/ada/pointwise/scaled.jsonl")
        found = [first["evaluation"][key] for key in ("log", "error", "log_file", "x_run")]
        assert found == ["it broke", "it broke", "logs/1.log", 7]
        assert second == {**first, "x_new": [1]}

    def test_a_migrated_set_migrates_without_a_change(self, old, tmp_path):
        migrate(old, tmp_path / "new")
        assert migrate(tmp_path / "new", tmp_path / "newer").is_ok
        for path in (tmp_path / "new").rglob("*.json*"):
            assert (tmp_path / "newer" / path.relative_to(tmp_path / "new")).read_bytes() == path.read_bytes()

    def test_blobs_are_linked_and_other_files_are_not(self, old, tmp_path):
        migrate(old, tmp_path / "new")
        assert os.path.samefile(old / "blob/t.safetensors", tmp_path / "new/blob/t.safetensors")
        assert not os.path.samefile(old / "logs/1.log", tmp_path / "new/logs/1.log")


class TestRejected:
    @pytest.mark.parametrize(
        ("path", "text", "problems"),
        [
            ("workloads/z.jsonl", "{}\n", ["misses the required field 'definition'", "'workload'"]),
            ("workloads/z.jsonl", json.dumps({**WORKLOAD, "definition": "none"}), ["no definition is named 'none'"]),
            ("workloads/z.jsonl", '{"definition": "sc', ["the last line is torn"]),
            ("definitions/z.json", "{", ["is not JSON"]),
            ("definitions/z.json", json.dumps(OLD_DEFINITION), ["another file holds a definition named 'scaled'"]),
            ("solutions/z.json", json.dumps(SOLUTION), ["another file holds a solution named 'plain'"]),
            ("solutions/z.json", json.dumps({**SOLUTION, "definition": "none"}), ["no definition is named 'none'"]),
            ("traces/z.jsonl", json.dumps({**OLD_TRACE, "solution": "none"}), ["no solution is named 'none'"]),
        ],
    )
    def test_bad_records_are_reported_and_the_others_are_migrated(self, old, tmp_path, path, text, problems):
        (old / path).parent.mkdir(exist_ok=True)
        (old / path).write_text(text)
        report = migrate(old, tmp_path / "new")
        assert not report.is_ok
        assert report.counts == {"definitions": 1, "solutions": 2, "workloads": 1, "traces": 2, "files": 2}
        plain = json.loads(json.dumps(report.to_plain()))["rejected"]
        assert [rejected["file"] for rejected in plain] == [path] * len(problems)
        assert all(found in rejected["message"] for found, rejected in zip(problems, plain, strict=True))


class TestTarget:
    def test_one_that_is_not_empty_is_refused(self, old, tmp_path):
        write(tmp_path / "new/file", "x")
        with pytest.raises(TargetNotEmpty, match="is not empty; pass a folder that is new or empty"):
            migrate(old, tmp_path / "new")
        with pytest.raises(FileExistsError, match="is not a folder"):
            migrate(old, tmp_path / "new/file")

    def test_one_inside_the_source_is_refused(self, old):
        with pytest.raises(TargetNotEmpty, match="which is to be migrated"):
            migrate(old, old / "new")
        assert not (old / "new").exists()
