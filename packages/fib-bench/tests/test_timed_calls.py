"""Tests of timed calls from end to end, on the CPU: all that is timed is verified, whatever the worker does."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fib_bench.judge.evaluate import Judge
from fib_schema import Definition, Evaluation, EvaluationStatus, ScalarInput, Solution, Workload

SLOTS = 16
UNTIMED_CALLS = 7 + 2 * (5 + SLOTS)
"""With the settings of `evaluate`: one on each of seven input sets; in each of two phases five and a pass."""

Evaluate = Callable[..., list[Evaluation]]
Make = Callable[..., Definition]
MakeSolution = Callable[..., Solution]
MakeWorkload = Callable[..., Workload]
Judged = Callable[..., Evaluation]

COUNTS = """
calls = 0
def is_timed():
    global calls
    calls += 1
    return calls > {untimed}
"""
INSIDE = """
import ctypes, gc, time
from fib_bench.timing.handshake.native import Mailbox
def passes():
    from fib_bench.worker.passes import Passes
    return next(item for item in gc.get_objects() if type(item) is Passes)
def mailbox():
    return Mailbox.from_address(passes()._host_mailbox)
def current(mail):
    return sum(mail.ready) - 1
"""
"""A way for a solution to find objects of its process."""
FORGES = """
import os, msgspec
def forge(message):
    body = msgspec.msgpack.encode(message)
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), len(body).to_bytes(4, "little") + body)
        except OSError:
            pass
