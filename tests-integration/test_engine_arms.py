"""The harness of engines: its rounds, its statistics and its claims, with a process in place of the engine."""

import argparse
import importlib.util
import inspect
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fib_apply.config import read_config
from fib_apply.hook import callbacks_for
from fib_integrations.adapters.gqa_paged import GQA_PAGED_DECODE
from fib_integrations.baselines import baseline_solutions
from fib_schema import Correctness, Environment, Evaluation, EvaluationStatus, Performance, Trace, TraceSet
from fib_tracer import enable_tracing
from public_data_set import needs_data_set, public_set, small_workload

sys.path.append(str(Path(__file__).parent / "engines"))

import arm_data_sets
import arm_report
import arm_turns
import follow_tutorial
import vllm_arms

FAKE = """
import json, os, pathlib, sys
arguments = dict(zip(sys.argv[3::2], sys.argv[4::2]))
state, answers = pathlib.Path(sys.argv[2]), int(arguments["--answers"])
arm, mode, turns = arguments["--arm"], arguments["--mode"], []

def note(event):
    with (state / "events").open("a") as file:
        file.write(f"{event} {mode} {arm}\\n")

note("import")
word = ""
while not word.startswith("end"):
    os.write(answers, b".")
    word = sys.stdin.readline().strip()
    if not word:
        sys.exit(4)
    note(word)
    if word == "turn":
        turns.append(6000 - 10 * len(turns))
    if (state / "fails").exists():
        print("it fails, as it was told", flush=True)
        sys.exit(3)
slow = {"routed": 0.99, "winners": 1.1, "slow": 0.8}.get(arm, 1.0)
record = {
    "machine": "H200 a", "shape": {"layers": int(arguments["--layers"])}, "start_seconds": 10.0,
    "tokens_per_second": [slow * speed for speed in turns], "first_token_ms": [5.0] * len(turns),
    "hits": {"decode": 7} if slow != 1 else {}, "misses": {"decode: being built": 1} if slow != 1 else {},
    "at_start": {"hits": {"decode": 2} if slow != 1 else {}, "misses": {}, "unsupported": {}},
    "captured": {"hits": {"gqa_paged_decode_h32": 2} if slow != 1 else {}, "misses": {}, "unsupported": {}},
    "switch_on_seconds": 0.5,
    "unsupported": {}, "device_ms": {"gemm": 30.0, "decode": 5 / slow},
    "tokens": "same",
}
pathlib.Path(arguments["--record"]).write_text(json.dumps(record))
os.write(answers, b".")
"""


@pytest.fixture
def options():
    return argparse.Namespace(
        rounds=5, arms=["plain", "off", "routed"], modes=["eager"], layers=2, graph_layers=16, turns=3, seconds=500.0,
        longest=60.0,
    )  # fmt: skip


@pytest.fixture
def engine(tmp_path):
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    return [sys.executable, str(script)]


def events(out):
    return (out / "events").read_text().splitlines()


def ticking(step):
    """A clock that advances with each reading."""
    readings = iter(step * n for n in range(10_000))
    return lambda: next(readings)


class TestRounds:
    def test_arms_rotate_from_round_to_round(self):
        found = list(arm_turns.planned(2, ["plain", "off", "routed"], ["eager", "graphs"]))
        assert [[arm for _, _, arm in group] for group in found] == [
            ["plain", "off", "routed"],
            ["plain", "off", "routed"],
            ["off", "routed", "plain"],
            ["off", "routed", "plain"],
        ]
        assert len({key for group in found for key in group}) == 12

    def test_a_whole_measurement(self, options, engine, tmp_path):
        assert arm_turns.measure(tmp_path, options, engine, ticking(1.0)) == 0
        assert len(list((tmp_path / "rounds").iterdir())) == 15
        before = events(tmp_path)
        assert before.count("turn eager off") == 15
        assert arm_turns.measure(tmp_path, options, engine, ticking(1.0)) == 0
        assert events(tmp_path) == before  # nothing is measured twice

    def test_processes_take_turns_while_no_other_one_does_anything(self, options, engine, tmp_path):
        options.rounds, options.arms = 2, ["plain", "off"]
        assert arm_turns.measure(tmp_path, options, engine, ticking(1.0)) == 0
        found = [event.replace(" eager", "") for event in events(tmp_path)]
        assert found[2:4] == ["start plain", "start off"]  # alone in the first round
        assert sorted(found[4:6]) == ["import off", "import plain"]  # of the second round, before the first turn
        timed = ["turn plain", "turn off", "turn off", "turn plain", "turn plain", "turn off"]
        assert found[6:14] == [*timed, "end profiled plain", "end profiled off"]
        second = found[14:]
        assert sorted(second[:2]) == ["start off", "start plain"]
        assert second[2:4] == ["turn off", "turn plain"]
        assert second[-2:] == ["end off", "end plain"]

    def test_a_process_that_fails_leaves_no_record_of_its_round(self, options, engine, tmp_path, capsys):
        (tmp_path / "fails").touch()
        assert arm_turns.measure(tmp_path, options, engine, ticking(1.0)) == 1
        printed = capsys.readouterr().err
        assert "000-eager-plain: the engine process ended with code 3; the end of" in printed
        assert printed.rstrip().endswith("it fails, as it was told")
        assert not list((tmp_path / "rounds").glob("*.json"))

    def test_a_process_that_hangs_is_killed_when_the_time_ends(self, options, tmp_path, capsys):
        options.seconds, options.longest = 1.0, 0.1
        hangs = [sys.executable, "-c", "import time; time.sleep(60)"]
        assert arm_turns.measure(tmp_path, options, hangs) == arm_turns.AGAIN
        assert "stopped when the time was over: call this again" in capsys.readouterr().err


