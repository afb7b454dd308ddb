"""Norms of engines: providers and patched functions reach solutions; other versions only if signatures are equal."""

import inspect
import logging
import sys
from types import ModuleType

import engine_stand_ins
import pytest
import torch
from fib_apply import ApplyConfig, enable_apply, set_apply_hook
from fib_apply.build_service.service import BuildService
from fib_integrations import install_flashinfer_integrations, status, uninstall_flashinfer_integrations
from fib_integrations.adapter import SGL_KERNEL, SGLANG, VLLM, CannotAdapt, Engine
from fib_integrations.adapters.elementwise import SGLANG_JIT, SGLANG_KERNELS, VLLM_CUSTOM_OPS
from fib_integrations.patching import PatchState
from fib_integrations.vllm import PROVIDER, install_hooks, register
from flashinfer_stand_ins import examples
from flashinfer_stand_ins.examples import FUSED_ADD_RMSNORM, RMSNORM, data_set, is_routed, passed, random

WIDTH = 8
EPSILON, SUM_EPSILON = 1e-6, 1e-5
"""Those of the definitions' references."""


def arguments():
    torch.manual_seed(3)
    return random(3, WIDTH), random(3, WIDTH), random(WIDTH)


def marked(definition):
    x, residual, weight = arguments()
    return examples.marked(definition, (x, weight) if definition is RMSNORM else (x, residual, weight))


def test_declared_parameters_are_those_of_the_engines_sources():
    recorded = engine_stand_ins.recorded()
    for engine in (VLLM, SGLANG, SGL_KERNEL):
        record = recorded[engine.distribution]
        assert record["version"] in engine.versions
        found = {path.replace("ops.layernorm.", "ops.", 1) if path.startswith("vllm.ir") else path: parameters
                 for path, parameters in record["parameters"].items()}  # fmt: skip
        assert found == engine.parameters


def test_adapters_of_engines_name_each_of_their_functions():
    for adapter in (VLLM_CUSTOM_OPS, SGLANG_KERNELS, SGLANG_JIT):
        assert {target.path for target in adapter.targets} <= adapter.engine.parameters.keys()


class TestVersions:
    ENGINE = Engine(distribution="vllm", versions=("0.26.0",), parameters={"vllm.f": "x, eps=1e-06"})

    def test_a_known_version_is_used_silently(self, versions, caplog):
        versions["vllm"] = "0.26.0+cu130"
        self.ENGINE.check("vllm.f", lambda x, eps=1e-6: None)
        assert not caplog.records

    def test_an_unknown_version_is_used_with_a_warning(self, versions, caplog):
        versions["vllm"] = "0.27.1"
        with caplog.at_level(logging.WARNING):
            self.ENGINE.check("vllm.f", lambda x, eps=1e-6: None)
        assert "of vllm 0.27.1, which was not read (known: 0.26.0)" in caplog.text

    @pytest.mark.parametrize("version", ["0.26.0", "0.27.1"])
    def test_other_parameters_are_refused(self, versions, version):
        versions["vllm"] = version
        with pytest.raises(CannotAdapt, match=r"its parameters are \(x, eps=1e-05\)"):
            self.ENGINE.check("vllm.f", lambda x, eps=1e-5: None)

    def test_an_engine_may_not_be_installed(self):
        assert not Engine(distribution="no-such-engine", versions=(), parameters={}).is_installed

    def test_a_changed_function_is_not_patched(self, versions):
        with engine_stand_ins.modules(rms_norm="out, input, weight, epsilon, brand_new=1") as made:
            original = made["vllm._custom_ops"].rms_norm
            install_flashinfer_integrations(["vllm_custom_ops"])
            assert made["vllm._custom_ops"].rms_norm is original
            states = {one.path: (one.state, one.detail) for one in status()}
        state, detail = states["vllm._custom_ops.rms_norm"]
        assert state is PatchState.INCOMPATIBLE
        assert "brand_new=1" in detail
        assert states["vllm._custom_ops.fused_add_rms_norm"][0] is PatchState.INSTALLED


def _written(function, x, weight):
    out = torch.empty_like(x)
    assert function(out, x, weight, EPSILON) is None
    return out


NORMS = {
    "vllm._custom_ops": _written,
    "sgl_kernel.elementwise": lambda f, x, w: f(x, w, EPSILON),
    "sglang.kernels.ops.layernorm.norm": lambda f, x, w: _written(lambda out, *_: f(x, w, out, EPSILON), x, w),
}


@pytest.mark.parametrize("module", NORMS)
def test_norms_are_routed_and_traced(module, versions, modules):
    name = "rms_norm" if module.startswith("vllm") else "rmsnorm"
    x, _, weight = arguments()
    expected = NORMS[module](getattr(modules[module], name), x, weight)
    install_flashinfer_integrations()
    function = getattr(modules[module], name)
    seen = []
    set_apply_hook(lambda name, inputs: seen.append(name))
    assert torch.equal(NORMS[module](function, x, weight), expected)
    set_apply_hook(None)
    assert seen == [RMSNORM.name]
    with enable_apply(marked(RMSNORM)):
        assert is_routed(NORMS[module](function, x, weight))
        three = random(2, 3, WIDTH)
        assert not is_routed(NORMS[module](function, three, weight))


@pytest.mark.parametrize("module", NORMS)
def test_sums_and_results_are_written_in_place(module, versions, modules):
    name = "fused_add_rms_norm" if module.startswith("vllm") else "fused_add_rmsnorm"
    x, residual, weight = arguments()
    total = x + residual
    install_flashinfer_integrations()
    with enable_apply(marked(FUSED_ADD_RMSNORM)):
        assert getattr(modules[module], name)(x, residual, weight, SUM_EPSILON) is None
    assert is_routed(x)
    assert torch.equal(residual, total)


def test_calls_of_vllm_that_no_definition_describes_reach_the_original(versions, modules):
    install_flashinfer_integrations(count_calls=True)
    set_apply_hook(lambda name, inputs: pytest.fail("no definition describes it"))
    ops = modules["vllm._custom_ops"]
    q, k, cache = random(3, 16), random(3, 16), torch.rand(9, 8)
    ops.rotary_embedding(torch.arange(3), q, None or k, 8, cache, False)
    ops.rotary_embedding(torch.arange(3), q, k, 8, cache, True, inverse=True)
    counts = {one.path: dict(one.unsupported_calls) for one in status()}["vllm._custom_ops.rotary_embedding"]
    assert counts == {"rotated pairs are interleaved (is_neox=False)": 1, "inverse is given": 1}


def test_the_jit_norm_of_sglang_may_overwrite_its_input(versions, modules):
    install_flashinfer_integrations(count_calls=True)
    set_apply_hook(lambda name, inputs: pytest.fail("no definition describes it"))
    module = modules["sglang.kernels.ops.layernorm.norm"]
    x, residual, weight = arguments()
    module.fused_add_rmsnorm(x, residual, weight, cast_x_before_out_mul=True)
    counts = {one.path: dict(one.unsupported_calls) for one in status()}
    assert counts[f"{module.__name__}.fused_add_rmsnorm"] == {"cast_x_before_out_mul is given": 1}


@pytest.fixture
def ops(versions, monkeypatch):
    """IR ops with the provider, and another one behind it that writes to its inputs."""
    from fib_integrations import installation

    monkeypatch.setattr(installation, "_provided", {})
    module = engine_stand_ins.ir_ops()

    def vllm_c(x, x_residual, weight, epsilon, variance_size=None):
        x_residual.add_(x)
        return x.copy_(engine_stand_ins.normalized(x_residual, weight, epsilon)), x_residual

    fused = module.fused_add_rms_norm
    vllm_c.__annotations__ = dict(fused.impls["native"].impl_fn.__annotations__)
    fused.register_impl("vllm_c", inplace=True)(vllm_c)
    assert register(module) == {}
    module.rms_norm.set_default([PROVIDER, "native"])
    fused.set_default([PROVIDER, "vllm_c", "native"])
    return module


class TestProvider:
    def test_it_has_the_schema_of_the_op_and_a_source_file(self, ops):
        for op in (ops.rms_norm, ops.fused_add_rms_norm):
            impl = op.impls[PROVIDER]
            assert inspect.getfile(impl.impl_fn).endswith("fib_integrations/vllm.py")  # vLLM hashes it
            assert inspect.signature(impl.impl_fn) == inspect.signature(op.impls["native"].impl_fn)
        assert ops.fused_add_rms_norm.impls[PROVIDER].inplace
        assert not ops.rms_norm.impls[PROVIDER].inplace

    def test_calls_are_routed_and_traced(self, ops):
        x, residual, weight = arguments()
        seen = []
        set_apply_hook(lambda name, inputs: seen.append(name))
        expected = ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON)
        assert torch.equal(ops.rms_norm(x, weight, EPSILON), expected)
        set_apply_hook(None)
        assert seen == [RMSNORM.name]
        with enable_apply(marked(RMSNORM)):
            assert is_routed(ops.rms_norm(x, weight, EPSILON))
        with enable_apply(marked(FUSED_ADD_RMSNORM)):
            total = x + residual
            result, added = ops.fused_add_rms_norm.maybe_inplace(x, residual, weight, SUM_EPSILON)
            assert is_routed(result)
            assert torch.equal(added, total)

    def test_the_functional_overload_changes_no_input(self, ops):
        x, residual, weight = arguments()
        before = x.clone(), residual.clone()
        with enable_apply(marked(FUSED_ADD_RMSNORM)):
            result, added = ops.fused_add_rms_norm(x, residual, weight, SUM_EPSILON)
        assert is_routed(result)
        assert torch.equal(added, before[0] + before[1])
        assert torch.equal(x, before[0])
        assert torch.equal(residual, before[1])

    def test_the_next_provider_serves_what_is_not_routed(self, ops):
        x, residual, weight = arguments()
        total = x + residual
        result, added = ops.fused_add_rms_norm.maybe_inplace(x, residual, weight, SUM_EPSILON)
        assert result is x  # vllm_c writes in place
        assert added is residual
        assert torch.equal(added, total)
        ops.fused_add_rms_norm.set_default([PROVIDER, "native"])
        result, _ = ops.fused_add_rms_norm.maybe_inplace(x, residual, weight, SUM_EPSILON)
        assert result is not x

    @pytest.mark.parametrize(
        "change",
        [
            {"weight": None},
            {"variance_size": 4},
            {"weight": torch.ones(WIDTH, dtype=torch.float32)},
            {"x": random(2, 3, WIDTH)},
            {"x": random(WIDTH)},
            {"epsilon": 0.5},
        ],
        ids=["no weight", "variance", "dtype", "three dimensions", "one dimension", "epsilon"],
    )
    def test_what_no_definition_describes_goes_to_the_next_provider(self, ops, change):
        x, _, weight = arguments()
        norm = {"x": x, "weight": weight, "epsilon": EPSILON, "variance_size": None, **change}
        with enable_apply(marked(RMSNORM)):
            assert not is_routed(ops.rms_norm(*norm.values()))
        first, *others = {**norm, "epsilon": change.get("epsilon", SUM_EPSILON)}.values()
        with enable_apply(marked(FUSED_ADD_RMSNORM)):
            if norm["weight"] is not None:  # the stand-in of vLLM's kernel needs one
                assert not is_routed(ops.fused_add_rms_norm(first, random(*first.shape), *others)[0])

    def test_a_list_that_changes_is_followed(self, ops):
        """Each provider that may serve a call; the last one supports nothing."""
        x, _, weight = arguments()

        def named(name):
            def norm(x, weight, epsilon, variance_size=None):
                return torch.full_like(x, {"one": 1.0, "two": 2.0, "none": 3.0}[name])

            norm.__annotations__ = dict(ops.rms_norm.impls["native"].impl_fn.__annotations__)
            return norm

        for name in ("one", "two", "none"):
            supports = (lambda *a: False) if name == "none" else None
            ops.rms_norm.register_impl(name, supports_args=supports)(named(name))
        native = ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON)[0, 0]
        for priority, expected in (
            ([PROVIDER, "one", "native"], 1.0),
            ([PROVIDER, "two", "native"], 2.0),
            (["one", PROVIDER], 1.0),
            ([PROVIDER], native),
            ([PROVIDER, "none", "two"], 2.0),
            ([PROVIDER, "none"], native),
        ):
            with ops.rms_norm.set_priority(priority):
                assert ops.rms_norm(x, weight, EPSILON)[0, 0] == expected
            with enable_apply(marked(FUSED_ADD_RMSNORM)), ops.rms_norm.set_priority(priority):
                assert ops.rms_norm(x, weight, EPSILON)[0, 0] == expected

    def test_activations_are_copied_no_more_often_than_without_it(self, ops):
        """The functional overload copies for providers in place, as this one is; the next one may not be."""
        x, residual, weight = arguments()
        supports = ops.fused_add_rms_norm.impls[PROVIDER].supports_args
        assert supports(x, residual, weight, SUM_EPSILON)
        with ops.fused_add_rms_norm.set_priority([PROVIDER, "native"]):
            assert not supports(x, residual, weight, SUM_EPSILON)
            with enable_apply(marked(FUSED_ADD_RMSNORM)):
                assert supports(x, residual, weight, SUM_EPSILON)

    def test_shadow_comparison_returns_what_vllm_would(self, ops):
        x, residual, weight = arguments()
        total = x + residual
        expected = engine_stand_ins.normalized(total, weight, SUM_EPSILON)
        solution = examples.reference_solution(FUSED_ADD_RMSNORM)
        inputs = dict(zip(FUSED_ADD_RMSNORM.inputs, (x, residual, weight), strict=True))
        made = data_set(FUSED_ADD_RMSNORM, (passed(solution, FUSED_ADD_RMSNORM, inputs),), (solution,))
        with enable_apply(made, ApplyConfig(shadow_ratio=1.0)) as runtime:
            result, added = ops.fused_add_rms_norm.maybe_inplace(x, residual, weight, SUM_EPSILON)
            assert runtime.left_out() == {}
        torch.testing.assert_close(result, expected)
        assert torch.equal(added, total)

    def test_uninstalling_leaves_a_provider_that_only_forwards(self, ops):
        assert {one.path for one in status() if one.adapter == "vllm_ir"} == {
            "vllm.ir.ops.rms_norm", "vllm.ir.ops.fused_add_rms_norm"
        }  # fmt: skip
        uninstall_flashinfer_integrations()
        x, _, weight = arguments()
        with enable_apply(marked(RMSNORM)):
            assert not is_routed(ops.rms_norm(x, weight, EPSILON))
            assert register(ops) == {}  # again
            assert is_routed(ops.rms_norm(x, weight, EPSILON))

    def test_ops_that_differ_are_left_alone(self, versions, caplog):
        module = ModuleType("vllm.ir.ops")
        assert register(module).keys() == {"rms_norm", "fused_add_rms_norm"}
        assert "this version of vLLM has no such op" in caplog.text
        module = engine_stand_ins.ir_ops()
        for op in (module.rms_norm, module.fused_add_rms_norm):
            vars(op)["_others"] = vars(op).pop("_priority_impls")
        assert register(module).keys() == {"rms_norm", "fused_add_rms_norm"}
        assert "this version of vLLM has no _priority_impls in its ops" in caplog.text


