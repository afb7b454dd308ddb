"""Sides: whatever is timed is verified, and latencies are claims that the judge's own clock checks."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.judge.device_context import Calibration, Conditions
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.pass_timing import ClockedPass, ClockedPasses
from fib_bench.judge.prepared import InputSet
from fib_bench.judge.timed_function import Side, two_of
from fib_bench.transport.protocol import Bind, Bound, Layout, Release, Released, Repeat, Repeated, Warm, WarmUp
from fib_bench.transport.rpc import Rejected
from fib_bench.transport.slots import CallLayout, Slots
from fib_bench.worker.client import WorkerLost
from fib_schema import Definition, Evaluation, EvaluationStatus, Solution, Workload

CPU = torch.device("cpu")
LAYOUT = CallLayout(Layout((), ()), {}, {}, 256, 256)
ITEM = InputSet("normal", torch.zeros(256, dtype=torch.uint8), torch.zeros(256, dtype=torch.uint8), {})
PREPARED: Any = SimpleNamespace(bases=[ITEM], rounds=[ITEM], variants=[], varying={}, may_give=lambda _: True)
UNTIMED_CALLS = 6
"""With the settings of `evaluate`: one on each of five input sets, and one to warm up."""

Evaluate = Callable[..., list[Evaluation]]
MakeSolution = Callable[..., Solution]
MakeSide = Callable[..., Side]
MakeWorkload = Callable[..., Workload]


@pytest.fixture
def judged(
    evaluate: Evaluate, make_solution: MakeSolution, make_workload: MakeWorkload, definition: Definition
) -> Callable[..., Evaluation]:
    """Evaluates a solution on one workload of the size given."""

    def run(code: str, *, n: int = 8, dps: bool = False, **fields: object) -> Evaluation:
        workloads = [make_workload(definition, {"n": n})]
        (evaluation,) = evaluate(make_solution(textwrap.dedent(code), dps=dps), workloads=workloads, **fields)
        return evaluation

    return run


Judged = Callable[..., Evaluation]
LARGE = 1 << 14
"""Here timed calls get mixtures of two sets' elements; fewer elements are rescaled as well."""


