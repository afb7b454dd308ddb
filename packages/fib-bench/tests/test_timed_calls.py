"""Tests of timed calls from end to end, on the CPU: all that is timed is verified, whatever the worker does."""

import textwrap
import threading
import time

import attrs
import pytest
from fib_bench.judge.device import DeviceLock
from fib_bench.worker.client import ForkServerClient
from fib_schema import Evaluation, EvaluationStatus, ScalarInput

from .samples import DOUBLE, FORGES, SLOTS, UNTIMED_CALLS, make_definition, make_solution, make_workload, timing_of

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


def timed_only(does, *, before="", otherwise="return x * 2"):
    """A solution that is right until its calls are timed."""
    does, otherwise = (textwrap.indent(textwrap.dedent(text), " " * 8) for text in (does, otherwise))
    given = "x, y" if "y" in otherwise.replace("by", "") else "x"
    head = COUNTS.format(untimed=UNTIMED_CALLS) + before
    return f"{head}\ndef run({given}):\n    if is_timed():\n{does}\n    else:\n{otherwise}\n"


@pytest.fixture
def judged(evaluate):
    """Evaluates a solution on one workload of the size given."""

    def run(code, *, n=8, dps=False, **fields):
        workloads = [make_workload(DOUBLE, {"n": n})]
        (evaluation,) = evaluate(make_solution(textwrap.dedent(code), dps=dps), workloads=workloads, **fields)
        return evaluation

    return run


@pytest.mark.parametrize(("seconds", "calls"), [(0.003, SLOTS), (0.03, 8), (0.15, 2)])  # others wait for a pass
def test_a_latency_is_what_a_caller_waits_for(judged, seconds, calls):
    code = f"import time\ndef run(x):\n    time.sleep({seconds})\n    return x * 2\n"
    found = judged(code, iterations=1, max_iterations=1)
    assert found.status is EvaluationStatus.PASSED
    assert found.flags == ("unranked: cpu timing",)
    assert 1 < found.performance.latency_ms < 1000  # by far more than 3 on a busy machine
    timing = timing_of(found)
    assert timing["method"] == "cpu"
    assert timing["call_ms"] == pytest.approx(found.performance.latency_ms)
    assert timing["uncertainty_ms"] == timing["call_uncertainty_ms"] > 0
    assert found.performance.extra["reference_timing"]["uncertainty_ms"] > 0
    assert timing["orders_ms"] == {}  # of calls that a device launches
    assert timing["timed_calls"] == timing["samples"] == calls
    assert timing["timed_calls"] >= timing["verified_calls"] >= min(calls, 10)
    assert timing["detected_share"] == pytest.approx(1 - 0.01 ** (1 / timing["verified_calls"]), abs=1e-4)


WRONG = {
    "nothing is computed": (
        timed_only("pass", otherwise="y.copy_(x * 2)"),
        "INCORRECT_NUMERICAL", "16 of 16 timed calls left outputs unwritten",
    ),
    "a part is not written": (
        timed_only("y[:4].copy_(x[:4] * 2)", otherwise="y.copy_(x * 2)"),
        "INCORRECT_NUMERICAL", "timed calls left outputs unwritten",
    ),
    "other values are written": (
        timed_only("y.copy_(x)", otherwise="y.copy_(x * 2)"), "INCORRECT_NUMERICAL", "; timed calls",
    ),
    "one element is wrong": (
        timed_only("y = x * 2\ny[5] += 1\nreturn y"),
        "INCORRECT_NUMERICAL", "y: 1 of 8 wrong; first [5] is ",
    ),
    "outputs of an earlier call are returned": (
        timed_only("return kept[-1]", before="kept = []", otherwise="kept.append(x * 2)\nreturn kept[-1]"),
        "INCORRECT_NUMERICAL", "; timed calls",
    ),
    "outputs are kept by the address of the inputs": (
        timed_only(
            "return kept[x.data_ptr()]",
            before="kept = {}",
            otherwise="kept[x.data_ptr()] = x * 2\nreturn kept[x.data_ptr()]",
        ),
        "INCORRECT_NUMERICAL", "; timed calls",
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
            "at = current(mailbox()) - 1\nif at + 1: passes()._calls[at].outputs[0].neg_()\nreturn x * 2", before=INSIDE
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
        timed_only("forge({'type': 'failed', 'kind': 'capture', 'detail': 'no'})\nreturn x * 2", before=FORGES),
        "REWARD_HACK", "the worker answered RunCalls with Failed(kind='capture'",
    ),
}  # fmt: skip
"""By what happens in timed calls only: the solution, its status, and a text that its log has."""


def test_what_is_wrong_only_where_it_is_timed_is_found(evaluate):
    solutions = [
        make_solution(code, name=f"s{index}", dps="def run(x, y)" in code)
        for index, (code, *_) in enumerate(WRONG.values())
    ]
    found = dict(zip(WRONG, evaluate(*solutions), strict=True))
    unexpected = {
        name: (str(found[name].status), found[name].log)
        for name, (_, status, text) in WRONG.items()
        if found[name].status != status or text not in found[name].log
    }
    assert unexpected == {}


