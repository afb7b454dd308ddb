"""Tests of importing calls: workloads, counts of other calls, reports of damaged files."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fib_schema import RandomInput, ScalarInput, validate
from fib_tracer import NotCovered, ReadCall, RecordedCall
from fib_tracer.dump_import import NO_COMPUTATION, NO_READER, RECORDED, import_dumps

from .conftest import tensors, workloads
from .dump_maker import DumpMaker
from .test_flashinfer_definitions import DUMPED

SILU = "(x: torch.Tensor) -> torch.Tensor"
GATHER = "(table, rows, mask: Optional[torch.Tensor] = None, scale: float = 1.0)"
INIT = "(self, workspace: torch.Tensor, layout: str = 'NHD') -> None"
PLAN = "(self, indptr: torch.Tensor, indices, sm_scale=None, **kwargs) -> None"
RUN = "(self, q: torch.Tensor, *args, out: Optional[torch.Tensor] = None) -> torch.Tensor"
REAL_DUMPS = Path(__file__).parent / "dumps"  # of FlashInfer 0.6.4 on a GPU, one folder for each format of tensors


class LibraryReader:
    """Knows a few functions of ``lib.ops``, and what a wrapper has planned."""

    def __init__(self):
        self.plans: dict[str | None, Mapping[str, Any]] = {}
        self.seen: list[RecordedCall] = []

    def knows(self, module, function):
        return module == "lib.ops" and function != "unknown"

    def read(self, call):
        self.seen.append(call)
        arguments = dict(call.arguments)
        if call.function == "silu":
            return ReadCall("silu_h8", arguments)
        if call.function == "gather":
            return ReadCall("gather_h8", {"scale": 1.0, **arguments})
        if call.function == "fails":
            raise RuntimeError("no such luck")
        if call.function == "drafted":
            return ReadCall("new_thing", arguments)
        if call.function == "odd":
            return ReadCall("silu_h8", {"y": 1})
        return self._of_wrapper(call, arguments)

    def _of_wrapper(self, call, arguments):
        if call.function == "W.plan":
            self.plans[call.instance] = arguments
        if call.function != "W.run":
            return None
        if call.instance not in self.plans:
            raise NotCovered(call.function, "its plan is not there")
        plan = self.plans[call.instance]
        inputs = {"kv_indptr": plan["indptr"], "kv_indices": plan["indices"], "sm_scale": plan["sm_scale"]}
        return ReadCall("gqa_paged_decode_h2", {"q": arguments["q"], **inputs})


@pytest.fixture
def reader():
    return LibraryReader()


@pytest.fixture
def dump(tmp_path_factory):
    return DumpMaker(tmp_path_factory.mktemp("dumped") / "flashinfer_dumps")


def imported(dump, root, reader, **options):
    return import_dumps(dump.root.parent, root, readers={"lib": reader}, **options)


def gathered(dump, *, rows=3, scale=0.5):
    return dump.dump("gather", GATHER, [torch.ones(6, 8), torch.arange(rows)], {"scale": scale})


@pytest.mark.parametrize("has_safetensors", [False, True])
def test_calls_become_workloads_with_the_dumped_values(dump, root, reader, has_safetensors):
    dump.has_safetensors = has_safetensors
    gathered(dump)
    report = imported(dump, root, reader)
    assert report.calls == {("lib.ops.gather", RECORDED): 1}
    assert report.is_ok
    (workload,) = workloads(root, "gather_h8")
    assert workload.axes == {"N": 6, "M": 3}
    assert workload.inputs["table"] == RandomInput()
    assert workload.inputs["scale"] == ScalarInput(0.5)
    assert "mask" not in workload.inputs
    assert torch.equal(tensors(root, workload)["rows"], torch.arange(3))
    assert validate(root).is_ok


def test_equal_calls_are_stored_once_over_several_imports(dump, root, reader):
    for rows in (3, 3, 4):
        gathered(dump, rows=rows)
    first = imported(dump, root, reader)
    assert (first.stats["gather_h8"].stored, first.stats["gather_h8"].equal) == (2, 1)
    second = imported(dump, root, reader)
    assert (second.stats["gather_h8"].stored, second.stats["gather_h8"].equal) == (0, 3)
    assert len(workloads(root, "gather_h8")) == 2


def planned(dump, batch, *, self_id):
    wrapper = object()
    indptr = torch.arange(batch + 1, dtype=torch.int32)
    indices = torch.arange(batch, dtype=torch.int32)
    dump.dump("W.plan", PLAN, [wrapper, indptr, indices], {"sm_scale": 0.25}, self_id=self_id)


def ran(dump, batch, *, self_id, function="W.run", wrapper=None):
    cache = (torch.ones(1), torch.ones(1))
    return dump.dump(function, RUN, [wrapper or object(), torch.ones(batch, 2), cache], self_id=self_id)


def test_runs_are_read_with_the_plan_of_their_wrapper(dump, root, reader):
    planned(dump, 2, self_id=11)
    planned(dump, 5, self_id=22)
    ran(dump, 5, self_id=22)
    ran(dump, 2, self_id=11)
    ran(dump, 2, self_id=33)
    report = imported(dump, root, reader)
    assert report.calls == {
        ("lib.ops.W.plan", NO_COMPUTATION): 2,
        ("lib.ops.W.run", RECORDED): 2,
        ("lib.ops.W.run", "its plan is not there"): 1,
    }
    assert [w.axes["B"] for w in workloads(root, "gqa_paged_decode_h2")] == [5, 2]
    assert "self" not in reader.seen[0].arguments
    assert set(reader.seen[2].arguments) == {"q", "args"}


def test_a_reused_address_is_another_wrapper(dump, root, reader):
    planned(dump, 2, self_id=11)
    dump.dump("W.__init__", INIT, [object(), torch.ones(1)], self_id=11)
    ran(dump, 2, self_id=11)
    report = imported(dump, root, reader)
    assert report.calls["lib.ops.W.run", "its plan is not there"] == 1


class W:
    """A class whose name FlashInfer does not write before its methods."""


def test_a_method_without_its_class_gets_it_from_the_receiver(dump, root, reader):
    one, other = W(), W()
    dump.dump("plan", PLAN, [one, torch.arange(3, dtype=torch.int32), torch.arange(2, dtype=torch.int32), 0.5])
    ran(dump, 2, self_id=None, function="run", wrapper=one)
    ran(dump, 2, self_id=None, function="run", wrapper=other)
    report = imported(dump, root, reader)
    assert report.calls["lib.ops.W.run", RECORDED] == 1
    assert report.calls["lib.ops.W.run", "its plan is not there"] == 1


def test_calls_are_read_in_the_order_of_the_session(dump, root, reader):
    """Not in the order of folder names: the clock of the process may have been set back."""
    for rows in (5, 3, 4):
        gathered(dump, rows=rows)
    session = dump.root / "session.jsonl"
    lines = session.read_text().splitlines()
    session.write_text("\n".join([*lines[4:], *lines[:4]]) + "\n")
    imported(dump, root, reader)
    assert [len(call.arguments["rows"]) for call in reader.seen] == [4, 5, 3]


def test_unlisted_calls_come_last_by_their_time(dump, root, reader):
    gathered(dump, rows=1)
    dump.dump("gather", GATHER, [torch.ones(6, 8), torch.arange(2)], is_listed=False)
    gathered(dump, rows=3)
    dump.dump("gather", GATHER, [torch.ones(6, 8), torch.arange(4)], is_listed=False)
    assert imported(dump, root, reader).is_ok
    assert [len(call.arguments["rows"]) for call in reader.seen] == [1, 3, 2, 4]
    (dump.root / "session.jsonl").unlink()
    imported(dump, root, reader)
    assert [len(call.arguments["rows"]) for call in reader.seen[4:]] == [1, 2, 3, 4]


def test_each_snapshot_of_a_captured_call_is_a_call(dump, root, reader):
    folder = gathered(dump)
    metadata = json.loads((folder / "metadata.jsonl").read_text().splitlines()[0])
    for number, rows in enumerate((2, 4), start=1):
        flush = folder / "graph_flushes" / f"flush_{number:04d}"
        flush.mkdir(parents=True)
        dump.save(flush, {**torch.load(folder / "inputs.pt"), "arg_1": torch.arange(rows)})
        dump.record(flush, {**metadata, "dump_dir": str(Path(metadata["dump_dir"], *flush.parts[-2:]))})
    assert imported(dump, root, reader).is_ok
    assert [len(call.arguments["rows"]) for call in reader.seen] == [2, 4]


def test_a_captured_call_that_was_never_written_is_counted(dump, root, reader):
    folder = gathered(dump)
    metadata = json.loads((folder / "metadata.jsonl").read_text().splitlines()[0])
    (folder / "inputs.pt").unlink()
    dump.record(folder, {**metadata, "execution_status": "graph_capture_pending_flush"})
    ((function, reason),) = imported(dump, root, reader).calls
    assert function == "lib.ops.gather"
    assert reason.startswith("captured in a CUDA graph")


def test_unrecorded_calls_are_counted_by_function_and_reason(dump, root, reader):
    dump.dump("unknown", SILU, [torch.ones(2, 8)])
    dump.dump("unknown", SILU, [torch.ones(3, 8)])
    dump.dump("drafted", "(a, b)", [torch.ones(2, 8), 3])
    dump.dump("fails", SILU, [torch.ones(2, 8)])
    dump.dump("silu", SILU, [torch.ones(2, 8).half()])
    dump.dump("odd", SILU, [torch.ones(2, 8)])
    report = imported(dump, root, reader)
    assert report.calls == {
        ("lib.ops.unknown", NO_READER): 2,
        ("lib.ops.drafted", "the data set has no definition 'new_thing'"): 1,
        ("lib.ops.fails", "its reader fails: RuntimeError: no such luck"): 1,
        ("lib.ops.silu", "does not fit the definition"): 1,
        ("lib.ops.odd", "does not fit definition 'silu_h8': silu_h8 misses argument 'x'"): 1,
    }
    assert [problem.source for problem in report.problems] == ["lib.ops.fails", "lib.ops.odd"]
    assert not report.is_ok


def broken(folder, kind):
    """Damage a call's folder."""
    metadata, inputs = folder / "metadata.jsonl", folder / "inputs.pt"
    if kind == "no metadata":
        metadata.unlink()
    elif kind == "torn metadata":
        metadata.write_text(metadata.read_text()[:40])
    elif kind == "no tensors":
        inputs.unlink()
    elif kind == "torn tensors":
        inputs.write_bytes(inputs.read_bytes()[:90])
    elif kind == "other tensors":
        torch.save({"arg_0": torch.ones(1)}, inputs)
    elif kind == "link":
        inputs.rename(folder.parent.parent / "elsewhere.pt")
        inputs.symlink_to(folder.parent.parent / "elsewhere.pt")
    elif kind == "pipe":
        inputs.unlink()
        os.mkfifo(inputs)
    else:
        record = json.loads(metadata.read_text().splitlines()[-1])
        field, value = kind.split("=")
        metadata.write_text(json.dumps({**record, field: json.loads(value)}) + "\n")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no metadata", "metadata.jsonl cannot be read: No such file"),
        ("torn metadata", "no complete record"),
        ("no tensors", "is missing"),
        ("torn tensors", "inputs.pt"),
        ("other tensors", "other tensors than its metadata lists"),
        ("link", "is not a regular file"),
        ("pipe", "not a regular file"),
        ('function_signature="<unavailable>"', "is not a signature"),
        ('function_signature="()"', "2 positional arguments for 0"),
        ("function_name=3", "no 'function_name'"),
        ("tensor_info=null", "does not list its tensors"),
        ("input_metadata=[1]", "cannot be read"),
        ('input_metadata={"arg_9": 1}', "gaps"),
    ],
)
def test_a_damaged_folder_is_reported_and_skipped(dump, root, reader, kind, message):
    broken(gathered(dump, rows=2), kind)
    gathered(dump, rows=3)
    report = imported(dump, root, reader)
    assert report.calls == {("lib.ops.gather", RECORDED): 1}
    (problem,) = report.problems
    assert message in problem.message
    assert problem.code == "damaged-call"
    assert not report.is_ok


