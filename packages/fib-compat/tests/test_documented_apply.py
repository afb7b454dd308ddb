"""Documented behaviour of ``flashinfer_bench.apply``, as its users write it."""

import json

import attrs
import compat_samples as samples
import pytest
import torch
from compat_samples import MARKED, NAME
from flashinfer_bench import ApplyConfig, ApplyConfigRegistry, apply, disable_apply, enable_apply
from flashinfer_bench.apply import ApplyRuntime, get_default_registry, get_runtime, set_runtime
from flashinfer_bench.apply.key import ApplyKey, ApplyKeyFactory
from flashinfer_bench.data import Correctness

X, W = torch.ones(4, 64), torch.ones(64)
ANY = ApplyConfig(max_atol=10.0, max_rtol=10.0)


def fallback(x, weight):
    del x, weight
    return "fallback"


def marked_set(root=None):
    """A set whose solution returns sevens."""
    return samples.trace_set(
        root, solutions={NAME: [samples.solution("sevens", MARKED)]}, traces={NAME: [samples.trace("sevens")]}
    )


def call(x=X):
    result = apply(NAME, args=(x, W), kwargs={}, fallback=fallback)
    return result if isinstance(result, str) else result.flatten()[0].item()


class TestEnable:
    def test_the_object_is_used_and_not_its_folder(self, tmp_path):
        """The folder has another solution, whose result is not seven."""
        samples.write(tmp_path, traces=(samples.trace("plain"),))
        with enable_apply(marked_set(tmp_path), ANY):
            assert call() == 7

    def test_a_set_without_a_folder_is_used(self):
        with enable_apply(marked_set(), apply_config=ANY):
            assert call() == 7
        assert call() == "fallback"

    def test_what_was_appended_to_the_set_is_used(self):
        trace_set = samples.trace_set()
        trace_set.solutions[NAME].append(samples.solution("sevens", MARKED))
        trace_set.traces.setdefault(NAME, []).append(samples.trace("sevens"))
        with enable_apply(trace_set, ANY):
            assert call() == 7

    def test_a_path_and_none_are_accepted(self, tmp_path, monkeypatch):
        root = samples.write(
            tmp_path, solutions=(samples.solution("sevens", MARKED),), traces=(samples.trace("sevens"),)
        )
        with enable_apply(str(root), ANY):
            assert call() == 7
        monkeypatch.setenv("FIB_DATASET_PATH", str(root))
        with enable_apply(apply_config=ANY):
            assert call() == 7

    def test_a_registry_is_accepted_and_none_is_the_default(self):
        with enable_apply(marked_set(), ApplyConfigRegistry(default=ANY)):
            assert call() == 7
        with enable_apply(marked_set()) as runtime:
            assert isinstance(runtime, ApplyRuntime)

    def test_a_registry_that_names_an_absent_definition_warns_and_goes_on(self, caplog):
        registry = ApplyConfigRegistry(default=ANY, per_definition={"absent_d7": ANY})
        with enable_apply(marked_set(), registry):
            assert call() == 7
        assert "absent_d7" in caplog.text

    def test_disable_ends_it(self):
        enable_apply(marked_set(), ANY)
        assert call() == 7
        disable_apply()
        disable_apply()
        assert call() == "fallback"


class TestRuntime:
    def test_a_runtime_that_was_not_started_dispatches(self):
        runtime = ApplyRuntime(marked_set(), ANY)
        assert ApplyRuntime.get_instance() is None
        assert runtime.dispatch(NAME, (X, W), {}, fallback).flatten()[0] == 7
        assert runtime.dispatch("unknown", (X, W), {}, fallback) == "fallback"
        assert runtime.dispatch(NAME, args=(X,), kwargs={"weight": W}, fallback=fallback).flatten()[0] == 7

    def test_dispatch_without_a_fallback_for_an_unknown_definition_raises(self):
        with pytest.raises((ValueError, RuntimeError)):
            ApplyRuntime(marked_set(), ANY).dispatch("unknown", (X, W), {}, None)

    def test_runtimes_nest(self):
        inner_set = samples.trace_set(
            solutions={NAME: [samples.solution("eights", MARKED.replace("7", "8"))]},
            traces={NAME: [samples.trace("eights")]},
        )
        with ApplyRuntime(marked_set(), ANY) as outer:
            with ApplyRuntime(inner_set, ANY) as inner:
                assert ApplyRuntime.get_instance() is inner
                assert call() == 8
            assert ApplyRuntime.get_instance() is outer
            assert call() == 7
        assert ApplyRuntime.get_instance() is None

    def test_stop_is_last_in_first_out(self):
        first, second = ApplyRuntime(marked_set(), ANY), ApplyRuntime(marked_set(), ANY)
        first.start()
        second.start()
        with pytest.raises(RuntimeError):
            first.stop()
        second.stop()
        first.stop()
        assert ApplyRuntime.get_instance() is None

    def test_stop_of_a_runtime_that_was_not_started_is_an_error(self):
        with pytest.raises(RuntimeError):
            ApplyRuntime(marked_set(), ANY).stop()

    def test_a_runtime_that_was_only_set_can_be_replaced(self):
        set_runtime(ApplyRuntime(marked_set(), ANY))
        assert get_runtime() is not None
        set_runtime(None)
        assert get_runtime() is None

    @pytest.mark.parametrize("ratio", [0, 0.0, 1.0])
    def test_the_best_solution_of_the_definition_serves_a_miss(self, ratio):
        """With ``aot_ratio=0`` nothing is built beforehand: it is built for the call that needs it."""
        config = ApplyConfig(max_atol=10.0, max_rtol=10.0, aot_ratio=ratio, on_miss_policy="use_def_best")
        with enable_apply(marked_set(), config):
            assert call(torch.ones(5, 64)) == 7

    def test_without_a_policy_a_miss_is_the_fallback(self):
        with enable_apply(marked_set(), ANY):
            assert call(torch.ones(5, 64)) == "fallback"


