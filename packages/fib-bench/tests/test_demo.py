import re

import pytest
from fib_bench.cli.main import main
from fib_bench.demo import NEXT_STEPS, write_demo
from fib_bench.judge.evaluate import Judge
from fib_schema import DuplicateName, TraceSet


def test_it_has_kernels_in_three_languages_and_several_workloads_each(tmp_path):
    write_demo(tmp_path)
    trace_set = TraceSet.from_path(tmp_path)
    assert {definition.op_type for definition in trace_set.definitions.values()} == {"rmsnorm", "gemm", "softmax"}
    for name, solutions in trace_set.solutions.items():
        assert {str(s.spec.language) for s in solutions} == {"python", "triton", "cpp"}
        assert len(trace_set.workloads[name]) >= 3
    assert trace_set.problems == ()


def test_writing_it_again_changes_nothing(tmp_path):
    write_demo(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write_demo(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_it_does_not_write_over_solutions_of_others(tmp_path):
    write_demo(tmp_path)
    next(tmp_path.rglob("softmax_n2048.json")).unlink()
    with pytest.raises(DuplicateName):
        write_demo(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_server")
def test_it_runs_and_explains_the_solution_that_is_wrong(tmp_path, capsys, monkeypatch):
    pytest.importorskip("triton", reason="Triton is optional")
    usual = Judge.__init__

    def hurried(self, config, **others):
        usual(self, config.with_fields(num_trials=1, confidence=1.0, timeout_seconds=300.0), **others)

    monkeypatch.setattr(Judge, "__init__", hurried)
    folder = str(tmp_path / "demo")
    assert main(["demo", folder]) == 0
    printed = capsys.readouterr()
    assert "30 traces (27 PASSED, 3 INCORRECT_NUMERICAL)" in printed.out
    assert re.search(r"INCORRECT_NUMERICAL, untrusted output: y: \d+ of \d+ wrong; ", printed.out.replace("\n", " "))
    assert NEXT_STEPS.format(dir=folder).strip() in printed.out
    assert "[30/30" in printed.err