def test_the_interval_of_a_cpu_latency_spans_several_processes(judged):
    code = """
import os, time
took = 0.001 + int.from_bytes(os.urandom(1)) / 1e4
def run(x):
    time.sleep(took)
    return x * 2
"""
    found = judged(code, cpu_processes=4)
    assert found.performance is not None, found.log
    timing, reference = timing_of(found), found.performance.extra["reference_timing"]
    assert timing["processes"] == 4
    ends = [(timing["interval_ms"], found.performance.latency_ms)]
    ends += [(reference["speedup_interval"], found.performance.speedup_factor)]
    for (low, high), value in ends:
        assert low <= value <= high
        assert high > 1.05 * low


@pytest.mark.slow
@pytest.mark.parametrize("does", ["time.sleep(1e6)", "os.kill(os.getpid(), 19)"])
def test_a_call_without_end_times_out(judged, does):
    found = judged(timed_only(does, before="import os, time"), timeout_seconds=15.0)
    assert found.status is EvaluationStatus.TIMEOUT, found.log
    assert "of a pass sent no digest within 15 s" in found.log


@pytest.mark.slow
def test_a_pass_whose_calls_all_end_late_times_out(judged):
    found = judged(timed_only("time.sleep(1)\nreturn x * 2", before="import time"), timeout_seconds=12.0)
    assert found.status is EvaluationStatus.TIMEOUT, found.log
    assert found.log.startswith("a pass did not end within 12 s")


@pytest.mark.slow
def test_a_pass_that_hangs_leaves_the_device_to_a_judge_that_waits(make_judge, tmp_path):
    """Long before the limit of one request, during which nobody waits."""
    hanging, waiting = make_judge(timeout_seconds=3600.0), make_judge(own=ForkServerClient("cpu"))
    hanging.context = attrs.evolve(hanging.context, lock=DeviceLock(tmp_path / "lock"), held_timeout_seconds=15.0)
    waiting.context = attrs.evolve(waiting.context, lock=DeviceLock(tmp_path / "lock"))
    workload, found = make_workload(DOUBLE, {"n": 8}), {}

    def evaluate(judge, code):
        ((_, found[code]),) = judge.evaluate(DOUBLE, make_solution(code), [judge.prepare(DOUBLE, workload)])

    hangs, good = timed_only("time.sleep(1e6)", before="import time"), "def run(x):\n    return x * 2\n"
    first = threading.Thread(target=evaluate, args=(hanging, hangs))
    first.start()
    while not hanging.context.lock.is_alone:
        assert first.is_alive()
        time.sleep(0.01)
    evaluate(waiting, good)
    first.join()
    assert found[good].status is EvaluationStatus.PASSED, found[good].log
    assert found[hangs].status is EvaluationStatus.TIMEOUT, found[hangs].log
    assert "of a pass sent no digest within 15 s" in found[hangs].log


def test_work_for_inputs_that_were_met_before_is_missed(judged):
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


@pytest.mark.parametrize("result", ["x.sum()", "x.sum().item()"])
def test_an_output_may_be_a_number(evaluate, result):
    definition = make_definition({"x": "float32[n]"}, {"s": "float32"}, "def run(x):\n    return x.sum()\n")
    (found,) = evaluate(make_solution(f"def run(x):\n    return {result}\n", definition="made"), definition=definition)
    assert found.status is EvaluationStatus.PASSED, found.log
    assert timing_of(found)["verified_calls"] >= 10


def test_what_cannot_vary_is_told(evaluate):
    code = "def run(x, cos_sin_cache):\n    return x * 2 + cos_sin_cache.sum()\n"
    definition = make_definition({"x": "float32[n]", "cos_sin_cache": "float32[n,c4]"}, {"y": "float32[n]"}, code)
    (found,) = evaluate(make_solution(code, definition="made"), definition=definition)
    assert found.status is EvaluationStatus.PASSED, found.log
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


def test_setup_never_sees_the_values_of_a_call(judged):
    found = judged(SEES)
    assert found.status is EvaluationStatus.PASSED, found.log
    assert "setup_ms" in timing_of(found)
    found = judged(PLANS)
    assert found.status is EvaluationStatus.INCORRECT_NUMERICAL
    assert "setup() gets other floating values than run()" in found.log


HISTOGRAM = (
    "import torch\ndef run(topk_ids):\n    return torch.bincount(topk_ids.flatten().long(), minlength=8).int()\n"
)