"""


def timed_only(does: str, *, before: str = "", otherwise: str = "return x * 2") -> str:
    """A solution that is right until its calls are timed."""
    does, otherwise = (textwrap.indent(textwrap.dedent(text), " " * 8) for text in (does, otherwise))
    given = "x, y" if "y" in otherwise.replace("by", "") else "x"
    head = COUNTS.format(untimed=UNTIMED_CALLS) + before
    return f"{head}\ndef run({given}):\n    if is_timed():\n{does}\n    else:\n{otherwise}\n"


@pytest.fixture
def judged(
    evaluate: Evaluate, make_solution: MakeSolution, make_workload: MakeWorkload, definition: Definition
) -> Judged:
    """Evaluates a solution on one workload of the size given."""

    def run(code: str, *, n: int = 8, dps: bool = False, **fields: object) -> Evaluation:
        workloads = [make_workload(definition, {"n": n})]
        (evaluation,) = evaluate(make_solution(textwrap.dedent(code), dps=dps), workloads=workloads, **fields)
        return evaluation

    return run


def timing_of(evaluation: Evaluation) -> Mapping[str, Any]:
    assert evaluation.performance is not None, evaluation.log
    assert evaluation.performance.extra is not None
    timing: Mapping[str, Any] = evaluation.performance.extra["timing"]
    return timing


def test_a_latency_is_what_a_caller_waits_for(judged: Judged) -> None:
    found = judged("import time\ndef run(x):\n    time.sleep(0.003)\n    return x * 2\n")
    assert found.status is EvaluationStatus.PASSED
    assert found.flags == ("unranked: cpu timing",)
    assert found.performance is not None
    assert 1 < found.performance.latency_ms < 30  # on a busy machine a pass without calls takes its time too
    timing = timing_of(found)
    assert timing["method"] == "cpu"
    assert timing["call_ms"] == pytest.approx(found.performance.latency_ms)
    assert timing["uncertainty_ms"] == timing["call_uncertainty_ms"] > 0
    assert timing["orders_ms"] == {}  # of calls that a device launches
    assert timing["timed_calls"] == timing["samples"] >= SLOTS
    assert timing["timed_calls"] >= timing["verified_calls"] >= 10
    assert timing["detected_share"] == pytest.approx(1 - 0.01 ** (1 / timing["verified_calls"]), abs=1e-4)


# -- wrong outputs where calls are timed -------------------------------------------------------------

KEPT = "outputs are kept by the address of the inputs"
"""Evidence where two of the calls that are compared have met the same outputs, and wrong where one has."""
WRONG: Mapping[str, tuple[str, str, str]] = {
    "nothing is computed": (
        timed_only("pass", otherwise="y.copy_(x * 2)"),
        "INCORRECT_NUMERICAL", "16 of 16 timed calls left outputs unwritten",
    ),
    "a part is not written": (
        timed_only("y[:4].copy_(x[:4] * 2)", otherwise="y.copy_(x * 2)"),
        "INCORRECT_NUMERICAL", "timed calls left outputs unwritten",
    ),
    "other values are written": (
        timed_only("y.copy_(x)", otherwise="y.copy_(x * 2)"), "INCORRECT_NUMERICAL", "timed calls: output 'y': ",
    ),
    "one element is wrong": (
        timed_only("y = x * 2\ny[5] += 1\nreturn y"),
        "INCORRECT_NUMERICAL", "timed calls: output 'y': 1 of 8 elements are wrong; worst at [5]",
    ),
    "outputs of an earlier call are returned": (
        timed_only("return kept[-1]", before="kept = []", otherwise="kept.append(x * 2)\nreturn kept[-1]"),
        "REWARD_HACK", "kept outputs: they are the same in calls with other inputs",
    ),
    KEPT: (
        timed_only(
            "return kept[x.data_ptr()]",
            before="kept = {}",
            otherwise="kept[x.data_ptr()] = x * 2\nreturn kept[x.data_ptr()]",
        ),
        "INCORRECT_NUMERICAL", "timed calls: output 'y': ",
    ),
    "a thread writes later": (
        timed_only(
            "threading.Thread(target=late, args=(x, y), daemon=True).start()",
            before="import threading, time\ndef late(x, y):\n    time.sleep(0.2)\n    y.copy_(x * 2)\n",
            otherwise="y.copy_(x * 2)",
        ),
        "INCORRECT_NUMERICAL", "timed calls left outputs unwritten",
    ),
    "inputs are written to": (
        timed_only("y = x * 2\nx[-1] += 1\nreturn y"),
        "RUNTIME_ERROR", "a function must not write to its inputs",
    ),
    "a view of other shape": (
        timed_only("return x[:4] * 2"), "INCORRECT_SHAPE", "output 'y' has shape (4,), expected (8,)",
    ),
    "a digest is forged": (
        timed_only("mail = mailbox()\nmail.stop[current(mail)] = 12345\ntime.sleep(0.05)\nreturn x * 2", before=INSIDE),
        "REWARD_HACK", "calls came twice: something else than the end of a call stopped the clock",
    ),
    "the next call is answered": (
        timed_only(
            "mail = mailbox()\nat = current(mail) + 1\nif at < 16: mail.stop[at] = 12345\nreturn x * 2", before=INSIDE
        ),
        "REWARD_HACK", "calls came twice: something else than the end of a call stopped the clock",
    ),
    "outputs are changed behind the digest": (
        timed_only(
            "at = current(mailbox()) - 1\n"
            "if at >= 0: passes()._memory.outputs[at][0].add_(1e-6)\nreturn x * 2",
            before=INSIDE,
        ),
        "REWARD_HACK", "outputs were changed after the call",
    ),
    "it raises": (timed_only("raise ValueError('boom')"), "RUNTIME_ERROR", "ValueError: boom"),
    "it ends": (timed_only("os._exit(3)", before="import os"), "RUNTIME_ERROR", "exited with status 3"),
    "it is done early": (
        timed_only("forge({'type': 'done'})\ntime.sleep(0.3)\nreturn x * 2", before=FORGES + "import time\n"),
        "REWARD_HACK", "the worker answered before all calls of a pass had ended",
    ),
    "it reports a failed capture": (
        timed_only("forge({'type': 'uncapturable', 'problem': 'no'})\nreturn x * 2", before=FORGES),
        "REWARD_HACK", "the worker answered RunCalls with Uncapturable",
    ),
}  # fmt: skip
"""By what happens in timed calls only: the solution, its status, and a text that its log has."""


def test_what_is_wrong_only_where_it_is_timed_is_found(evaluate: Evaluate, make_solution: MakeSolution) -> None:
    solutions = [
        make_solution(code, name=f"s{index}", dps="def run(x, y)" in code)
        for index, (code, *_) in enumerate(WRONG.values())
    ]
    found = dict(zip(WRONG, evaluate(*solutions), strict=True))
    unexpected = {
        name: (str(found[name].status), found[name].log)
        for name, (_, status, text) in WRONG.items()
        if (found[name].status != status or text not in found[name].log)
        and not (name == KEPT and found[name].status == "REWARD_HACK" and "kept outputs" in found[name].log)
    }
    assert unexpected == {}


@pytest.mark.parametrize("does", ["time.sleep(1e6)", pytest.param("os.kill(os.getpid(), 19)", marks=pytest.mark.slow)])
def test_a_call_without_end_times_out(judged: Judged, does: str) -> None:
    found = judged(timed_only(does, before="import os, time"), timeout_seconds=8.0)
    assert found.status is EvaluationStatus.TIMEOUT
    assert "of a pass sent no digest within 8 s" in found.log


def test_work_for_inputs_that_were_met_before_is_missed(judged: Judged) -> None:
    """No inputs of a timed call come again."""
    code = """
    met, fresh = set(), []
    def run(x):
        key = x.numpy().tobytes()
        fresh.append(key not in met)
        met.add(key)
        if len(fresh) == %d:
            print("fresh", sum(fresh[-20:]))
        return x * 2
    """
    found = judged(code % (UNTIMED_CALLS + 40), n=4096, iterations=100)
    assert found.status is EvaluationStatus.PASSED, found.log
    assert "fresh 20" in found.log


RETURNS = {
    "negated when it is read": "torch._neg_view(x * -2)",
    "an expanded view": "(x[:1] * 2).expand(8) * 0 + x * 2",
    "the same buffer each time": "torch.mul(x, 2, out=buffer)",
    "one of few buffers": "torch.mul(x, 2, out=buffers[next(turn)])",
}


def test_outputs_of_all_kinds_are_digested(evaluate: Evaluate, make_solution: MakeSolution) -> None:
    head = "import itertools, torch\nbuffer, buffers = torch.empty(8), torch.empty(3, 8)\n"
    head += "turn = itertools.cycle(range(3))\n"
    codes = [f"{head}def run(x):\n    return {result}\n" for result in RETURNS.values()]
    found = evaluate(*(make_solution(code, name=f"s{index}") for index, code in enumerate(codes)))
    assert {name: (str(e.status), e.log) for name, e in zip(RETURNS, found, strict=True)} == dict.fromkeys(
        RETURNS, ("PASSED", "")
    )


@pytest.mark.parametrize("result", ["x.sum()", "x.sum().item()"])
def test_an_output_may_be_a_number(
    evaluate: Evaluate, make_definition: Make, make_solution: MakeSolution, result: str
) -> None:
    definition = make_definition({"x": "float32[n]"}, {"s": "float32"}, "def run(x):\n    return x.sum()\n")
    (found,) = evaluate(make_solution(f"def run(x):\n    return {result}\n", definition="made"), definition=definition)
    assert found.status is EvaluationStatus.PASSED, found.log
    assert timing_of(found)["verified_calls"] >= 10


# -- inputs ------------------------------------------------------------------------------------------


def test_what_cannot_vary_is_told(evaluate: Evaluate, make_definition: Make, make_solution: MakeSolution) -> None:
    code = "def run(x, cos_sin_cache):\n    return x * 2 + cos_sin_cache.sum()\n"
    definition = make_definition({"x": "float32[n]", "cos_sin_cache": "float32[n,c4]"}, {"y": "float32[n]"}, code)
    (found,) = evaluate(make_solution(code, definition="made"), definition=definition)
    assert found.status is EvaluationStatus.PASSED, found.log
    assert found.extra is not None
    assert found.extra["constant_inputs"].keys() == {"cos_sin_cache"}
    assert "constant: cos_sin_cache" in found.flags
    assert "fixed_inputs" not in found.flags


SEES = """
seen = set()
def setup(x):
    seen.add(x.numpy().tobytes())
    return {"planned": len(x)}