class TestStatistics:
    def test_an_interval_is_that_of_student(self):
        values = [9.0, 10.0, 11.0, 10.5, 9.5]
        half = 2.776 * statistics.stdev(values) / 5**0.5
        assert arm_report.interval(values) == pytest.approx((10.0, 10.0 - half, 10.0 + half))
        assert arm_report.interval([3.0]) == (3.0, -float("inf"), float("inf"))
        assert arm_report.interval([3.0] * 100) == (3.0, 3.0, 3.0)

    def test_the_interval_is_that_between_rounds(self):
        mean, low, high = arm_report.ratio([([2.0] * 9, [1.0] * 9), ([1.0] * 9, [2.0] * 9), ([1.0] * 9, [1.0] * 9)])
        assert mean == pytest.approx(1.0)
        assert low < 0.5
        assert low * high == pytest.approx(1.0)


class TestReport:
    @pytest.fixture
    def out(self, options, engine, tmp_path):
        assert arm_turns.measure(tmp_path, options, engine, ticking(1.0)) == 0
        return tmp_path

    def change(self, out, pattern, **fields):
        for path in (out / "rounds").glob(pattern):
            path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    def test_it_has_a_row_for_each_arm(self, options, out, capsys):
        assert arm_report.report(out, options) == 0
        printed = capsys.readouterr().out
        rows = [line for line in printed.splitlines() if line.startswith("| eager | ")]
        assert [row.split(" | ")[1] for row in rows] == ["plain", "off", "routed"]
        assert rows[2].split(" | ")[4] == "0.9900 (0.9900 to 0.9900)"
        assert 'H200 a; eager: {"layers": 2}; 3 turns' in printed
        assert "eager, routed, hits: 35\n- decode: 35" in printed
        assert "eager, routed, misses: 5\n- decode: being built: 5" in printed
        assert "eager, routed, at the start, hits: 10\n- decode: 10" in printed
        assert "| `decode` | 5.00 | 5.00 | 5.05 |\n| all | 35.00 | 35.00 | 35.05 |" in printed

    @pytest.mark.parametrize(
        ("pattern", "fields", "problem"),
        [
            ("002-eager-routed.json", {"hits": {}}, "eager, routed: a run has no hits"),
            ("002-eager-routed.json", {"tokens": "others"}, "eager, routed: other tokens than plain"),
            ("002-*.json", {"machine": "H100 b"}, "the rounds are of 2 machines: H100 b, H200 a"),
            ("002-*.json", {"shape": {"layers": 3}}, "the rounds have several models or versions"),
        ],
        ids=["hits", "tokens", "machines", "shapes"],
    )
    def test_a_claim_that_does_not_hold_is_a_failure(self, options, out, pattern, fields, problem, capsys):
        self.change(out, pattern, **fields)
        assert arm_report.report(out, options) == 1
        assert f"problem: {problem}" in capsys.readouterr().err

    @pytest.mark.parametrize("hits", [{}, {"rmsnorm": 5}, {"gqa_paged_decode": 0}], ids=["none", "norms", "no decodes"])
    def test_graphs_without_captured_hits_are_a_failure(self, options, engine, tmp_path, hits, capsys):
        options.modes, options.arms = ["graphs"], ["plain", "winners"]
        assert arm_turns.measure(tmp_path, options, engine, ticking(1.0)) == 0
        assert arm_report.report(tmp_path, options) == 0
        self.change(tmp_path, "003-graphs-winners.json", captured={"hits": hits, "misses": {}, "unsupported": {}})
        assert arm_report.report(tmp_path, options) == 1
        assert "problem: graphs, winners: no captured decode of a run is a hit" in capsys.readouterr().err


@needs_data_set
def test_every_size_is_traced(tmp_path):
    """One request and 32 have the same average length."""
    name = "gqa_paged_decode_h32_kv8_d128_ps64"
    definition = public_set().get_definition(name)
    data_set = TraceSet.from_path(tmp_path)
    data_set.add_definitions([definition])
    cache = torch.zeros(8, 64, 8, 128, dtype=torch.bfloat16)
    with enable_tracing(tmp_path, vllm_arms.every_size()):
        for size in (1, 4, 1):
            offsets = torch.arange(size + 1, dtype=torch.int32)
            integers = offsets, torch.zeros(size, dtype=torch.int32), torch.ones(size, dtype=torch.int32)
            for callback in callbacks_for(name, tuple(definition.inputs)):
                callback(torch.zeros(size, 32, 128, dtype=torch.bfloat16), cache, cache, *integers, 0.1)
    found = TraceSet.from_path(tmp_path).workloads[name]
    assert sorted(trace.workload.axes["batch_size"] for trace in found) == [1, 4]