def test_setup_does_not_see_integers_that_outputs_depend_on_alone(evaluate):
    definition = make_definition(
        {"topk_ids": "int32[num_tokens,4]"}, {"counts": "int32[num_experts]"}, HISTOGRAM, constants={"num_experts": 8}
    )
    plan = "def setup(topk_ids):\n    return {'n': len(topk_ids)}\n"
    answer = f"{HISTOGRAM}\ncount = run\ndef setup(topk_ids):\n    return {{'counts': count(topk_ids)}}\n"
    codes = [
        plan + HISTOGRAM.replace("topk_ids):", "topk_ids, n):"),
        answer + "def run(topk_ids, counts):\n    return counts\n",
    ]
    solutions = [make_solution(code, definition="made", name=f"s{place}") for place, code in enumerate(codes)]
    honest, cheating = evaluate(*solutions, definition=definition)
    assert honest.status is EvaluationStatus.PASSED, honest.log
    assert cheating.status is EvaluationStatus.INCORRECT_NUMERICAL
    assert "setup() saw other integers" in cheating.log


GATHER = "def run(table, kv_indices):\n    return table[kv_indices.long()]\n"


@pytest.fixture
def gather():
    return make_definition(
        {"table": "float32[num_pages,4]", "kv_indices": "int32[n]"}, {"y": "float32[n,4]"}, GATHER, name="gather"
    )


@pytest.mark.parametrize(
    ("setup", "is_redrawn"), [("", True), ("def setup(table, kv_indices):\n    return {}\n", False)]
)
def test_structure_is_redrawn_unless_somebody_plans(gather, make_judge, setup, is_redrawn):
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


@pytest.mark.parametrize(
    ("n", "at", "count", "side"),
    [
        (8, -4, 4, "before"),
        (8, 8, 4, "behind"),
        (1 << 12, -(1 << 12), 1 << 12, "before"),
        (1 << 12, 1 << 12, 1 << 12, "behind"),
    ],
)
def test_a_call_may_not_write_beside_its_outputs(judged, n, at, count, side):
    """Up to the size of an output: a row more than there is must not destroy the heap."""
    write = f"y.as_strided(({count},), (1,), y.storage_offset() + {at}).fill_(7.0)"
    found = judged(f"def run(x, y):\n    y.copy_(x * 2)\n    {write}\n", dps=True, n=n)
    assert found.status is EvaluationStatus.RUNTIME_ERROR
    assert f"the call has written {side} output 'y', out of its bounds" in found.log


SHIFTED = "def run(x, s, k, flip):\n    return (x.flip(0) if {flip} else x) * {s} + {k}\n"
SCALARS = {"s": ScalarInput(0.5), "k": ScalarInput(4), "flip": ScalarInput(True)}


@pytest.mark.parametrize(
    ("fixed", "says"),
    [({}, ""), ({"s": "0.5"}, "with s = 0.3125"), ({"k": "4"}, "with k = 2"), ({"flip": "True"}, "with flip = False")],
)
def test_a_scalar_is_not_what_it_always_was(evaluate, fixed, says):
    names = {name: name for name in SCALARS}
    specs = {"x": "float32[n]", "s": "float32", "k": "int32", "flip": "bool"}
    definition = make_definition(specs, {"y": "float32[n]"}, SHIFTED.format(**names))
    solution = make_solution(SHIFTED.format(**names | fixed), definition="made")
    workloads = [make_workload(definition, {"n": 8}, **SCALARS)]
    (found,) = evaluate(solution, definition=definition, workloads=workloads)
    assert found.status == ("INCORRECT_NUMERICAL" if says else "PASSED"), found.log
    assert found.extra["other_scalars"] == {"s": 0.3125, "k": 2, "flip": False}
    assert says in found.log


def test_a_switch_that_makes_the_reference_random_stays(evaluate):
    """Dropout in training, for instance."""
    reference = "import torch\ndef run(x, drops):\n    return torch.rand(x.shape) if drops else x * 2\n"
    definition = make_definition({"x": "float32[n]", "drops": "bool"}, {"y": "float32[n]"}, reference)
    workloads = [make_workload(definition, {"n": 8}, drops=ScalarInput(False))]
    (found,) = evaluate(make_solution(reference, definition="made"), definition=definition, workloads=workloads)
    assert found.status == "PASSED", found.log
    assert "gives other outputs when it is called again" in found.extra["left_out"]["scalar drops"]


def test_a_scalar_that_the_reference_ignores_or_that_must_be_as_it_is_stays(evaluate):
    """A hint of a size, which kernels may rely on, and a size of the outputs."""
    reference = "def run(x, hint, rows):\n    return x.view(rows, 2).sum(1)\n"
    definition = make_definition({"x": "float32[n]", "hint": "int32", "rows": "int32"}, {"y": "float32[m]"}, reference)
    solution = make_solution(reference.replace("rows, 2", "4, hint"), definition="made")
    workloads = [make_workload(definition, {"n": 8, "m": 4}, hint=ScalarInput(2), rows=ScalarInput(4))]
    (found,) = evaluate(solution, definition=definition, workloads=workloads)
    assert found.status == "PASSED", found.log
    assert found.extra["left_out"]["scalar hint"] == "the outputs do not depend on it"
    assert found.extra["left_out"]["scalar rows"].startswith("the reference failed: ")
    assert "other_scalars" not in found.extra