class TestTimedCallsAreVerified:
    def test_work_that_is_skipped_when_it_is_timed_is_missed(self, judged: Judged) -> None:
        evaluation = judged(
            f"""
            calls = 0
            def run(x, y):
                global calls
                calls += 1
                if calls <= {UNTIMED_CALLS}:
                    y.copy_(x * 2)
            """,
            dps=True,
        )
        assert evaluation.status is EvaluationStatus.REWARD_HACK
        assert evaluation.log.endswith("\n32 of 32 timed calls wrote no outputs")

    @pytest.mark.parametrize("skipped", ["y[0] = 1", "y.zero_()", "y.copy_(x)"])
    def test_work_that_is_skipped_with_something_written_is_missed_too(self, judged: Judged, skipped: str) -> None:
        evaluation = judged(
            f"""
            calls = 0
            def run(x, y):
                global calls
                calls += 1
                if calls <= {UNTIMED_CALLS}:
                    y.copy_(x * 2)
                else:
                    {skipped}
            """,
            dps=True,
            iterations=20,
        )
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert evaluation.log.startswith("timed calls: output 'y': ")
        assert evaluation.correctness is not None

    def assert_kept(self, evaluation: Evaluation) -> None:
        """Where planted inputs show it there is evidence for a trick; where fresh ones do, outputs are wrong."""
        first, _, _ = evaluation.log.partition("\n")
        if evaluation.status is EvaluationStatus.REWARD_HACK:
            assert first.endswith("they were kept")
        else:
            assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert re.search(r"output 'y': \d+ of \d+ elements are wrong", evaluation.log)
        assert evaluation.correctness is not None or evaluation.status is EvaluationStatus.REWARD_HACK

    def test_outputs_kept_by_the_address_of_the_input_are_stale(self, judged: Judged) -> None:
        evaluation = judged(
            """
            kept = {}
            def run(x):
                if x.data_ptr() not in kept:
                    kept[x.data_ptr()] = x * 2
                return kept[x.data_ptr()]
            """,
            iterations=100,
        )
        self.assert_kept(evaluation)

    @pytest.mark.parametrize("n", [8, LARGE])
    def test_outputs_kept_by_the_address_and_checked_once_are_stale(self, judged: Judged, n: int) -> None:
        """The addresses of timed calls are all known from the first pass on: their values are not."""
        evaluation = judged(
            f"""
            calls, kept = 0, {{}}
            def run(x):
                global calls
                calls += 1
                if calls <= {UNTIMED_CALLS}:
                    return x * 2
                if x.data_ptr() not in kept:
                    kept[x.data_ptr()] = x * 2
                return kept[x.data_ptr()]
            """,
            n=n,
            iterations=200,
            measure_seconds=0.5,
        )
        self.assert_kept(evaluation)
        assert "timed calls: output 'y': " in evaluation.log

    def test_outputs_kept_by_a_few_of_the_values_belong_to_other_inputs(self, judged: Judged) -> None:
        evaluation = judged(
            """
            kept = {}
            def run(x):
                key = tuple(x[:3].tolist())
                if key not in kept:
                    kept[key] = x * 2
                return kept[key]
            """,
            n=LARGE,
            iterations=200,
            measure_seconds=0.5,
            distributions=("normal",),  # the others have some of the same values
        )
        self.assert_kept(evaluation)
        assert "timed calls: output 'y': " in evaluation.log

    @pytest.mark.parametrize("n", [8, LARGE])
    def test_work_for_known_inputs_only_is_missed(self, judged: Judged, n: int) -> None:
        evaluation = judged(
            f"""
            calls, known = 0, set()
            def run(x, y):
                global calls
                calls += 1
                key = x.numpy().tobytes()
                if calls <= {UNTIMED_CALLS}:
                    known.add(key)
                if key in known:
                    y.copy_(x * 2)
                else:
                    y.copy_(x)
            """,
            n=n,
            dps=True,
        )
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert evaluation.log.startswith("timed calls: output 'y': ")

    def test_writing_to_inputs_only_when_timed_is_an_error(self, judged: Judged) -> None:
        evaluation = judged(
            f"""
            calls = 0
            def run(x):
                global calls
                calls += 1
                y = x * 2
                if calls > {UNTIMED_CALLS}:
                    x[-1] += 1
                return y
            """,
            iterations=50,
        )
        assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
        assert "a function must not write to its inputs" in evaluation.log

    def test_work_that_is_left_to_a_thread_is_missed(self, judged: Judged) -> None:
        evaluation = judged(
            """
            import threading
            def late(x, y):
                import time
                time.sleep(1e6)  # or it might be done when the judge looks again
                y.copy_(x * 2)
            def run(x, y):
                threading.Thread(target=late, args=(x, y), daemon=True).start()
            """,
            dps=True,
        )
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL

    def test_planted_inputs_cannot_be_told_by_coming_again(self, judged: Judged) -> None:
        """It works honestly for a while, and then only for inputs that it has met before."""
        evaluation = judged(
            """
            calls, met = 0, set()
            def run(x, y):
                global calls
                calls += 1
                key = tuple(x[:3].tolist())
                if calls < 300 or key in met:
                    y.copy_(x * 2)
                else:
                    y.copy_(x)
                met.add(key)
            """,
            dps=True,
            iterations=300,
            measure_seconds=0.5,
        )
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert evaluation.log.startswith("timed calls: output 'y': ")

    def test_outputs_that_are_kept_by_all_values_make_no_slow_function_fast(self, judged: Judged) -> None:
        """Of a slow function many calls are verified, with few known outputs."""
        evaluation = judged(
            """
            import time
            kept = {}
            def run(x):
                key = x.numpy().tobytes()
                if key not in kept:
                    time.sleep(0.003)
                    kept[key] = x * 2
                return kept[key]
            """,
            iterations=200,
            measure_seconds=0.5,
        )
        if evaluation.status is EvaluationStatus.PASSED:
            assert evaluation.performance is not None
            assert evaluation.performance.latency_ms >= 3

    @pytest.mark.parametrize("n", [8, LARGE])
    def test_what_varies_is_the_same_for_nobody(self, judged: Judged, n: int) -> None:
        """Of all calls that are timed, no two have the same inputs."""
        evaluation = judged(
            """
            def run(x):
                print(hash(x.numpy().tobytes()), end=" ")
                return x * 2
            """,
            n=n,
            iterations=100,
            measure_seconds=60.0,
            confidence=1.0,  # so that the count decides, however busy the machine is
        )
        assert evaluation.status is EvaluationStatus.PASSED
        timed = evaluation.log.split()[UNTIMED_CALLS : UNTIMED_CALLS + 100]  # before the judge's own clock runs
        assert len(set(timed)) == len(timed) == 100


