"""Bad files and values cost themselves: every reader of a data set goes on and names them."""

from __future__ import annotations

import copy
import pickle
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import bad_files
import pytest
import torch  # noqa: F401 imported before any time limit
from bad_files import CASES, OPERATIONS, bad_records, time_limit, write_bad_records, write_good_set
from fib_schema import DataWarning, Definition, InvalidRecord, Solution, Trace, format_json, parse_json
from fib_schema._trace_lines import FastPathMiss, TraceFormatter
from fib_schema._trace_parser import trace_parser

CLASSES = {"definition": Definition, "solution": Solution, "workload": Trace, "trace": Trace}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore", category=DataWarning), time_limit(60):
        yield


@pytest.fixture
def root() -> Iterator[Path]:
    """A path for a set; pytest cannot remove folders that are nested deeper than Python's stack."""
    folder = tempfile.mkdtemp()
    yield Path(folder) / "set"
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_costs_itself_and_is_named(root: Path, case: str) -> None:
    CASES[case].write(root)
    failures = []
    for name, operation in OPERATIONS.items():
        try:
            shown = operation.run(root)
        except Exception as error:  # noqa: BLE001 any exception is what this test looks for
            failures.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            continue
        is_read = CASES[case].kind in operation.reads
        if is_read and not any(CASES[case].shown in line for line in shown):
            failures.append(f"{name}: not named in {shown}")
        failures += [f"{name}: two lines: {line!r}" for line in shown if "\n" in line]
    assert not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("kind", bad_files.RECORDS)
def test_bad_values_cost_their_record(root: Path, kind: str, name: str) -> None:
    write_good_set(root)
    write_bad_records(root, kind)
    shown = OPERATIONS[name].run(root)
    if kind in OPERATIONS[name].reads:
        assert len([line for line in shown if "bad" in line]) > 50  # `validate` groups equal problems


@pytest.mark.parametrize("kind", bad_files.RECORDS)
def test_a_bad_value_is_an_error_of_its_record_or_is_kept(kind: str) -> None:
    failures = []
    for name, text in bad_records(kind):
        try:
            _use(text, CLASSES[kind])
        except Exception as error:  # noqa: BLE001 any other exception is what this test looks for
            failures.append(f"{name}: {type(error).__name__}: {str(error)[:100]}")
    assert not failures, f"{len(failures)}: " + "\n".join(failures[:20])


def _use(text: bytes, cls: type) -> None:
    try:
        record = parse_json(text, cls)
    except InvalidRecord as error:
        str(error).encode()
        if cls is Trace:
            with pytest.raises(FastPathMiss):
                trace_parser()(text)
        return
    records = [record]
    if cls is Trace:
        with suppress(FastPathMiss):
            records.append(trace_parser()(text))
    for each in records:
        written = format_json(each)
        assert format_json(parse_json(written, cls)) == written
        if cls is Trace:
            TraceFormatter()(each)
        if cls is Solution:
            each.hash()
        written.encode()
        repr(each).encode()
        assert format_json(copy.deepcopy(each)) == written
        assert format_json(pickle.loads(pickle.dumps(each))) == written


@pytest.mark.parametrize("case", ["a pipe", "a folder", "a socket", "a link to a device", "a link to itself", "zeros"])
def test_a_bad_blob_is_an_error_of_the_blob(tmp_path: Path, case: str) -> None:
    from fib_schema import TraceSet, validate
    from fib_schema.blobs import BlobError

    makers = {
        **bad_files.OBJECTS, "a pipe": bad_files.OBJECTS["pipe"], "a socket": bad_files.OBJECTS["socket"],
        "a folder": Path.mkdir, "a link to a device": bad_files.OBJECTS["link to a device"],
        "a link to itself": bad_files.OBJECTS["link to itself"],
    }  # fmt: skip
    root = tmp_path / "set"
    write_good_set(root)
    (root / "blob").mkdir()
    makers[case](root / "blob/bad.json")
    source = b'{"type":"safetensors","path":"blob/bad.json","tensor_key":"A"}'
    line = bad_files.with_value(bad_files.WORKLOAD, ("workload", "inputs", "A"), source.decode())
    (root / "workloads/gemm/gemm.jsonl").write_bytes(line + b"\n")
    assert "blob/bad.json" in validate(root).to_text()
    with pytest.raises(BlobError):
        TraceSet.from_path(root).get_workload_blob_tensor("blob/bad.json")