def test_a_torn_last_record_is_ignored(dump, root, reader):
    metadata = gathered(dump) / "metadata.jsonl"
    metadata.write_text(metadata.read_text()[:-30])
    assert imported(dump, root, reader).is_ok


def test_a_damaged_session_is_reported_and_read_in_part(dump, root, reader):
    gathered(dump, rows=2)
    shutil.rmtree(gathered(dump, rows=3))
    with (dump.root / "session.jsonl").open("a") as session:
        session.write('{"dump_dir": 3}\n{"torn\n')
    report = imported(dump, root, reader)
    assert report.calls == {("lib.ops.gather", RECORDED): 1}
    assert Counter(problem.code for problem in report.problems) == {"bad-session": 2, "missing-call": 1}


def test_a_call_with_more_bytes_than_allowed_is_not_read(dump, root, reader):
    dump.dump("silu", SILU, [torch.ones(1 << 16, 8)])
    gathered(dump)
    report = imported(dump, root, reader, max_bytes=1 << 20)
    assert report.calls == {("lib.ops.gather", RECORDED): 1}
    assert "more than 1 MiB" in report.problems[0].message


def test_links_are_not_followed(dump, root, reader, tmp_path_factory):
    other = DumpMaker(tmp_path_factory.mktemp("other"))
    outside = gathered(other)
    gathered(dump)
    (dump.root / f"{outside.name}9").symlink_to(outside)
    (dump.root / "again").symlink_to(dump.root)
    report = imported(dump, root, reader)
    assert report.calls == {("lib.ops.gather", RECORDED): 1}
    assert [problem.code for problem in report.problems] == ["link", "link"]