REAL_MS = 3
SLOW = f"""
import time
def run(x):
    time.sleep({REAL_MS / 1e3})
    return x * 2
"""
"""Takes no less in any case; what it does meanwhile does not matter."""


BLIND = """
from fib_bench.worker.tamper_check import Watch
Watch.findings = lambda *_: []
"""
"""What notices in a worker that something was replaced can be replaced as well."""


class TestClaims:
    """By the judge's clock, calls take no longer than the worker says, or nothing that it says counts."""

    SLOWED_CLOCK = """
import time
true_ns, true = time.perf_counter_ns, time.perf_counter
time.perf_counter_ns = time.monotonic_ns = time.time_ns = lambda: true_ns() // {factor}
time.perf_counter = time.monotonic = lambda: true() / {factor}
"""
    SLOWED_STOPWATCH = """
import time
from fib_bench.timing.host import HostStopwatch
true_ns = time.perf_counter_ns
HostStopwatch.__init__.__defaults__ = (lambda: true_ns() // 100,)
"""
    REPLACED_SAMPLES = """
from fib_bench.timing.host import HostStopwatch
honest = HostStopwatch.sample
HostStopwatch.sample = lambda self, chains: [100.0 for _ in honest(self, chains)]
"""
    MADE_UP_SAMPLES = """
from fib_bench.timing.host import HostStopwatch
HostStopwatch.sample = lambda self, chains: [100.0] * chains
"""
    FALSE_CHAIN = """
from fib_bench.timing.calls import Warmth
from fib_bench.timing.host import HostStopwatch
honest = HostStopwatch.warm_up
def warm_up(self, *args):
    honest(self, *args)
    self.use_chain(1)
    return Warmth("host", 32, 10.0, 10.0)
HostStopwatch.warm_up = warm_up
"""
    TAKES_OVER = """
from fib_bench.transport.protocol import Sampled
from fib_bench.worker.session import Session
honest = Session.answer
def answer(self, request):
    reply = honest(self, request)
    return Sampled((1e5,) * len(reply.samples_ns)) if isinstance(reply, Sampled) else reply
Session.answer = answer
"""

    def assert_caught(self, evaluation: Evaluation) -> None:
        assert evaluation.status is EvaluationStatus.REWARD_HACK
        assert "the worker says that a call takes" in evaluation.log
        assert "by the judge's clock it takes" in evaluation.log

    def test_an_honest_worker_is_believed(self, judged: Judged) -> None:
        evaluation = judged(SLOW)
        assert evaluation.status is EvaluationStatus.PASSED
        assert evaluation.performance is not None
        assert evaluation.performance.latency_ms >= REAL_MS
        assert evaluation.performance.extra is not None
        assert evaluation.performance.extra["timing"]["outside_us"] >= REAL_MS * 1e3

    @pytest.mark.parametrize("factor", [100, 2])
    def test_a_clock_that_was_slowed_down_gives_no_false_latency(self, judged: Judged, factor: int) -> None:
        """The stopwatch has the true one since before the solution was there."""
        evaluation = judged(BLIND + self.SLOWED_CLOCK.format(factor=factor) + SLOW)
        if evaluation.status is not EvaluationStatus.PASSED:
            self.assert_caught(evaluation)
            return
        assert evaluation.performance is not None
        assert evaluation.performance.latency_ms >= REAL_MS

    @pytest.mark.parametrize(
        "lie",
        [
            pytest.param(SLOWED_STOPWATCH, id="slowed-stopwatch"),
            pytest.param(REPLACED_SAMPLES, id="replaced-samples"),
            pytest.param(TAKES_OVER, id="answers-by-itself"),
        ],
    )
    def test_a_latency_that_is_not_true_is_caught(self, judged: Judged, lie: str) -> None:
        self.assert_caught(judged(BLIND + lie + SLOW))

    @pytest.mark.parametrize(
        "samples",
        [
            "[-1.0] * n",
            "[0.0] * n",
            "[float('nan')] * n",
            "[float('inf')] * n",
            "[]",
            "[1.0] * (n + 1)",
            "[1.0] * (n - 1)",
        ],
    )
    def test_samples_that_are_no_durations_are_refused(self, judged: Judged, samples: str) -> None:
        replaced = f"""
from fib_bench.timing.host import HostStopwatch
honest = HostStopwatch.sample
def sample(self, n):
    honest(self, n)
    return {samples}
HostStopwatch.sample = sample
"""
        evaluation = judged(BLIND + replaced + "def run(x):\n    return x * 2\n")
        assert evaluation.status is EvaluationStatus.REWARD_HACK
        assert re.match(r"the worker answered a request to time \d+ samples with Sampled\(", evaluation.log)

    def test_samples_for_calls_that_were_not_made_are_caught(self, judged: Judged) -> None:
        evaluation = judged(BLIND + self.MADE_UP_SAMPLES + SLOW)
        assert evaluation.status is EvaluationStatus.REWARD_HACK
        assert evaluation.log.endswith("\n32 of 32 timed calls wrote no outputs")

    def test_a_chain_that_is_not_true_is_no_way_to_pass(self, judged: Judged) -> None:
        assert judged(BLIND + self.FALSE_CHAIN + SLOW).status is not EvaluationStatus.PASSED

    @pytest.mark.parametrize(
        ("lie", "replaced"),
        [
            pytest.param(SLOWED_CLOCK.format(factor=2), "time.perf_counter", id="slowed-clock"),
            pytest.param(REPLACED_SAMPLES, "fib_bench.timing.host.HostStopwatch.sample", id="replaced-samples"),
            pytest.param(TAKES_OVER, "fib_bench.worker.session.Session.answer", id="answers-by-itself"),
        ],
    )
    def test_what_was_replaced_is_noticed_unless_that_is_prevented(
        self, judged: Judged, lie: str, replaced: str
    ) -> None:
        evaluation = judged(lie + SLOW)
        assert evaluation.status is EvaluationStatus.REWARD_HACK
        assert f"replaced {replaced}" in evaluation.log


