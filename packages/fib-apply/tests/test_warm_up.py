"""Warm-up before CUDA graphs are captured: bounded in time, says what is ready, and settles what captures record."""

import time

import pytest
import torch
from apply_samples import THREE, data_set, new_solution, new_trace, scale
from fib_apply import ApplyConfig, ApplyKey, enable_apply, warm_up
from fib_apply.router import observed_warm_up

SECONDS = 300.0


def set_of(**contents):
    """A solution of each content, each for one key: M=2, M=3, ..."""
    solutions = [new_solution(name, content=content) for name, content in contents.items()]
    traces = [new_trace(name, m=m, timing={"graph_safe": True}) for m, name in enumerate(contents, start=2)]
    return data_set(*traces, solutions=solutions)


def key(m):
    return ApplyKey({"M": m})


def test_what_is_ready_and_what_is_not_with_reasons():
    found = set_of(good=THREE, broken="raise ImportError('no')", bad=THREE)
    with enable_apply(found) as runtime:
        runtime.dispatcher("scale").quarantine("bad", "it is wrong")
        readiness = warm_up(SECONDS)
    assert readiness.ready == {"scale": {key(2): "good"}}
    assert readiness.not_ready == {"scale": {key(3): "nothing built", key(4): "quarantined"}}
    assert readiness.is_finished
    assert str(readiness).startswith("warm-up: ready for 1 of 3 keys, ")


def test_it_waits_for_builds():
    found = set_of(good="import time\ntime.sleep(0.3)\n" + THREE)
    with enable_apply(found, ApplyConfig(aot_ratio=0.0)):
        assert warm_up(SECONDS).not_ready == {"scale": {key(2): "not built yet"}}
        scale(torch.ones(2, 4))
        assert warm_up(SECONDS).ready == {"scale": {key(2): "good"}}


def test_it_ends_at_the_deadline(tmp_path):
    end = tmp_path / "end"
    content = f"import pathlib, time\nwhile not pathlib.Path({str(end)!r}).exists(): time.sleep(0.01)\n"
    found = set_of(slow=content + THREE)
    with enable_apply(found, ApplyConfig(aot_ratio=0.0)) as runtime:
        scale(torch.ones(2, 4))
        began = time.monotonic()
        readiness = warm_up(0.3)
        assert time.monotonic() - began < SECONDS / 2
        assert readiness.not_ready == {"scale": {key(2): "being built"}}
        assert not readiness.is_finished
        assert "the deadline passed" in str(readiness)
        end.touch()
        assert runtime.wait_until_built(SECONDS)


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_a_deadline_in_the_past_only_looks(seconds):
    with enable_apply(set_of(good=THREE)):
        assert warm_up(seconds).ready == {"scale": {key(2): "good"}}


def test_without_a_runtime_nothing_is_ready():
    readiness = warm_up(SECONDS)
    assert (readiness.ready, readiness.problem) == ({}, "routing is off")


def test_an_error_is_a_problem_of_the_result():
    def fail():
        raise ValueError("damaged")

    assert observed_warm_up(fail).problem == "ValueError: damaged"


class TestCaptures:
    def test_nothing_that_became_ready_after_the_deadline_is_captured(self, capturing):
        found = set_of(early=THREE, late=THREE)
        with enable_apply(found, ApplyConfig(aot_ratio=0.0)) as runtime:

            def call(rows):
                dispatcher = runtime.dispatcher("scale")
                dispatcher.invalidate()  # entries of the CPU pass captures, which do not exist there
                return float(scale(torch.ones(rows, 4))[0, 0].item())

            call(2)
            assert runtime.wait_until_built(SECONDS)
            assert call(2) == 3
            assert warm_up(SECONDS).ready == {"scale": {key(2): "early"}}
            call(3)
            assert runtime.wait_until_built(SECONDS)
            assert call(3) == 3  # not captured, so it may use what became ready later
            capturing[0] = True
            assert (call(2), call(3)) == (3, 2)
            capturing[0] = False
            assert warm_up(SECONDS).ready == {"scale": {key(2): "early", key(3): "late"}}
            capturing[0] = True
            assert (call(2), call(3)) == (3, 3)

    def test_a_reload_keeps_what_was_ready(self, capturing):
        with enable_apply(set_of(early=THREE)) as runtime:
            scale(torch.ones(2, 4))
            warm_up(SECONDS)
            runtime.reload()
            scale(torch.ones(2, 4))  # the first run of the new table is not captured
            runtime.dispatcher("scale").invalidate()
            capturing[0] = True
            assert scale(torch.ones(2, 4))[0, 0] == 3