class TestTutorial:
    """The section that `follow_tutorial.py` follows on a GPU."""

    def test_its_files_are_complete(self, tmp_path):
        files = follow_tutorial.files_of_section(follow_tutorial._PAGE.read_text("utf-8"))
        assert set(files) == {"serve.py", "apply.yaml", "winner.sh"}
        compile(files["serve.py"], "serve.py", "exec")
        (tmp_path / "apply.yaml").write_text(files["apply.yaml"])
        assert read_config(tmp_path / "apply.yaml").stats is True
        assert len(files["winner.sh"].splitlines()) <= 10
        assert subprocess.run(["bash", "-n"], input=files["winner.sh"], text=True, check=False).returncode == 0


@needs_data_set
class TestDataSets:
    TRACED = ("rmsnorm_h4096", "fused_add_rmsnorm_h4096", "gqa_paged_decode_h32_kv8_d128_ps64")

    @pytest.fixture
    def out(self, tmp_path):
        (tmp_path / "dataset").mkdir()
        data_set = TraceSet.from_path(tmp_path / "dataset")
        definitions = [public_set().get_definition(name) for name in self.TRACED]
        data_set.add_definitions(definitions)
        data_set.add_traces([Trace(d.name, small_workload(d)) for d in definitions])
        return tmp_path

    def test_each_arm_has_its_own_solutions(self, out):
        arm_data_sets.write_solutions(out)
        arm_data_sets.write_solutions(out)  # a script that goes on adds nothing
        source = TraceSet.from_path(out / "dataset")
        evaluation = Evaluation(
            EvaluationStatus.PASSED, Environment("H200"), "2026-01-01T00:00:00", "", Correctness(), Performance(1, 2, 2)
        )
        for name, solutions in source.solutions.items():
            workload = source.workloads[name][0].workload
            source.add_traces([Trace(name, workload, each.name, evaluation) for each in solutions])
        arm_data_sets.write_arms(out)
        found = {arm: TraceSet.from_path(out / "arms" / arm) for arm in ("routed", "winners", "slow")}
        names = {arm: set(data_set.solution_names()) for arm, data_set in found.items()}
        traced = {arm: {t.solution for d in s.definitions for t in s.traces[d]} for arm, s in found.items()}
        assert names == traced
        norm, decode = "rmsnorm_h4096", "gqa_paged_decode_h32_kv8_d128_ps64"
        engine = {f"engine_{norm}", f"flashinfer_{decode}_tensor_cores"}
        assert names["routed"] == engine
        assert names["slow"] == {f"slow_{norm}", f"slow_{decode}"}
        assert names["winners"] > {*engine, f"own_triton_{norm}", f"own_triton_{decode}"}
        assert not names["winners"] & {f"flashinfer_{norm}", f"flashinfer_{decode}"}

    def test_the_engine_decodes_with_tensor_cores(self):
        """Its kernel is the adapter's baseline with that setting: only such a one is known to be what is replaced."""
        definition = public_set().get_definition("gqa_paged_decode_h32_kv8_d128_ps64")
        engine = arm_data_sets.engine_kernel(definition)
        assert "use_tensor_cores=True" in engine.sources[0].content
        assert engine in baseline_solutions(GQA_PAGED_DECODE, definition)

    def test_a_slow_kernel_is_the_engines_kernel_twice(self):
        definition = public_set().get_definition("gqa_paged_decode_h32_kv8_d128_ps64")
        slow = next(s for s in arm_data_sets.solutions_for(definition) if s.name.startswith("slow_"))
        code = "calls = []\ndef run(x, *, plan):\n    calls.append((x, plan))\n    return len(calls)\n"
        space = {}
        exec(code + arm_data_sets._TWICE, space)
        assert slow.sources[0].content.endswith(arm_data_sets._TWICE)
        assert space["run"](1, plan=2) == 2
        assert space["calls"] == [(1, 2)] * 2
        assert list(inspect.signature(space["run"]).parameters) == ["x", "plan"]


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM and a GPU; engines/on_gpu.sh runs it")
def test_a_routed_engine_generates_the_same_tokens(tmp_path):
    assert (
        vllm_arms.main(["measure", str(tmp_path), "--arms", "plain", "off", "--modes", "eager", "--rounds", "1"]) == 0
    )
    plain, off = (json.loads((tmp_path / "rounds" / f"000-eager-{arm}.json").read_text()) for arm in ("plain", "off"))
    assert plain["tokens"] == off["tokens"]
