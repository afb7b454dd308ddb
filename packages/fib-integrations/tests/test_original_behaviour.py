"""Patched functions behave as the originals do: their errors, subclasses, settings that a plan compiled, and Dynamo."""

import subprocess
import sys
import textwrap
from pathlib import Path

import attrs
import pytest
import torch
from fib_apply import ApplyConfig, enable_apply, set_apply_hook
from fib_integrations import install_flashinfer_integrations, status
from fib_integrations.startup import load_plugin
from fib_schema import SourceFile, TraceSet
from flashinfer_stand_ins import behaviour
from flashinfer_stand_ins.examples import (
    BY_DEFINITION,
    EXAMPLES,
    KV_INDICES,
    KV_INDPTR,
    caches,
    data_set,
    decode_wrapper,
    last_page_len,
    passed,
    random,
    reference_solution,
    workspace,
)
from flashinfer_stand_ins.marks import one_version

DECODE = BY_DEFINITION["gqa_paged_decode_h4_kv2_d8_ps4"].definition
RMSNORM = EXAMPLES[0]
SETUP = """
import flashinfer, torch
depth = []
def setup(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
    assert not depth, "a setup inside of a setup"
    depth.append(1)
    wrapper = flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper(torch.empty(16, dtype=torch.uint8))
    dtype = {"q_data_type": torch.bfloat16, "sm_scale": float(sm_scale)}
    wrapper.plan(kv_indptr, kv_indices, kv_last_page_len, 4, 2, 8, 4, **dtype)
    wrapper.run(q, (k_cache, v_cache))
    depth.pop()
    return {"wrapper": wrapper}
def run(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale, *, wrapper):
    return wrapper.run(q, (k_cache, v_cache), return_lse=True)
"""


def recorded(flashinfer, code=None):
    """A data set with a solution of the decode, which passed at the sizes of `decode_wrapper`."""
    solution = reference_solution(DECODE, kind="returning" if code is None else "setup")
    if code is not None:
        (source,) = solution.sources
        solution = attrs.evolve(solution, sources=(SourceFile(source.path, code),))
    seen = []
    install_flashinfer_integrations()
    set_apply_hook(lambda name, inputs: seen.append(dict(inputs)))
    decode_wrapper(flashinfer, 4).run(random(3, 4, 8), caches(4))
    set_apply_hook(None)
    return data_set(DECODE, (passed(solution, DECODE, seen[0]),), (solution,))


def planned(cls):
    wrapper = cls(workspace())
    wrapper.plan(KV_INDPTR, KV_INDICES, last_page_len(4), 4, 2, 8, 4, q_data_type=torch.bfloat16)
    return wrapper


def hits(runtime):
    return sum(sum(found.hits.values()) for found in runtime.stats().values())


def close(actual, expected):
    return torch.allclose(actual.float(), expected.float(), atol=1e-2)


@one_version
class TestErrorsOfTheOriginal:
    @pytest.fixture
    def fails(self, flashinfer, monkeypatch):
        """The calls of an original that fails after it has written to an input."""
        calls = []

        def failing(arguments):
            calls.append(1)
            arguments["residual"].add_(arguments["input"])
            raise MemoryError(f"at {len(calls)}")

        monkeypatch.setattr(behaviour, "fused_add_rmsnorm", failing)
        install_flashinfer_integrations(count_calls=True)
        return calls

    def test_reach_the_caller_of_an_unsupported_call_after_one_call(self, flashinfer, fails):
        residual = torch.ones(2, 3, 8)
        with enable_apply(TraceSet(None, {}, {}, {}, {})), pytest.raises(MemoryError, match="at 1") as raised:
            flashinfer.norm.fused_add_rmsnorm(torch.ones(2, 3, 8), residual, torch.ones(8))
        assert (fails, float(residual[0, 0, 0])) == ([1], 2.0)
        assert raised.value.__context__ is None
        (counts,) = [dict(found.unsupported_calls) for found in status() if found.unsupported_calls]
        assert counts == {"the input is not a matrix": 1}


@one_version
class TestForward:
    def test_an_overridden_run_is_called(self, flashinfer):
        cls = flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper

        class Doubling(cls):
            def run(self, q, cache, **others):
                return super().run(q * 2, cache, **others)

        def with_own_run():
            wrapper = planned(cls)
            original = wrapper.run
            wrapper.run = lambda q, cache, **others: original(q * 2, cache, **others)
            return wrapper

        q, cache = random(3, 4, 8), caches(4)
        calls = (
            lambda: planned(Doubling).forward(q, cache),
            lambda: with_own_run().forward(q, cache),
            lambda: planned(Doubling).forward_return_lse(q, cache)[0],
        )
        expected = [call() for call in calls]
        assert close(expected[0], planned(cls).run(q * 2, cache))
        with enable_apply(recorded(flashinfer)):
            for call, result in zip(calls, expected, strict=True):
                assert close(call(), result)

    @pytest.mark.parametrize(
        "settings", [{"pos_encoding_mode": "ROPE_LLAMA"}, {"pos_encoding_mode": "ALIBI"}, {"logits_soft_cap": 2.0}]
    )
    def test_settings_that_the_plan_compiled_are_not_undone(self, flashinfer, settings):
        q, cache = random(3, 4, 8), caches(4)
        expected = decode_wrapper(flashinfer, 4, **settings).forward(q, cache)
        with enable_apply(recorded(flashinfer), stats=True) as runtime:
            assert close(decode_wrapper(flashinfer, 4, **settings).forward(q, cache), expected)
            assert hits(runtime) == 0