def run(x, planned):
    assert planned == len(x)
    assert x.numpy().tobytes() not in seen
    return x * 2
"""
PLANS = """
def setup(x):
    return {"doubled": x * 2}
def run(x, doubled):
    return doubled
"""


def test_setup_never_sees_the_values_of_a_call(judged: Judged) -> None:
    found = judged(SEES)
    assert found.status is EvaluationStatus.PASSED, found.log
    assert "setup_ms" in timing_of(found)
    found = judged(PLANS)
    assert found.status is EvaluationStatus.REWARD_HACK
    assert "setup() computes the answer" in found.log


GATHER = "def run(table, kv_indices):\n    return table[kv_indices.long()]\n"


@pytest.fixture
def gather(make_definition: Make) -> Definition:
    return make_definition(
        {"table": "float32[num_pages,4]", "kv_indices": "int32[n]"}, {"y": "float32[n,4]"}, GATHER, name="gather"
    )


@pytest.mark.parametrize(
    ("setup", "is_redrawn"), [("", True), ("def setup(table, kv_indices):\n    return {}\n", False)]
)
def test_structure_is_redrawn_unless_somebody_plans(
    gather: Definition,
    make_judge: Callable[..., Judge],
    make_workload: MakeWorkload,
    make_solution: MakeSolution,
    setup: str,
    is_redrawn: bool,
) -> None:
    code = (
        "seen = []\n"
        + setup
        + GATHER.replace("    return", "    print(hash(kv_indices.numpy().tobytes()))\n    return")
    )
    judge = make_judge(iterations=64)
    prepared = judge.prepare(gather, make_workload(gather, {"num_pages": 64, "n": 16}))
    ((_, found),) = judge.evaluate(gather, make_solution(code, definition="gather"), [prepared])
    assert isinstance(found, Evaluation)
    assert found.status is EvaluationStatus.PASSED, found.log
    timed = found.log.split()[-64:]
    assert (len(set(timed)) > 3) is is_redrawn


@pytest.mark.parametrize(("at", "side"), [(-4, "before"), (8, "behind")])
def test_a_call_may_not_write_beside_its_outputs(judged: Judged, at: int, side: str) -> None:
    write = f"y.as_strided((4,), (1,), y.storage_offset() + {at}).fill_(7.0)"
    found = judged(f"def run(x, y):\n    y.copy_(x * 2)\n    {write}\n", dps=True)
    assert found.status is EvaluationStatus.RUNTIME_ERROR
    assert f"the call has written {side} output 'y', out of its bounds" in found.log


@pytest.mark.parametrize(("factor", "status"), [("s", "PASSED"), ("0.5", "INCORRECT_NUMERICAL")])
def test_a_scalar_is_not_what_it_always_was(
    evaluate: Evaluate,
    make_definition: Make,
    make_workload: MakeWorkload,
    make_solution: MakeSolution,
    factor: str,
    status: str,
) -> None:
    definition = make_definition(
        {"x": "float32[n]", "s": "float32"}, {"y": "float32[n]"}, "def run(x, s):\n    return x * s\n"
    )
    solution = make_solution(f"def run(x, s):\n    return x * {factor}\n", definition="made")
    workloads = [make_workload(definition, {"n": 8}, s=ScalarInput(0.5))]
    (found,) = evaluate(solution, definition=definition, workloads=workloads)
    assert found.status == status, found.log
    assert found.extra is not None
    assert found.extra["other_scalars"] == {"s": 0.3125}
    assert status == "PASSED" or "a call with s = 0.3125" in found.log