@attrs.define
class FakeClock:
    """What stands for the module `time`."""

    now_ns: float = 0.0

    def perf_counter_ns(self) -> int:
        return int(self.now_ns)

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        self.now_ns += seconds * 1e9


class FakeWorker:
    """Answers whatever it is asked; repeated calls take as long as it is told."""

    def __init__(self, clock: FakeClock, takes_ns: Callable[[Repeat], float]) -> None:
        self.clock = clock
        self.takes_ns = takes_ns
        self.repeats: list[Repeat] = []
        self.warm = Warm("graph", 1, 1.0, 1.0)

    def request(self, message: object, descriptors: tuple[int, ...] = (), *, seconds: float) -> object:
        match message:
            case Repeat():
                self.clock.now_ns += self.takes_ns(message)
                self.repeats.append(message)
                return Repeated()
            case WarmUp():
                return self.warm
            case Bind():
                return Bound()
            case Release():
                return Released()
        raise AssertionError(message)


@attrs.define
class FakeWatch:
    """A clock watch that says what it is told."""

    throttled: list[bool]

    def was_throttled(self, seconds: float) -> bool:
        return self.throttled.pop(0) if len(self.throttled) > 1 else self.throttled[0]

    def clock_mhz(self, seconds: float) -> int:
        return 1500

    def stop(self) -> None: ...


class TestThrottling:
    def timing(
        self,
        make_judge: Callable[..., Judge],
        make_workload: MakeWorkload,
        make_solution: MakeSolution,
        definition: Definition,
        watch: FakeWatch,
    ) -> dict[str, object]:
        judge = make_judge(profile_baseline=False)
        prepared = judge.prepare(definition, make_workload(definition, {"n": 8}))
        judge._conditions = attrs.evolve(judge.conditions, watch=watch)
        solution = make_solution("def run(x):\n    return x * 2\n")
        ((_, evaluation),) = judge.evaluate(definition, solution, [prepared])
        assert evaluation.status is EvaluationStatus.PASSED, evaluation.log
        assert evaluation.performance is not None
        assert evaluation.performance.extra is not None
        timing: dict[str, object] = evaluation.performance.extra["timing"]
        return timing

    def test_throttled_passes_are_discarded_and_told(
        self,
        make_judge: Callable[..., Judge],
        make_workload: MakeWorkload,
        make_solution: MakeSolution,
        definition: Definition,
    ) -> None:
        watch = FakeWatch([True, True, False])
        timing = self.timing(make_judge, make_workload, make_solution, definition, watch)
        assert timing["throttled_passes"] == 2
        assert timing["sm_clock_mhz"] == 1500

    def test_a_device_that_is_always_throttled_is_as_slow_as_it_is(
        self,
        make_judge: Callable[..., Judge],
        make_workload: MakeWorkload,
        make_solution: MakeSolution,
        definition: Definition,
    ) -> None:
        timing = self.timing(make_judge, make_workload, make_solution, definition, FakeWatch([True]))
        assert timing["throttled_passes"] == 20
        assert isinstance(timing["samples"], int)
        assert timing["samples"] >= 3