@one_version
@pytest.mark.parametrize(
    "buffers",
    [{"out": torch.zeros(1, 4, 8)}, {"out": torch.zeros(3, 4, 8)}, {"lse": torch.zeros(2, 3, 4)}],
    ids=["rows", "dtype", "lse"],
)
def test_buffers_that_do_not_fit_are_refused(flashinfer, buffers):
    with enable_apply(recorded(flashinfer)), pytest.raises(ValueError, match="is needed, got"):
        decode_wrapper(flashinfer, 4).run(random(3, 4, 8), caches(4), return_lse=True, **buffers)


@one_version
@pytest.mark.parametrize("on_error", ["raise", "fallback"])
def test_a_setup_may_call_the_library(flashinfer, on_error):
    q, cache = random(3, 4, 8), caches(4)
    expected = decode_wrapper(flashinfer, 4).run(q, cache)
    with enable_apply(recorded(flashinfer, SETUP), ApplyConfig(on_error=on_error), stats=True) as runtime:
        assert close(decode_wrapper(flashinfer, 4).run(q, cache), expected)
        assert hits(runtime) == 1
        assert runtime.left_out() == {}


@one_version
class TestDynamo:
    @pytest.fixture(autouse=True)
    def _reset_dynamo(self):
        yield torch._dynamo.reset()
        torch._dynamo.reset()

    @pytest.mark.parametrize("is_routed", [False, True])
    def test_methods_are_compiled(self, flashinfer, is_routed):
        q, cache = random(3, 4, 8), caches(4)
        expected = decode_wrapper(flashinfer, 4).run(q, cache)
        found = recorded(flashinfer)
        with enable_apply(found if is_routed else TraceSet(None, {}, {}, {}, {})):
            wrapper = decode_wrapper(flashinfer, 4)
            for call in (
                lambda x: wrapper.run(x, cache),
                lambda x: wrapper.forward(x, cache),
                lambda x: type(wrapper).run(wrapper, x, cache),
                lambda x: wrapper.run(x, cache, out=torch.zeros_like(x)),
            ):
                assert close(torch.compile(call, backend="eager")(q), expected)

    @pytest.mark.slow
    def test_a_function_that_runs_as_it_is_does_not_compile_our_code(self, flashinfer):
        solution = reference_solution(RMSNORM.definition)
        seen = []
        install_flashinfer_integrations(count_calls=True)
        set_apply_hook(lambda name, inputs: seen.append(dict(inputs)))
        RMSNORM.prepare(flashinfer)()
        set_apply_hook(None)
        x, weight = random(3, 8), random(8)

        def layer(x):
            try:
                if x.sum().item() > 1e9:  # a graph break within `try`: the whole function runs as it is
                    x = x * 2
                return flashinfer.norm.rmsnorm(x, weight)
            finally:
                ""

        trace = passed(solution, RMSNORM.definition, seen[0])
        with enable_apply(data_set(RMSNORM.definition, (trace,), (solution,)), stats=True) as runtime:
            for factor in (1, 2, 3):
                torch._dynamo.reset()
                compiled = torch.compile(lambda x, factor=factor: layer(x) * factor, backend="eager")
                assert compiled(x).shape == (3, 8)
                assert compiled(random(5, 8)).shape == (5, 8)
            before = hits(runtime)
            for _ in range(3):
                flashinfer.norm.rmsnorm(x, weight)
            assert hits(runtime) == before + 3
        assert not any(found.unsupported_calls for found in status())


def test_an_unknown_name_in_the_variable_leaves_the_default_adapters(monkeypatch, caplog):
    monkeypatch.setenv("FIB_ENABLE_APPLY", "1")
    monkeypatch.setenv("FIB_INTEGRATIONS", "no_such_adapter")
    load_plugin()
    assert "FIB_INTEGRATIONS: no adapter is named 'no_such_adapter'" in caplog.text
    assert any(found.adapter == "rmsnorm" for found in status())


@pytest.mark.slow
@pytest.mark.parametrize("first", ["fib_apply", "fib_integrations.patching"])
def test_adapters_are_installed_whichever_of_our_modules_imports_torch_first(first, some_stand_ins):
    program = f"""
        import sys
        sys.path[:0] = [{str(some_stand_ins)!r}, {str(Path(behaviour.__file__).parent.parent)!r}]
        from fib_integrations import startup
        assert "torch" not in sys.modules
        startup.install_with_torch()
        import {first} as module
        for name in getattr(module, "__all__", ()):
            getattr(module, name)
        import torch, flashinfer.norm
        assert hasattr(flashinfer.norm.rmsnorm, "__fib_patched__"), vars(flashinfer.norm.rmsnorm)
    """
    environment = {"FIB_ENABLE_APPLY": "1", "PATH": "/usr/bin:/bin", "HOME": str(some_stand_ins)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr
