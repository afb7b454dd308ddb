"""Tests of recorded host reads. The CPU stands for the device: reads of sizes and numbers cross there as well."""

import subprocess
import sys

import pytest
import torch
from fib_bench.timing.handshake.native import CannotCapture
from fib_bench.worker import host_reads
from fib_bench.worker.host_reads import given, record
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
X = torch.tensor([3.0, -1.0, 0.0, 7.0, -2.0, 3.0])
M = torch.arange(12.0).view(3, 4)
READERS = {
    ".item()": lambda: X * X.max().item(),
    "bool": lambda: X + 1 if (X > 5).any() else X - 1,
    "int": lambda: X[: int(X[0])],
    "range": lambda: [X[i] for i in range(torch.tensor(2))],
    "nonzero": lambda: torch.nonzero(X > 0),
    "argwhere": lambda: torch.argwhere(M > 4),
    "where": lambda: torch.where(M > 4),
    "masked_select": lambda: torch.masked_select(M, M[0] > 1),
    "index": lambda: M[M > 3],
    "index of rows": lambda: M[torch.tensor([True, False, True])],
    "index of columns": lambda: M[:, torch.tensor([True, False, True, True])],
    "index beside numbers": lambda: M[torch.tensor([True, False, True]), torch.tensor([1, 2])],
    "index_put": lambda: M.clone().index_put_((M > 3,), torch.arange(8.0)),
    "assignment": lambda: _assigned(M.clone(), M > 3),
    "repeat_interleave": lambda: torch.repeat_interleave(X, torch.tensor([0, 1, 2, 0, 3, 1])),
    "unique": lambda: torch.unique(X),
    "unique of rows": lambda: torch.unique(M % 3, return_inverse=True, return_counts=True),
    "unique_consecutive": lambda: torch.unique_consecutive(
        torch.tensor([2, 2, 1, 1, 1, 2]), return_inverse=True, return_counts=True
    ),
    "bincount": lambda: torch.bincount(torch.tensor([1, 4, 4, 0]), minlength=3),
    "bincount of weights": lambda: torch.bincount(torch.tensor([1, 4, 4, 0]), weights=torch.tensor([0.5, 1, 2, 3])),
    "equal": lambda: X + 1 if torch.equal(X, X) else X,
}
SYNCHRONIZING = {
    "nonzero", "masked_select", "_unique2", "unique_consecutive", "bincount", "_local_scalar_dense", "equal",
}  # fmt: skip


def _assigned(tensor, mask):
    tensor[mask] = torch.arange(float(mask.sum()))
    return tensor


class _Names(TorchDispatchMode):
    """The names of all operations that are really made."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", READERS)
def test_a_call_that_is_given_its_reads_waits_for_nothing_and_has_the_same_outputs(name):
    call, seen = READERS[name], _Names()
    expected = call()
    recording = record(call, CPU)
    assert recording.reads
    assert all(line.startswith("test_host_reads.py:") for line in recording.reads)
    with seen, given(recording, CPU):
        found = call()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not SYNCHRONIZING.intersection(seen.names)


def test_a_call_that_reads_nothing_has_an_empty_recording():
    def call():
        (X * 2).to(torch.float64)[torch.tensor([0, 1])] = torch.ones(2, dtype=torch.float64)
        M.clone()[M > 3] = 0.0

    assert not record(call, CPU).crossings


@pytest.mark.parametrize("name", ["nonzero", "index", "unique"])
def test_a_call_that_goes_another_way_is_refused_with_its_line(name):
    recording = record(lambda: X.max().item(), CPU)
    with pytest.raises(CannotCapture, match=r"test_host_reads.py:\d+ .* is not what the call has done"):
        _given(recording, READERS[name])
    with pytest.raises(CannotCapture, match=r"\.item\(\)"):
        _given(recording, lambda: (X.max().item(), X.max().item()))
    with pytest.raises(CannotCapture, match=r"test_host_reads.py:\d+ .* is not done again"):
        _given(recording, lambda: None)


def _given(recording, call):
    with given(recording, CPU):
        return call()


def test_a_function_of_torch_compile_stays_compiled_and_the_recorder_is_not():
    from torch._dynamo import convert_frame  # seconds

    ran = []

    @torch.compile(backend=lambda graph, _: lambda *arguments: (ran.append(1), graph(*arguments))[1])
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2 * x[0].item()

    def call():
        return scaled(X)

    call()
    once = len(ran)
    recording = record(call, CPU)
    with given(recording, CPU):
        call()
    call()
    assert len(ran) == 4 * once > 0
    compiled = {code().co_filename for code in convert_frame.input_codes.seen if code() is not None}
    assert __file__ in compiled
    assert host_reads.__file__ not in compiled


def test_torch_imports_no_compiler_for_a_recording():
    code = """
import sys, torch
from fib_bench.worker.host_reads import record
record(lambda: torch.ones(2) * 2, torch.device("cpu"))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_waits_are_seen_while_recording_and_do_nothing_afterwards(monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: made.append("wait"), raising=False)
    event = object.__new__(torch.cuda.Event)
    call = lambda: torch.cuda.Event.synchronize(event)  # noqa: E731 a line of its own
    recording = record(call, CPU)
    assert made == ["wait"]
    assert [line.split(":")[0] for line in recording.waits] == ["test_host_reads.py"]
    with given(recording, CPU):
        call()
    assert made == ["wait"]
    call()
    assert made == ["wait", "wait"]


class TestDevice:
    """Copies between a device without memory and the host are seen by their direction."""

    META = torch.device("meta")

    @pytest.mark.parametrize("values", [torch.tensor([1, 2, 3]), torch.tensor(2.5)], ids=["vector", "number"])
    def test_data_of_the_host_are_sent_once_and_copied_on_the_device_later(self, values):
        call = lambda: torch.tensor(values.tolist(), device="meta")  # noqa: E731
        recording = record(call, self.META)
        (crossing,) = recording.crossings
        assert crossing.given.tolist() == values.tolist()
        assert not recording.reads
        with given(recording, self.META):
            assert call().device == self.META
        values += 1
        with pytest.raises(CannotCapture, match="other data each time"), given(recording, self.META):
            call()

    def test_too_much_that_crosses_is_refused(self):
        with pytest.raises(CannotCapture, match="over 16 MiB cross between host and device"):
            record(lambda: torch.zeros(5 << 20).to("meta"), self.META)