class TestAudit:
    """The bounds of the judge's clock, on a device whose time passes only when a request says so."""

    FLUSH_NS = 30_000.0
    REQUEST_NS = 400_000.0
    SLOTS = 32

    @pytest.fixture
    def make_side(self, monkeypatch: pytest.MonkeyPatch, conditions: Conditions) -> MakeSide:
        """Make a side whose worker claims one thing while another is true."""
        clock = FakeClock()
        monkeypatch.setattr("fib_bench.judge.timed_function.time", clock)
        monkeypatch.setattr(Side, "_synchronise", lambda _: None)
        monkeypatch.setattr("fib_bench.judge.timed_function.Slots", lambda layout, count, *_: Slots(layout, count, CPU))
        calibration = Calibration({method: {1: 0.0} for method in ("graph", "queued")}, self.FLUSH_NS)
        on_device = attrs.evolve(conditions, device=torch.device("cuda", 0), calibration=calibration)

        def make(claim_ns: float, true_ns: float, method: str = "graph", host_ns: float = 0.0) -> Side:
            side = Side(FakeWorker(clock, self.request_ns(true_ns)), LAYOUT, self.SLOTS, on_device)
            side._warm = Warm(method, 1, claim_ns, host_ns)
            side._samples = [claim_ns] * 5
            return side

        return make

    def request_ns(self, true_ns: float) -> Callable[[Repeat], float]:
        return lambda request: self.REQUEST_NS + request.passes * self.SLOTS * (true_ns + self.FLUSH_NS)

    @pytest.mark.parametrize(
        ("claim_ns", "true_ns", "method", "host_ns"),
        [
            (10_000, 10_000, "graph", 0),
            (10_000, 13_900, "graph", 0),
            (1_000, 2_700, "graph", 0),
            (1_000_000, 1_250_000, "graph", 0),
            (10_000, 120_000, "queued", 100_000),  # without graphs, the host is not hidden from the judge
            (10_000, 120_000, "sync", 100_000),
        ],
    )
    def test_what_is_consistent_is_believed(
        self, make_side: MakeSide, claim_ns: float, true_ns: float, method: str, host_ns: float
    ) -> None:
        side = make_side(claim_ns, true_ns, method, host_ns)
        assert side.audit(PREPARED) == pytest.approx(true_ns)

    @pytest.mark.parametrize(
        ("claim_ns", "true_ns", "method", "host_ns"),
        [
            (10_000, 14_100, "graph", 0),
            (1_000, 3_000, "graph", 0),
            (1_000_000, 1_260_000, "graph", 0),
            (10_000, 20_000, "graph", 100_000),
            (10_000, 130_000, "queued", 100_000),
            (10_000, 20_000, "queued", 5_000),
        ],
    )
    def test_what_is_not_is_an_error(
        self, make_side: MakeSide, claim_ns: float, true_ns: float, method: str, host_ns: float
    ) -> None:
        side = make_side(claim_ns, true_ns, method, host_ns)
        with pytest.raises(Rejected) as caught:
            side.audit(PREPARED)
        assert caught.value.status is EvaluationStatus.REWARD_HACK
        assert f"a call takes {claim_ns / 1e3:.2f} us" in caught.value.message
        assert f"by the judge's clock it takes {true_ns / 1e3:.2f} us" in caught.value.message

    def test_a_disturbance_is_no_lie(self, make_side: MakeSide) -> None:
        side = make_side(10_000, 10_000)
        worker, honest = side.worker, self.request_ns(10_000)
        worker.takes_ns = lambda request: honest(request) * (3 if len(worker.repeats) < 4 else 1)
        assert side.audit(PREPARED) == pytest.approx(10_000)

    def test_graphs_that_were_ruled_out_are_no_way_of_timing(self, make_side: MakeSide) -> None:
        """They would be given up a second time."""
        side = make_side(1_000, 1_000)
        side.warm_up(PREPARED, ResolvedEvalConfig(), may_capture=True)
        assert side.method == "graph"
        with pytest.raises(WorkerLost, match=r"answered a request to warm up with Warm\(method='graph'"):
            side.warm_up(PREPARED, ResolvedEvalConfig(), may_capture=False)

    @pytest.mark.parametrize("answer", [Warm("graph", 1, math.nan, 1.0), Warm("graph", 4, 1.0, 1.0)])
    def test_what_is_said_before_calls_are_timed_alone_is_looked_at_as_well(
        self, make_side: MakeSide, answer: Warm
    ) -> None:
        side = make_side(1_000, 1_000)
        side._conditions = attrs.evolve(side._conditions, calibration=Calibration({"graph": {1: 0.0, 4: 0.0}}, 0.0))
        side.worker.warm = answer
        with pytest.raises(WorkerLost, match=r"answered a request to warm up with Warm\(method='graph'") as caught:
            side.one_by_one(PREPARED, 1)
        assert caught.value.is_forgery

    def test_calls_that_were_not_made_for_the_judges_clock_are_missed(self, make_side: MakeSide) -> None:
        side = make_side(1_000, 1_000)
        side.worker.takes_ns = lambda _: self.REQUEST_NS
        with pytest.raises(Rejected):
            side.audit(PREPARED)

    def test_a_host_that_is_said_to_be_slow_covers_no_lie(self, make_side: MakeSide) -> None:
        side = make_side(1_000, 500_000, "queued", 1e9)
        side._fastest_call_ns = 20_000
        with pytest.raises(Rejected):
            side.audit(PREPARED)

    def test_long_calls_are_judged_by_the_fastest_of_the_passes_that_were_timed(self, make_side: MakeSide) -> None:
        side = make_side(6e6, 6e6)
        side._clocked += [clocked(outside_ns=taken) for taken in (50e6, 6.2e6, 6.3e6, 6.4e6, 9e6)]
        assert side.audit(PREPARED) == 6.4e6
        assert side.worker.repeats == []

    def test_a_pass_is_held_against_what_is_said_of_it_and_of_most(self, make_side: MakeSide) -> None:
        """A twentieth of the truth is more in a busy time; the truth about a few covers no lie about most."""
        side = make_side(6e6, 6e6)
        side._clocked += [clocked(claim_ns=0.3e6, work_ns=6e6)] * 5
        assert side.excess_ns == 6e6 - 3 * 0.3e6
        side = make_side(0.3e6, 6e6)
        side._clocked += [clocked(claim_ns=6e6, work_ns=6e6)] * 5
        assert side.excess_ns == 6e6 - 3 * 0.3e6


