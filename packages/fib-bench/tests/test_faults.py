"""Tests of faults: a hostile or broken solution costs its own evaluation only."""

import re

import pytest
from fib_bench.judge.record import without_harness_frames
from fib_schema import EvaluationStatus

from .samples import DOUBLE, FORGES, GOOD, INPUT_SETS, UNTIMED_CALLS, make_definition, make_solution, make_workload

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
DAEMONS = """
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

calls = 0
def run(x):
    global calls
    calls += 1
    if calls < 3:
        start()
    return x * 2
"""
KILLED_ONCE = """
import os
def run(x):
    mark = os.environ["FIB_CACHE_PATH"] + "/mark"
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), 9)
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
OVERRUNS_INPUT = """
def run(x):
    x.as_strided(({count},), (1,), x.storage_offset() + {at}).fill_(7.0)
    return x * 2
"""


def forging(message, *, from_call=1):
    """A solution that forges a message in that call and in those behind it."""
    head = f"{FORGES}calls = 0\ndef run(x):\n    global calls\n    calls += 1\n"
    return f"{head}    if calls >= {from_call}:\n        forge({message})\n    return x * 2\n"


@pytest.fixture(autouse=True)
def _leaves_no_process(survivors):
    yield
    assert survivors() == {}


@pytest.fixture
def judged_all(make_judge):
    """Evaluates solutions by name, and behind them a good one, which must pass and has a minute for that."""

    def run(codes, *, dps=False, seconds=60.0):
        judge = make_judge(timeout_seconds=seconds)
        prepared = [judge.prepare(DOUBLE, make_workload(DOUBLE, {"n": 8}))]
        bad = [make_solution(code, name=f"bad{index}", dps=dps) for index, code in enumerate(codes.values())]
        evaluations = [evaluation for each in bad for _, evaluation in judge.evaluate(DOUBLE, each, prepared)]
        judge.context.timeout_seconds = 60.0
        ((_, last),) = judge.evaluate(DOUBLE, make_solution(GOOD, name="good"), prepared)
        judge.close()
        assert last.status is EvaluationStatus.PASSED, last.log
        return dict(zip(codes, evaluations, strict=True))

    return run


@pytest.fixture
def judged(judged_all):
    """Evaluates a solution and behind it a good one, which must pass."""

    def run(code, *, dps=False, seconds=60.0):
        return judged_all({"bad": code}, dps=dps, seconds=seconds)["bad"]

    return run


def assert_evaluated(judged_all, cases, status, *, seconds=60.0):
    """Check that all cases end with a status, each with its texts in its log."""
    evaluations = judged_all({name: code for name, (code, *_) in cases.items()}, seconds=seconds)
    wrong = {
        name: (evaluation.status, evaluation.log)
        for name, evaluation in evaluations.items()
        if evaluation.status is not status or not all(text in evaluation.log for text in cases[name][1:])
    }
    assert wrong == {}


BROKEN_IMPORTS = {
    "raises": ("import nothing_of_this_name\ndef run(x): pass", "ModuleNotFoundError"),
    "does-not-parse": ("def run(x:\n    return x", "SyntaxError"),
    "lacks-its-entry": ("def other(x):\n    return x", "it exports other"),
    "takes-other-arguments": ("def run(x, y, z):\n    return x", "wrong signature"),
    "sys-exit": ("import sys\nsys.exit(3)\ndef run(x): pass", "exit with code 3"),
}


FAILING_CALLS = {
    "import-exits": ("import os\nos._exit(0)\ndef run(x): pass", "built: the worker exited with status 0"),
    "import-aborts": ("import os\nos.abort()\ndef run(x): pass", "built: the worker was ended by SIGABRT"),
    "raises": ("def run(x):\n    raise ValueError('boom')", '\n  File "k.py", line 2, in run', "\nValueError: boom"),
    "sys-exit": ("import sys\ndef run(x):\n    sys.exit(3)", "SystemExit: 3"),
    "raises-base-exception": ("def run(x):\n    raise KeyboardInterrupt", "KeyboardInterrupt"),
    "os-exit": ("import os\ndef run(x):\n    os._exit(0)", "exited with status 0"),
    "segfault": ("import ctypes\ndef run(x):\n    ctypes.string_at(0)", "ended by SIGSEGV"),
    "kill": ("import os\ndef run(x):\n    os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    "abort": ("import os\ndef run(x):\n    os.abort()", "ended by SIGABRT"),
    "real-time-signal": ("import os\ndef run(x):\n    os.kill(os.getpid(), 40)", "ended by 40"),
    "endless-recursion": ("def run(x):\n    return run(x)", "RecursionError"),
    "closes-all-and-stays": (
        "import os, time\ndef run(x):\n    print('hangs')\n    os.closerange(0, 4096)\n    time.sleep(1e6)",
        "closed its channel",
    ),
    "closes-all-and-returns": ("import os\ndef run(x):\n    os.closerange(0, 4096)\n    return x * 2", "exited with"),
}


MESSAGES = {
    "junk-to-every-descriptor": (JUNK, "broke the protocol"),
    "sends-descriptors": (DESCRIPTORS, "descriptors came"),
}


def test_the_log_shows_the_lines_of_the_solution(judged):
    log = judged("def run(x):\n    return helper(x)\ndef helper(x):\n    return x / 'a'\n").log
    assert log.splitlines()[0].startswith("k.py:4: TypeError: unsupported operand")
    assert "return helper(x)" in log
    assert "return x / 'a'" in log
    assert "fib_bench" not in log


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        ("raise ValueError('first\\nsecond')", "k.py:2: ValueError: first"),
        ("raise ValueError('x' * 10**6)", f"k.py:2: ValueError: {'x' * 97}..."),
        ("import json; json.loads('{')", "k.py:2: json.decoder.JSONDecodeError: Expecting property name"),
        ("raise SystemExit(3)", "k.py:2: SystemExit: 3"),
        ("try:\n        1 / 0\n    except Exception as e:\n        raise KeyError from e", "k.py:3: ZeroDivisionError"),
    ],
)
def test_the_first_line_of_the_log_is_the_line_that_failed_with_its_error(judged, raised, line):
    first, *_ = judged(f"def run(x):\n    {raised}\n    return x\n").log.splitlines()
    assert first.startswith(line)
    assert len(first) <= 120


NO_ANSWER = "no answer within 2 s"
HANGS = {
    "in-run": ("import time\ndef run(x):\n    print('hangs')\n    time.sleep(1e6)", "line 4 in run", NO_ANSWER),
    "in-import": ("print('hangs')\nwhile True: pass\ndef run(x): pass", "line 2 in <module>", NO_ANSWER),
    "ignoring-signals": (
        "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\n"
        "def run(x):\n    print('hangs')\n    while True: pass",
        "line 5 in run",
        NO_ANSWER,
    ),
}


SILENT_HANGS = {
    "stopped": (
        "import os, signal\ndef run(x):\n    print('hangs silently')\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return x * 2",
    ),
    "signals-blocked": (
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\n"
        "def run(x):\n    print('hangs silently')\n    time.sleep(1e6)",
    ),
    "a-little-in-each-call": (
        "import time\ndef run(x):\n    print('hangs silently')\n    time.sleep(1.2)\n    return x * 2",
        "all calls on a workload together took more than 6 s",
    ),
}


@pytest.mark.slow
def test_the_head_and_the_tail_of_a_flood_of_output_are_kept(judged):
    evaluation = judged("def run(x):\n    print('first' + 'A' * 5_000_000 + 'last', flush=True)\n    return x * 2")
    assert evaluation.status is EvaluationStatus.PASSED
    assert evaluation.log.startswith("first")
    assert evaluation.log.endswith("last\n")
    assert "bytes dropped" in evaluation.log
    assert len(evaluation.log) < 40_000  # of checks and of timing


@pytest.mark.usefixtures("slow_clock")
def test_a_flood_without_end_times_out(judged):
    evaluation = judged("def run(x):\n    print('hangs silently')\n    while True: print('B' * 1000)", seconds=2.0)
    assert evaluation.status is EvaluationStatus.TIMEOUT
    assert len(evaluation.log) < 20_000


KILLS = {
    "and-waits": ("import os, time\ndef run(x):\n    os.kill(os.getppid(), 9)\n    time.sleep(1e6)",),
    "and-would-outlive-it": (
        "import ctypes, os, time\ndef run(x):\n    ctypes.CDLL(None).prctl(1, 0)\n"  # no signal when the parent dies
        "    os.kill(os.getppid(), 9)\n    time.sleep(1e6)\n",
    ),
    # where the attempt is not refused, the judge asks the server for a sign of life
    "and-goes-on": ("import os\ndef run(x):\n    os.kill(os.getppid(), 9)\n    return x * 2",),
}


HARMLESS = {
    "is-killed-once": (KILLED_ONCE,),  # as by a system that is short of memory
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
        pytest.param(HANGS, EvaluationStatus.TIMEOUT, 2.0, id="a hang whose stack is in the log"),
        pytest.param(SILENT_HANGS, EvaluationStatus.TIMEOUT, 2.0, id="a hang that cannot tell its stack"),
        pytest.param(KILLS, EvaluationStatus.RUNTIME_ERROR, 60.0, id="the server is killed"),
        pytest.param(HARMLESS, EvaluationStatus.PASSED, 60.0, id="attempts have no effect"),
    ],
)
def test_a_fault_costs_its_own_evaluation(judged_all, cases, status, seconds):
    assert_evaluated(judged_all, cases, status, seconds=seconds)


def test_the_stack_of_a_signal_has_no_frames_of_the_harness(judged_all):
    code = "import ctypes\ndef run(x):\n    return reads(x)\ndef reads(x):\n    return ctypes.string_at(0)\n"
    (evaluation,) = judged_all({"segfault": code}).values()
    assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
    assert "SIGSEGV" in evaluation.log
    assert "in reads" in evaluation.log
    assert not [word for word in ("fib_bench/", "fib_compile/", "<frozen", "Extension mod") if word in evaluation.log]


def test_a_stack_without_frames_of_the_solution_is_left_out():
    """As of a native kernel that hangs."""
    stack = 'Current thread 0x00007f818109 (most recent call first):\n  File "<frozen runpy>", line 88 in _run_code\n'
    assert without_harness_frames(f"printed\n{stack}") == "printed\n"


FORGED_MESSAGES = {
    '{"type": "composed", "nodes": 1, "calls": 1}': "answered Call with Composed",
    '{"type": "done"}': "answered Call with Done",
    '{"type": "warm", "call_ns": 1.0, "host_ns": 1.0}': "answered Call with Warm",
    '{"type": "failed", "kind": "capture", "detail": "but this is none"}': "answered Call with Failed(kind='capture'",
    '{"type": "built"}': "answered Call with Built",
    '{"type": "exited", "pid": 1, "wait_status": 0}': "broke the protocol",
}


def test_a_message_to_the_judge_is_an_exploit(judged_all):
    forged = {message: (forging(message), said) for message, said in FORGED_MESSAGES.items()}
    assert_evaluated(judged_all, {**MESSAGES, **forged}, EvaluationStatus.REWARD_HACK)


FORGED_FAILURES = {
    '{"type": "failed", "kind": "run", "detail": "d" * 3_000_000}': "ddd",
    '{"type": "failed", "kind": "taste", "detail": "bitter"}': "bitter",
}


def test_a_forged_failure_is_a_failure(judged_all):
    codes = {message: forging(message) for message in FORGED_FAILURES}
    for message, evaluation in judged_all(codes).items():
        assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
        assert FORGED_FAILURES[message] in evaluation.log
        assert len(evaluation.log) < 40_000


FORGED_WARM_UPS = {
    "float('nan')": "answered a request to warm up with no duration",
    "float('inf')": "answered a request to warm up with no duration",
    "-1.0": "answered a request to warm up with no duration",
    "1.0": "answered OpenPasses with Warm(",
    "'1'": "broke the protocol",
}


def test_a_forged_report_of_the_warm_up_is_refused(judged_all):
    cases = {}
    for fields, said in FORGED_WARM_UPS.items():
        message = f'dict(zip(("type", "call_ns"), ("warm", {fields})))'
        cases[fields] = forging(message, from_call=INPUT_SETS + 1), said
    assert_evaluated(judged_all, cases, EvaluationStatus.REWARD_HACK)


def test_a_report_of_a_failed_capture_without_a_capture_is_refused(judged):
    """It gets another worker, in which nothing is captured."""
    evaluation = judged(forging('{"type": "failed", "kind": "capture", "detail": "again"}', from_call=INPUT_SETS + 1))
    assert evaluation.status is EvaluationStatus.REWARD_HACK
    assert "the worker answered WarmUp with Failed(kind='capture', detail='again')" in evaluation.log


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


def test_a_result_that_does_not_fit_is_told_apart(judged_all):
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
    "torch._neg_view(x * -2)",
    "(x[:1] * 2).expand(8) * 0 + x * 2",
    "torch.mul(x, 2, out=buffer)",
    "torch.mul(x, 2, out=buffers[next(turn)])",
)


def test_unusual_but_honest_results_pass(judged_all):
    head = "import itertools, torch\nw = torch.tensor(2.0, requires_grad=True)\nturn = itertools.cycle(range(3))\n"
    code = head + "buffer, buffers = torch.empty(8), torch.empty(3, 8)\ndef run(x):\n    return {}\n"
    assert_evaluated(judged_all, {each: (code.format(each),) for each in HONEST_RESULTS}, EvaluationStatus.PASSED)


def test_writing_to_inputs_is_an_error_and_the_next_solution_gets_clean_ones(judged_all):
    codes = {
        "zeroes": ("input x", "def run(x):\n    y = x * 2\n    x.zero_()\n    return y"),
        "and pads": ("input x", OVERRUNS_INPUT.format(at=0, count="x.numel() + 4")),
        "pads": ("memory between inputs", OVERRUNS_INPUT.format(at="x.numel()", count=4)),
    }
    said = "{} was changed; a function must not write to its inputs"
    cases = {name: (code, said.format(what)) for name, (what, code) in codes.items()}
    assert_evaluated(judged_all, cases, EvaluationStatus.RUNTIME_ERROR)


RIGHT_AT_FIRST = {
    0: "input set 0 (normal)",
    1: "input set 1 (normal)",
    2: "input set 2 (generated)",
    3: "input set 3 (wide)",
    UNTIMED_CALLS: "timed calls",
}


def test_an_output_that_is_right_at_first_and_wrong_later_is_incorrect(judged_all):
    code = "calls = 0\ndef run(x):\n    global calls\n    calls += 1\n    return x * 2 if calls <= {} else x * 3\n"
    for calls, evaluation in judged_all({str(calls): code.format(calls) for calls in RIGHT_AT_FIRST}).items():
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        first, *_ = evaluation.log.splitlines()
        where = re.escape(RIGHT_AT_FIRST[int(calls)])
        assert re.fullmatch(rf"y: \d+ of 8 wrong; first \[\d\] is \S+, not \S+; {where}", first)
        assert evaluation.correctness.max_absolute_error > 0


def test_an_output_kept_from_other_inputs_is_wrong(judged):
    evaluation = judged("kept = []\ndef run(x):\n    kept.append(x * 2)\n    return kept[0]\n")
    assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
    assert re.match(r"y: 8 of 8 wrong; first \[\d\] is \S+, not \S+; input set 1 \(normal\)\n", evaluation.log)


FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int64", "int32", "int16", "int8", "bool")


@pytest.mark.parametrize(("fill", "dtypes"), [("0", FLOATS + INTEGERS), ("1", FLOATS + INTEGERS), ("90", ("int8",))])
def test_buffers_that_are_not_written_never_pass(evaluate, fill, dtypes):
    """Of any dtype, whatever constant the reference gives, the poison's own bytes of timed calls included."""
    values = ", ".join(f"torch.full(x.shape, {fill}).to(torch.{dtype})" for dtype in dtypes)
    outputs = {f"y_{dtype}": f"{dtype}[n]" for dtype in dtypes}
    definition = make_definition({"x": "float32[n]"}, outputs, f"import torch\ndef run(x):\n    return {values}\n")
    idle = make_solution(f"def run(x, {', '.join(outputs)}):\n    pass\n", definition="made", dps=True)
    (evaluation,) = evaluate(idle, definition=definition)
    assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
    for name in outputs:
        assert f"{name}: 8 of 8 wrong; " in evaluation.log