def test_definitions_are_imported_before_calls(dump, root):
    """One folder may contain both kinds of dumps; other JSON is skipped and reported."""

    class Reader(LibraryReader):
        def read(self, call):
            return ReadCall("norm_h4", {"hidden_states": call.arguments["x"], "weight": call.arguments["w"]})

    dump.dump("norm", "(x, w)", [torch.ones(3, 4).bfloat16(), torch.ones(4).bfloat16()])
    (dump.root.parent / "traces").mkdir()
    (dump.root.parent / "traces" / "norm_h4.json").write_text(json.dumps(DUMPED))
    (dump.root.parent / "package.json").write_text("{}")
    report = imported(dump, root, Reader())
    assert report.is_ok
    assert [added.state for added in report.definitions] == ["added"]
    assert [Path(file).name for file in report.skipped] == ["package.json"]
    assert [w.axes for w in workloads(root, "norm_h4")] == [{"num_tokens": 3}]


def test_one_call_or_one_file_may_be_the_source(dump, root, reader):
    gathered(dump, rows=2)
    folder = gathered(dump, rows=3)
    report = import_dumps(folder, root, readers={"lib": reader})
    assert report.calls == {("lib.ops.gather", RECORDED): 1}
    assert report.is_ok
    file = dump.root / "norm_h4.json"
    file.write_text(json.dumps(DUMPED))
    assert [added.state for added in import_dumps(file, root, readers={}).definitions] == ["added"]


