"""Tests of faults: a hostile or broken solution costs its own evaluation only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from fib_schema import Definition, Evaluation, EvaluationStatus, RandomInput, Solution, Workload

Evaluate = Callable[..., list[Evaluation]]
Judged = Callable[..., Evaluation]
JudgedAll = Callable[..., Mapping[str, Evaluation]]
Make = Callable[..., Definition]
MakeSolution = Callable[..., Solution]
Cases = Mapping[str, tuple[str, ...]]
"""By name, the code of a solution and the texts that its log must have."""

GOOD = "def run(x):\n    return x * 2\n"
INPUT_SETS = 7
"""With the settings of `evaluate`; calls behind them warm up."""
UNTIMED_CALLS = INPUT_SETS + 2 * (5 + 16)
"""In each of two phases there are five and a pass to warm up."""
JUNK = """
import os
def run(x):
    for descriptor in range(3, 200):
        try:
            os.write(descriptor, b"\\xff" * 64)
        except OSError:
            pass
    return x * 2
"""
STARTS = """
import os, subprocess, time
def start():
    subprocess.Popen(["sleep", "1000000"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1e6)
        os._exit(0)
    if os.fork() == 0:
        time.sleep(1e6)
"""
DAEMONS = (
    STARTS
    + """
calls = 0
def run(x):
    global calls
    calls += 1
    if calls < 3:
        start()
    return x * 2
"""
)
MORE_AND_MORE = (
    STARTS
    + """
def run(x):
    start()
    for _ in range(40):
        subprocess.Popen(["sh", "-c", "for i in $(seq 25); do sleep 1000000 & done"], start_new_session=True)
        time.sleep(0.02)
    return x * 2
"""
)
FORGED = """
import os, socket, msgspec
def run(x):
    body = msgspec.msgpack.encode({message})
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{{name}}").startswith("socket:"):
                os.write(int(name), len(body).to_bytes(4, "little") + body)
        except OSError:
            pass
    return x * 2
"""
DESCRIPTORS = """
import os, socket
def run(x):
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                socket.send_fds(socket.socket(fileno=int(name)), [b"x"], [0, 1, 2])
        except OSError:
            pass
    return x * 2
"""
TRUNCATES = """
import os
def run(x):
    for name in os.listdir("/proc/self/fd"):
        try:
            os.ftruncate(int(name), 0)
        except OSError:
            pass
    return x * 2
"""
SABOTAGES_PADDING = """
def run(x):
    x.as_strided((x.numel() + 4,), (1,)).fill_(7.0)
    return x * 2
"""


@pytest.fixture(autouse=True)
def _leaves_no_process(survivors: Callable[[], dict[int, str]]) -> Iterator[None]:
    yield
    assert survivors() == {}


@pytest.fixture
def judged_all(evaluate: Evaluate, make_solution: MakeSolution) -> JudgedAll:
    """Evaluates solutions by name, and behind them a good one, which must pass."""

    def run(codes: Mapping[str, str], *, dps: bool = False, seconds: float = 60.0) -> Mapping[str, Evaluation]:
        bad = [make_solution(code, name=f"bad{index}", dps=dps) for index, code in enumerate(codes.values())]
        *evaluations, last = evaluate(*bad, make_solution(GOOD, name="good"), timeout_seconds=seconds)
        assert last.status is EvaluationStatus.PASSED, last.log
        return dict(zip(codes, evaluations, strict=True))

    return run


@pytest.fixture
def judged(judged_all: JudgedAll) -> Judged:
    """Evaluates a solution and behind it a good one, which must pass."""

    def run(code: str, *, dps: bool = False, seconds: float = 60.0) -> Evaluation:
        return judged_all({"bad": code}, dps=dps, seconds=seconds)["bad"]

    return run


def assert_evaluated(judged_all: JudgedAll, cases: Cases, status: EvaluationStatus, *, seconds: float = 60.0) -> None:
    """Check that all cases end with a status, each with its texts in its log."""
    evaluations = judged_all({name: code for name, (code, *_) in cases.items()}, seconds=seconds)
    wrong = {
        name: (evaluation.status, evaluation.log)
        for name, evaluation in evaluations.items()
        if evaluation.status is not status or not all(text in evaluation.log for text in cases[name][1:])
    }
    assert wrong == {}


BROKEN_IMPORTS: Cases = {
    "raises": ("import nothing_of_this_name\ndef run(x): pass", "ModuleNotFoundError"),
    "does-not-parse": ("def run(x:\n    return x", "SyntaxError"),
    "lacks-its-entry": ("def other(x):\n    return x", "it exports other"),
    "takes-other-arguments": ("def run(x, y, z):\n    return x", "wrong signature"),
    "sys-exit": ("import sys\nsys.exit(3)\ndef run(x): pass", "exit with code 3"),
}


FAILING_CALLS: Cases = {
    "import-exits": ("import os\nos._exit(0)\ndef run(x): pass", "built: the worker exited with status 0"),
    "import-aborts": ("import os\nos.abort()\ndef run(x): pass", "built: the worker was ended by SIGABRT"),
    "raises": ("def run(x):\n    raise ValueError('boom')", "ValueError: boom"),
    "sys-exit": ("import sys\ndef run(x):\n    sys.exit(3)", "SystemExit: 3"),
    "raises-base-exception": ("def run(x):\n    raise KeyboardInterrupt", "KeyboardInterrupt"),
    "os-exit": ("import os\ndef run(x):\n    os._exit(0)", "exited with status 0"),
    "segfault": ("import ctypes\ndef run(x):\n    ctypes.string_at(0)", "ended by SIGSEGV"),
    "abort": ("import os\ndef run(x):\n    os.abort()", "ended by SIGABRT"),
    "real-time-signal": ("import os\ndef run(x):\n    os.kill(os.getpid(), 40)", "ended by 40"),
    "endless-recursion": ("def run(x):\n    return run(x)", "RecursionError"),
    "closes-all-and-stays": (
        "import os, time\ndef run(x):\n    print('hangs')\n    os.closerange(0, 4096)\n    time.sleep(1e6)",
        "closed its channel",
    ),
    "closes-all-and-returns": ("import os\ndef run(x):\n    os.closerange(0, 4096)\n    return x * 2", "exited with"),
}


MESSAGES: Cases = {
    "junk-to-every-descriptor": (JUNK, "broke the protocol"),
    "sends-descriptors": (DESCRIPTORS, "descriptors came"),
}


def test_the_log_shows_the_lines_of_the_solution(judged: Judged) -> None:
    log = judged("def run(x):\n    return helper(x)\ndef helper(x):\n    return x / 'a'\n").log
    assert "return helper(x)" in log
    assert "return x / 'a'" in log
    assert "fib_bench" not in log


NO_ANSWER = "no answer within 0.3 s"
HANGS: Cases = {
    "in-run": ("import time\ndef run(x):\n    print('hangs')\n    time.sleep(1e6)", "line 4 in run", NO_ANSWER),
    "in-import": ("print('hangs')\nwhile True: pass\ndef run(x): pass", "line 2 in <module>", NO_ANSWER),
    "ignoring-signals": (
        "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\n"
        "def run(x):\n    print('hangs')\n    while True: pass",
        "line 5 in run",
        NO_ANSWER,
    ),
}


SILENT_HANGS: Cases = {
    "stopped": (
        "import os, signal\ndef run(x):\n    print('hangs silently')\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return x * 2",
    ),
    "signals-blocked": (
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\n"
        "def run(x):\n    print('hangs silently')\n    time.sleep(1e6)",
    ),
}


@pytest.mark.slow
def test_the_head_and_the_tail_of_a_flood_of_output_are_kept(judged: Judged) -> None:
    evaluation = judged("def run(x):\n    print('first' + 'A' * 5_000_000 + 'last', flush=True)\n    return x * 2")
    assert evaluation.status is EvaluationStatus.PASSED
    assert evaluation.log.startswith("first")
    assert evaluation.log.endswith("last\n")
    assert "bytes dropped" in evaluation.log
    assert len(evaluation.log) < 40_000  # of checks and of timing


@pytest.mark.usefixtures("slow_clock")
def test_a_flood_without_end_times_out(judged: Judged) -> None:
    evaluation = judged("def run(x):\n    print('hangs silently')\n    while True: print('B' * 1000)", seconds=0.3)
    assert evaluation.status is EvaluationStatus.TIMEOUT
    assert len(evaluation.log) < 20_000


def test_a_worker_with_too_many_children_is_ended(judged: Judged) -> None:
    evaluation = judged(MORE_AND_MORE)
    assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
    was_ended = re.match(r"the worker was ended: it had more than \d+ processes and threads", evaluation.log)
    # On a busy machine the limit of the system can refuse a fork before the server has counted.
    assert was_ended or "Resource temporarily unavailable" in evaluation.log, evaluation.log


KILLS: Cases = {
    "and-waits": ("import os, time\ndef run(x):\n    os.kill(os.getppid(), 9)\n    time.sleep(1e6)",),
    "and-would-outlive-it": (
        "import ctypes, os, time\ndef run(x):\n    ctypes.CDLL(None).prctl(1, 0)\n"  # no signal when the parent dies
        "    os.kill(os.getppid(), 9)\n    time.sleep(1e6)\n",
    ),
    # where the attempt is not refused, the judge asks the server for a sign of life
    "and-goes-on": ("import os\ndef run(x):\n    os.kill(os.getppid(), 9)\n    return x * 2",),
}


HARMLESS: Cases = {
    "leaves-daemons": (DAEMONS,),
    "truncates-shared-memory": (TRUNCATES,),
    "prints-invalid-utf8": (
        "import os\ndef run(x):\n    os.write(1, b'\\xff\\x00caf\\xc3\\xa9')\n    return x * 2",
        "café",
    ),
}


@pytest.mark.usefixtures("slow_clock")
@pytest.mark.parametrize(
    ("cases", "status", "seconds"),
    [
        pytest.param(BROKEN_IMPORTS, EvaluationStatus.COMPILE_ERROR, 60.0, id="an import fails"),
        pytest.param(FAILING_CALLS, EvaluationStatus.RUNTIME_ERROR, 60.0, id="a call fails"),
        pytest.param(HANGS, EvaluationStatus.TIMEOUT, 0.3, id="a hang whose stack is in the log"),
        pytest.param(SILENT_HANGS, EvaluationStatus.TIMEOUT, 0.3, id="a hang that cannot tell its stack"),
        pytest.param(KILLS, EvaluationStatus.RUNTIME_ERROR, 60.0, id="the server is killed"),
        pytest.param(HARMLESS, EvaluationStatus.PASSED, 60.0, id="attempts have no effect"),
    ],
)
def test_a_fault_costs_its_own_evaluation(
    judged_all: JudgedAll, cases: Cases, status: EvaluationStatus, seconds: float
) -> None:
    assert_evaluated(judged_all, cases, status, seconds=seconds)


def test_the_stack_of_a_signal_has_no_frames_of_the_harness(judged_all: JudgedAll) -> None:
    code = "import ctypes\ndef run(x):\n    return reads(x)\ndef reads(x):\n    return ctypes.string_at(0)\n"
    (evaluation,) = judged_all({"segfault": code}).values()
    assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
    assert "SIGSEGV" in evaluation.log
    assert "in reads" in evaluation.log
    assert not [word for word in ("fib_bench/", "fib_compile/", "<frozen", "Extension mod") if word in evaluation.log]


FORGED_MESSAGES = {
    '{"type": "composed", "index": 0, "nodes": 1}': "answered Call with Composed",
    '{"type": "done"}': "answered Call with Done",
    '{"type": "warm", "call_ns": 1.0, "host_ns": 1.0}': "answered Call with Warm",
    '{"type": "uncapturable", "problem": "but this is no capture"}': "answered Call with Uncapturable",
    '{"type": "built"}': "answered Call with Built",
    '{"type": "exited", "pid": 1, "wait_status": 0}': "broke the protocol",
}


def test_a_message_to_the_judge_is_an_exploit(judged_all: JudgedAll) -> None:
    forged = {message: (FORGED.format(message=message), said) for message, said in FORGED_MESSAGES.items()}
    assert_evaluated(judged_all, {**MESSAGES, **forged}, EvaluationStatus.REWARD_HACK)


FORGED_FAILURES = {
    '{"type": "failed", "stage": "run", "detail": "d" * 3_000_000}': "ddd",
    '{"type": "wrong-output", "aspect": "taste", "problem": "bitter"}': "bitter",
}


def test_a_forged_failure_is_a_failure(judged_all: JudgedAll) -> None:
    codes = {message: FORGED.format(message=message) for message in FORGED_FAILURES}
    for message, evaluation in judged_all(codes).items():
        assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
        assert FORGED_FAILURES[message] in evaluation.log
        assert len(evaluation.log) < 40_000


def forging(message: str, *, from_call: int) -> str:
    """A solution that forges a message in that call and in those behind it."""
    return FORGED.format(message=message).replace("run(x)", "forge(x)") + (
        "calls = 0\n"
        "def run(x):\n"
        "    global calls\n"
        "    calls += 1\n"
        f"    return forge(x) if calls >= {from_call} else x * 2\n"
    )


FORGED_WARM_UPS = {
    "float('nan')": "answered a request to warm up with no duration",
    "float('inf')": "answered a request to warm up with no duration",
    "-1.0": "answered a request to warm up with no duration",
    "1.0": "answered OpenPasses with Warm(",
    "'1'": "broke the protocol",
}


def test_a_forged_report_of_the_warm_up_is_refused(judged_all: JudgedAll) -> None:
    cases = {}
    for fields, said in FORGED_WARM_UPS.items():
        message = f'dict(zip(("type", "call_ns"), ("warm", {fields})))'
        cases[fields] = forging(message, from_call=INPUT_SETS + 1), said
    assert_evaluated(judged_all, cases, EvaluationStatus.REWARD_HACK)


def test_a_report_of_a_failed_capture_without_a_capture_is_refused(judged: Judged) -> None:
    """It gets another worker, in which nothing is captured."""
    evaluation = judged(forging('{"type": "uncapturable", "problem": "again"}', from_call=INPUT_SETS + 1))
    assert evaluation.status is EvaluationStatus.REWARD_HACK
    assert "the worker answered WarmUp with Uncapturable(problem='again')" in evaluation.log


RESULTS_THAT_DO_NOT_FIT = {
    "x[:3] * 2": ("INCORRECT_SHAPE", "output 'y' has shape (3,), expected (8,)"),
    "(x * 2).view(1, -1)": ("INCORRECT_SHAPE", "shape (1, 8)"),
    "x.double() * 2": ("INCORRECT_DTYPE", "dtype torch.float64, expected torch.float32"),
    "'hello'": ("RUNTIME_ERROR", "is a builtins.str, expected a torch.Tensor"),
    "None": ("RUNTIME_ERROR", "NoneType"),
    "3.5": ("RUNTIME_ERROR", "is a builtins.float"),
    "(x, x)": ("RUNTIME_ERROR", "returned 2 values, expected 1: y"),
    "()": ("RUNTIME_ERROR", "returned 0 values, expected 1: y"),
    "{'z': x}": ("RUNTIME_ERROR", "returned a dict of ['z'], expected ['y']"),
    "torch.nn.Parameter(x * 2)": ("RUNTIME_ERROR", "is a torch.nn.parameter.Parameter"),
    "Lazy()": ("RUNTIME_ERROR", "Lazy, expected a torch.Tensor"),
    "(x * 2).to_sparse()": ("RUNTIME_ERROR", "parse"),
    "torch.empty(8, device='meta')": ("RUNTIME_ERROR", "meta"),
}


def test_a_result_that_does_not_fit_is_told_apart(judged_all: JudgedAll) -> None:
    code = "import torch\nclass Lazy(torch.Tensor): pass\ndef run(x):\n    return {}\n"
    for result, evaluation in judged_all({each: code.format(each) for each in RESULTS_THAT_DO_NOT_FIT}).items():
        status, said = RESULTS_THAT_DO_NOT_FIT[result]
        assert evaluation.status == status, (result, evaluation.log)
        assert said in evaluation.log


HONEST_RESULTS = (
    "[x * 2]",
    "(x * 2,)",
    "{'y': x * 2}",
    "(x * 2).repeat_interleave(2)[::2]",
    "(x.requires_grad_(False) * w)",
)


def test_unusual_but_honest_results_pass(judged_all: JudgedAll) -> None:
    code = "import torch\nw = torch.tensor(2.0, requires_grad=True)\ndef run(x):\n    return {}\n"
    assert_evaluated(judged_all, {each: (code.format(each),) for each in HONEST_RESULTS}, EvaluationStatus.PASSED)


def test_writing_to_inputs_is_an_error_and_the_next_solution_gets_clean_ones(judged_all: JudgedAll) -> None:
    codes = {"zeroes": "def run(x):\n    y = x * 2\n    x.zero_()\n    return y", "pads": SABOTAGES_PADDING}
    cases = {name: (code, "must not write to its inputs") for name, code in codes.items()}
    assert_evaluated(judged_all, cases, EvaluationStatus.RUNTIME_ERROR)


RIGHT_AT_FIRST = {
    0: "input set 0 (normal): output 'y': ",
    1: "input set 1 (normal): output 'y': ",
    2: "input set 2 (generated): output 'y': ",
    3: "input set 3 (wide): output 'y': ",
    UNTIMED_CALLS: "timed calls: output 'y': ",
}


def test_an_output_that_is_right_at_first_and_wrong_later_is_incorrect(judged_all: JudgedAll) -> None:
    code = "calls = 0\ndef run(x):\n    global calls\n    calls += 1\n    return x * 2 if calls <= {} else x * 3\n"
    for calls, evaluation in judged_all({str(calls): code.format(calls) for calls in RIGHT_AT_FIRST}).items():
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert evaluation.log.startswith(RIGHT_AT_FIRST[int(calls)])
        assert "elements are wrong" in evaluation.log
        assert evaluation.correctness is not None
        assert evaluation.correctness.max_absolute_error > 0


def test_an_output_kept_from_other_inputs_is_an_exploit(judged: Judged) -> None:
    evaluation = judged("kept = []\ndef run(x):\n    kept.append(x * 2)\n    return kept[0]\n")
    assert evaluation.status is EvaluationStatus.REWARD_HACK
    assert evaluation.log.startswith("kept outputs: they are right for the inputs of an earlier call (normal)\n")
    assert "input set 1 (normal): output 'y': 8 of 8 elements are wrong" in evaluation.log


def test_a_constant_that_is_right_for_other_inputs_is_only_wrong(
    make_definition: Make, make_solution: MakeSolution, evaluate: Evaluate
) -> None:
    """Rare elements are true in the set `wide`; a mask of False is the answer to other sets, but no kept one."""
    definition = make_definition({"x": "float32[n,m]"}, {"mask": "bool[n,m]"}, "def run(x):\n    return x > 5.5\n")
    solution = make_solution("def run(x):\n    return x > 1e9\n", definition="made")
    workload = Workload({"n": 16, "m": 64}, {"x": RandomInput()}, "w")
    (evaluation,) = evaluate(solution, definition=definition, workloads=[workload])
    assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
    assert re.search(r"\((wide|generated)\): output 'mask': ", evaluation.log)


FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int64", "int32", "int16", "int8", "bool")


@pytest.mark.parametrize(
    ("fill", "dtypes"),
    [("0", FLOATS + INTEGERS), ("1", FLOATS + INTEGERS), ("90", ("int8",))],
)
def test_buffers_that_are_not_written_never_pass(
    evaluate: Evaluate, make_definition: Make, make_solution: MakeSolution, fill: str, dtypes: tuple[str, ...]
) -> None:
    """Of any dtype, whatever constant the reference gives, the poison's own bytes of timed calls included."""
    values = ", ".join(f"torch.full(x.shape, {fill}).to(torch.{dtype})" for dtype in dtypes)
    outputs = {f"y_{dtype}": f"{dtype}[n]" for dtype in dtypes}
    definition = make_definition({"x": "float32[n]"}, outputs, f"import torch\ndef run(x):\n    return {values}\n")
    idle = make_solution(f"def run(x, {', '.join(outputs)}):\n    pass\n", definition="made", dps=True)
    (evaluation,) = evaluate(idle, definition=definition)
    assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
    for name in outputs:
        assert f"output {name!r}: 8 of 8 elements are wrong" in evaluation.log


def test_the_poison_of_single_calls_does_not_pass_in_timed_calls(
    evaluate: Evaluate, make_definition: Make, make_solution: MakeSolution
) -> None:
    """Another poison is used if the reference gives the one that single calls were poisoned with."""
    reference = "import torch\ndef run(x):\n    return torch.full(x.shape, -61).to(torch.int8)\n"
    definition = make_definition({"x": "float32[n]"}, {"y": "int8[n]"}, reference)
    idle = make_solution("def run(x, y):\n    pass\n", definition="made", dps=True)
    (evaluation,) = evaluate(idle, definition=definition)
    assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
    assert evaluation.log == "16 of 16 timed calls left outputs unwritten"


@pytest.mark.parametrize("value", [-61, 90])
@pytest.mark.parametrize("shape", ["int8[]", "int8[n]"])
def test_outputs_that_happen_to_be_like_poison_pass(
    evaluate: Evaluate, make_definition: Make, make_solution: MakeSolution, value: int, shape: str
) -> None:
    size = "()" if shape == "int8[]" else "x.shape"
    code = f"import torch\ndef run(x):\n    return torch.full({size}, {value}, dtype=torch.int8)\n"
    definition = make_definition({"x": "float32[n]"}, {"y": shape}, code)
    (evaluation,) = evaluate(make_solution(code, definition="made"), definition=definition)
    assert evaluation.status is EvaluationStatus.PASSED, evaluation.log


def test_a_build_that_fails_is_recorded_for_every_workload(
    evaluate: Evaluate, make_solution: MakeSolution, make_workload: Callable[..., object], definition: Definition
) -> None:
    workloads = [make_workload(definition, {"n": n}, f"w{n}") for n in (1, 2, 3)]
    evaluations = evaluate(make_solution("import nothing_of_this_name"), workloads=workloads)
    assert [e.status for e in evaluations] == ["COMPILE_ERROR"] * 3
    assert all("nothing_of_this_name" in e.log for e in evaluations)


def test_a_trace_holds_what_was_printed_on_its_own_workload(
    evaluate: Evaluate, make_solution: MakeSolution, make_workload: Callable[..., object], definition: Definition
) -> None:
    workloads = [make_workload(definition, {"n": n}, f"w{n}") for n in (1, 2)]
    code = "def run(x):\n    print('size', len(x))\n    return x * 2"
    first, second = evaluate(make_solution(code), workloads=workloads)
    assert "size 1" in first.log
    assert set(second.log.split("\n")) == {"size 2", ""}


def test_a_solution_has_a_jit_cache_of_its_own(judged: Judged, cache_path: Path) -> None:
    evaluation = judged("import os\ndef run(x):\n    raise ValueError(os.environ['TRITON_CACHE_DIR'])")
    assert f"ValueError: {cache_path}" in evaluation.log
    assert "/jit/" in evaluation.log