def test_the_poison_of_single_calls_does_not_pass_in_timed_calls(evaluate):
    """Another poison is used if the reference gives the one that single calls were poisoned with."""
    reference = "import torch\ndef run(x):\n    return torch.full(x.shape, -61).to(torch.int8)\n"
    definition = make_definition({"x": "float32[n]"}, {"y": "int8[n]"}, reference)
    idle = make_solution("def run(x, y):\n    pass\n", definition="made", dps=True)
    (evaluation,) = evaluate(idle, definition=definition)
    assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
    assert evaluation.log == "16 of 16 timed calls left outputs unwritten"


@pytest.mark.parametrize("value", [-61, 90])
@pytest.mark.parametrize("shape", ["int8[]", "int8[n]"])
def test_outputs_that_happen_to_be_like_poison_pass(evaluate, value, shape):
    size = "()" if shape == "int8[]" else "x.shape"
    code = f"import torch\ndef run(x):\n    return torch.full({size}, {value}, dtype=torch.int8)\n"
    definition = make_definition({"x": "float32[n]"}, {"y": shape}, code)
    (evaluation,) = evaluate(make_solution(code, definition="made"), definition=definition)
    assert evaluation.status is EvaluationStatus.PASSED, evaluation.log


def test_a_build_that_fails_is_recorded_for_every_workload(evaluate):
    workloads = [make_workload(DOUBLE, {"n": n}, f"w{n}") for n in (1, 2, 3)]
    evaluations = evaluate(make_solution("import nothing_of_this_name"), workloads=workloads)
    assert [e.status for e in evaluations] == ["COMPILE_ERROR"] * 3
    assert all("nothing_of_this_name" in e.log for e in evaluations)


def test_a_trace_holds_what_was_printed_on_its_own_workload(evaluate):
    workloads = [make_workload(DOUBLE, {"n": n}, f"w{n}") for n in (1, 2)]
    code = "def run(x):\n    print('size', len(x))\n    return x * 2"
    first, second = evaluate(make_solution(code), workloads=workloads)
    assert "size 1" in first.log
    assert set(second.log.split("\n")) == {"size 2", ""}


def test_a_solution_has_a_jit_cache_of_its_own(judged, cache_path):
    evaluation = judged("import os\ndef run(x):\n    raise ValueError(os.environ['TRITON_CACHE_DIR'])")
    assert f"ValueError: {cache_path}" in evaluation.log
    assert "/jit/" in evaluation.log