def real_dumps():
    folders = sorted(path for path in REAL_DUMPS.iterdir() if path.is_dir()) if REAL_DUMPS.is_dir() else []
    nothing = pytest.mark.skip(reason="no dumps of a real FlashInfer lie in tests/dumps/")
    return [pytest.param(path, id=path.name) for path in folders] or [pytest.param(REAL_DUMPS, marks=nothing)]


class Everything:
    """Reads any call and remembers it."""

    def __init__(self):
        self.seen: list[RecordedCall] = []

    def knows(self, module, function):
        return bool(module and function)

    def read(self, call):
        self.seen.append(call)


@pytest.mark.parametrize("folder", real_dumps())
def test_every_dump_of_a_real_flashinfer_can_be_read(folder, root):
    """Tests of the readers check what the calls compute."""
    reader = Everything()
    report = import_dumps(folder, root, readers={"everything": reader})
    assert report.problems == []
    assert [added for added in report.definitions if added.is_refused] == []
    assert reader.seen or report.definitions
    for call in reader.seen:
        assert call.module.startswith("flashinfer")
        assert any(isinstance(value, torch.Tensor) for value in call.arguments.values()) or "." in call.function


def test_bad_definitions_of_the_data_set_are_reported(dump, root, reader):
    gathered(dump)
    (root / "definitions" / "gather" / "bad.json").write_text("{")
    report = imported(dump, root, reader)
    assert [Path(problem.source).name for problem in report.problems] == ["bad.json"]
    assert not report.is_ok
    assert report.stats["gather_h8"].stored == 1