class TestCaptures:
    """On the CPU, the model runner's method calls a solution that compiles when it is called."""

    @pytest.fixture
    def runner(self, monkeypatch):
        module = ModuleType("vllm.v1.worker.gpu.model_runner")

        class GPUModelRunner:
            def capture_model(self, call):
                """Capture."""
                return call()

            def load_model(self):
                return 3

        module.GPUModelRunner = GPUModelRunner
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return GPUModelRunner

    def test_calls_wait_while_graphs_are_captured(self, runner, monkeypatch):
        install_hooks()
        install_hooks()
        found = []
        monkeypatch.setattr(BuildService, "open_capture_gate", lambda service, seconds: found.append(seconds))
        assert runner().capture_model(lambda: 5) == 5  # routing is off
        with enable_apply(data_set(RMSNORM, (), ())):
            assert runner().capture_model(lambda: list(found)) == [pytest.approx(300, abs=30)]
        assert len(found) == 1
        assert runner.capture_model.__doc__ == "Capture."
        monkeypatch.setenv("FIB_ENABLE_APPLY", "1")
        monkeypatch.setattr("fib_integrations.vllm.start", lambda: found.append("started"))
        assert (runner().load_model(), found[1:]) == (3, ["started"])

    def test_a_runner_without_the_method_is_named(self, runner, caplog):
        del runner.capture_model
        install_hooks()
        assert "has no GPUModelRunner.capture_model: its graphs may record the engine's own kernels" in caplog.text