class TestCalls:
    def test_missing_arguments_are_an_error(self):
        with enable_apply(marked_set(), ANY), pytest.raises((TypeError, ValueError)):
            apply(NAME, args=(X,), kwargs={}, fallback=lambda x, weight: x)

    def test_a_destination_is_written(self):
        y = torch.zeros(4, 64)
        with enable_apply(marked_set(), ANY):
            apply(NAME, args=(X, W, y), kwargs={}, fallback=None)
        assert y.flatten()[0] == 7

    def test_the_first_releases_keyword(self):
        with enable_apply(marked_set(), ANY):
            result = apply(NAME, runtime_kwargs={"x": X, "weight": W}, fallback=fallback)
        assert result.flatten()[0] == 7

    def test_a_decorator_and_a_resolver(self):
        @apply(lambda x, weight: f"rmsnorm_h{x.shape[1]}")
        def norm(x, weight):
            return "own"

        assert norm(X, W) == "own"
        with enable_apply(marked_set(), ANY):
            assert norm(X, weight=W).flatten()[0] == 7
            assert norm(torch.ones(4, 32), torch.ones(32)) == "own"

    def test_without_a_runtime_and_a_fallback_is_an_error(self):
        with pytest.raises((RuntimeError, ValueError)):
            apply(NAME, args=(X, W), kwargs={}, fallback=None)


class TestSettings:
    def test_registering_returns_the_registry(self):
        registry = ApplyConfigRegistry(default=None).register("a", ANY).register_many({"b": ANY, "c": ANY})
        assert isinstance(registry, ApplyConfigRegistry)
        assert (registry.get("a"), registry.get("c")) == (ANY, ANY)

    def test_no_default_means_none(self):
        registry = ApplyConfigRegistry()
        assert registry.get("unknown") is None
        assert ApplyConfigRegistry(default=None).default is None
        assert ApplyConfigRegistry(default=ANY).get("unknown") == ANY

    def test_a_definition_without_settings_is_not_routed(self):
        with enable_apply(marked_set(), ApplyConfigRegistry(default=None, per_definition={"other": ANY})):
            assert call() == "fallback"

    def test_registering_twice_needs_override(self):
        registry = ApplyConfigRegistry().register("a", ANY)
        with pytest.raises(ValueError):
            registry.register("a", ApplyConfig())
        assert registry.register("a", ApplyConfig(), override=True).get("a") == ApplyConfig()

    def test_the_default_registry(self):
        assert isinstance(get_default_registry(), ApplyConfigRegistry)
        assert isinstance(get_default_registry().get("anything"), ApplyConfig)

    @pytest.mark.parametrize(
        "wrong", [{"aot_ratio": 1.5}, {"aot_ratio": -0.1}, {"max_atol": -1}, {"max_rtol": -1}, {"on_miss_policy": "x"}]
    )
    def test_values_are_checked(self, wrong):
        with pytest.raises(ValueError):
            ApplyConfig(**wrong)

    def test_the_documented_bounds_are_the_defaults(self):
        """A trace with a larger error does not count."""
        assert (ApplyConfig().max_atol, ApplyConfig().max_rtol) == (1e-2, 1e-5)
        config = get_default_registry().get("any")
        assert (config.max_atol, config.max_rtol) == (1e-2, 1e-5)
        inexact = samples.trace("sevens")
        correctness = Correctness(max_absolute_error=1e-3, max_relative_error=1e-3)
        inexact = attrs.evolve(inexact, evaluation=attrs.evolve(inexact.evaluation, correctness=correctness))
        trace_set = samples.trace_set(solutions={NAME: [samples.solution("sevens", MARKED)]}, traces={NAME: [inexact]})
        with enable_apply(trace_set):
            assert call() == "fallback"
        with enable_apply(trace_set, ApplyConfig(max_rtol=1e-2)):
            assert call() == 7

    def test_settings_dump(self):
        assert ApplyConfig.model_validate_json(ANY.model_dump_json()) == ANY
        assert ANY.model_dump()["aot_ratio"] == 1.0


class TestKeys:
    def test_a_key_has_axes_and_features(self):
        key = ApplyKey(axes=(("batch", 4),), feats=(("avg", 2),))
        assert dict(key.axes) == {"batch": 4}
        assert dict(key.feats) == {"avg": 2}
        assert key == ApplyKey(axes=(("batch", 4),), feats=(("avg", 2),))
        assert len({key, ApplyKey(axes=(("batch", 4),), feats=(("avg", 2),))}) == 1

    def test_a_key_dumps_and_validates(self):
        key = ApplyKey(axes=(("batch", 4),), feats=())
        assert ApplyKey.model_validate(key.model_dump()) == key
        assert ApplyKey.model_validate_json(key.model_dump_json()) == key
        assert set(json.loads(key.model_dump_json())) == {"axes", "feats"}

    def test_arguments_and_workloads_make_the_same_key(self):
        builder = ApplyKeyFactory.specialize(samples.definition())
        assert builder.build_from_args((X, W)) == builder.build_from_workload(samples.workload(4))
        assert builder.build_from_args((X, W)) != builder.build_from_workload(samples.workload(8))
        assert builder.features((X, W)) in ((), {})


def test_the_fastest_solution_is_routed_even_if_its_reference_was_faster():
    assert not ApplyConfig().require_speedup
    default = get_default_registry().get("any")
    assert not default.require_speedup