def clocked(
    *, claim_ns: float = 6e6, outside_ns: float = 6e6, work_ns: float = math.nan, is_verified: bool = True
) -> ClockedPass:
    return ClockedPass(claim_ns=claim_ns, outside_ns=outside_ns, work_ns=work_ns, is_verified=is_verified)


def test_a_pass_of_which_nothing_was_compared_says_little() -> None:
    """Nobody knows whether the work was done in it."""

    def least(*passes: ClockedPass) -> float:
        return ClockedPasses(passes).least_disturbed(lambda seen: seen.work_ns).work_ns

    done, undone = clocked(work_ns=8e6), clocked(work_ns=1e5, is_verified=False)
    assert least(undone, undone, done, undone) == 8e6
    lucky = attrs.evolve(undone, is_verified=True)
    assert least(done, done, done, lucky, lucky) == 8e6
    assert least(undone, undone, attrs.evolve(done, is_verified=False)) == 1e5


class TestCalibration:
    CALIBRATION = Calibration({"graph": {1: 10.0, 4: 20.0}, "queued": {1: 30.0}}, 5.0)

    @pytest.mark.parametrize(
        ("method", "chain", "cost"), [("graph", 4, 20.0), ("queued", 1, 30.0), ("sync", 1, 30.0), ("graph", 1, 10.0)]
    )
    def test_tells_what_a_method_costs(self, method: str, chain: int, cost: float) -> None:
        assert self.CALIBRATION.of(method, chain) == cost

    @pytest.mark.parametrize(("method", "chain"), [("graph", 2), ("sync", 4), ("host", 1), ("", 0)])
    def test_knows_no_method_that_was_not_measured(self, method: str, chain: int) -> None:
        with pytest.raises(WorkerLost, match=f"it times by {method!r} in chains of {chain}, which does not exist"):
            self.CALIBRATION.of(method, chain)


def test_two_sets_are_different_ones_if_there_are_two() -> None:
    first, second, third = (InputSet("normal", torch.zeros(0), torch.zeros(0), {}) for _ in range(3))
    assert two_of([first]) == (first, first)
    pairs = {(id(a), id(b)) for a, b in (two_of([first, second, third]) for _ in range(200))}
    assert len(pairs) == 6
