"""Runtimes: calls reach the solution that was verified for them; the fallback serves all others."""

import gc
import inspect
import os
import threading
import traceback
import weakref
from typing import Any

import apply_samples as samples
import pytest
import torch
from apply_samples import new_solution, new_trace, write_set
from fib_apply import (
    ApplyConfig,
    ApplyConfigRegistry,
    ApplyKey,
    ApplyKeyFactory,
    ApplyRuntime,
    AxesOnlyKeyBuilder,
    CannotRoute,
    InvalidSetting,
    NoKernel,
    apply,
    enable_apply,
    get_apply_hook,
    get_runtime,
    set_apply_hook,
    set_runtime,
    wait_until_built,
)
from fib_apply.routing.codegen import ParameterMap
from fib_apply.routing.dispatcher import ServedByFallback
from fib_schema import AxisConst, AxisVar, DataSetNotFound, Definition, TensorSpec
from torch.overrides import TorchFunctionMode

pytestmark = pytest.mark.usefixtures("without_probes")

N, K = 8, 16
SOLUTION, FALLBACK = 1.0, 0.0
"""The value of all elements of their results."""


def definition(name="gemm", **changes):
    fields = {
        "axes": {"M": AxisVar(), "N": AxisConst(N), "K": AxisConst(K)},
        "inputs": {"A": TensorSpec(("M", "K"), "float32"), "B": TensorSpec(("N", "K"), "float32")},
        "outputs": {"C": TensorSpec(("M", "N"), "float32")},
        "reference": "def run(A, B):\n    return A @ B.T\n",
    }
    return Definition(name, "gemm", **{**fields, **changes})


VALUE_RETURNING = "import torch\ndef run(A, B):\n    return torch.ones(A.shape[0], B.shape[0])\n"
DESTINATION_PASSING = "def run(A, B, C):\n    C.fill_(1)\n"


def solution(name, source=VALUE_RETURNING, of="gemm", *, passing=False):
    return new_solution(name, content=source, definition=of, passing=passing)


def trace(name, latency_ms=0.1, *, of="gemm", hardware="cpu", **axes):
    sizes = axes or {"M": 4}
    return new_trace(name, latency_ms, axes=sizes, inputs="AB", definition=of, hardware=hardware, reference=1.0)


def data_set(*traces, solutions=(), d=None):
    found = traces or (trace("ones"),)
    return samples.data_set(*found, solutions=solutions or (solution("ones"),), definition=d or definition())


def on_disk(root, *traces, solutions=()):
    return write_set(root, *traces, solutions=solutions or (solution("ones"),), definitions=[definition()])


@pytest.fixture
def gemm():
    @apply("gemm")
    def gemm(A, B):
        return torch.zeros(A.shape[0], B.shape[0])

    return gemm


A, B = torch.randn(4, K), torch.randn(N, K)


def served_by(result):
    return {SOLUTION: "solution", FALLBACK: "fallback"}[float(result.flatten()[0])]


class TestDecoratedFunction:
    def test_first_call_goes_to_the_solution(self, gemm):
        assert served_by(gemm(A, B)) == "fallback"
        with enable_apply(data_set()):
            assert [served_by(gemm(A, B)) for _ in range(3)] == ["solution"] * 3
        assert served_by(gemm(A, B)) == "fallback"

    def test_accepts_keywords(self, gemm):
        with enable_apply(data_set()):
            assert [served_by(gemm(A, B=B)), served_by(gemm(B=B, A=A))] == ["solution"] * 2

    def test_parameters_are_matched_by_position_if_names_differ(self):
        @apply("gemm")
        def linear(x, weight, bias=None):
            return torch.zeros(4, N)

        with enable_apply(data_set()):
            assert served_by(linear(A, B)) == "solution"
            assert served_by(linear(A, B, None)) == "solution"
            assert served_by(linear(A, B, torch.ones(N))) == "fallback"

    def test_method_is_routed(self):
        class Layer:
            @apply("gemm")
            def forward(self, A, B):
                return torch.zeros(4, N)

        with enable_apply(data_set()):
            assert served_by(Layer().forward(A, B)) == "solution"

    def test_variadic_function_is_routed(self):
        @apply("gemm")
        def anything(*args, **kwargs):
            return torch.zeros(4, N)

        with enable_apply(data_set()):
            assert [served_by(anything(A, B)), served_by(anything(A, B=B)), served_by(anything(A))] == [
                "solution", "solution", "fallback",
            ]  # fmt: skip

    def test_name_signature_and_attributes_are_kept(self):
        def plain(A, B):
            return None

        plain.tag = "kept"
        kept = apply("gemm")(plain)
        assert (kept.__name__, list(inspect.signature(kept).parameters), kept.tag) == ("plain", ["A", "B"], "kept")

    def test_is_not_kept_alive(self):
        @apply("gemm")
        def short_lived(A, B):
            return None

        watch = weakref.ref(short_lived)
        del short_lived
        gc.collect()
        assert watch() is None


class TestAlternatingSizes:
    RUNS = (4, 3, 2, 2, *(2,) * 40, 4, *(4, 2, 3) * 40, *(4,) * 40)
    """One size for long, then alternating sizes: no call may get the solution of another size."""

    @pytest.mark.parametrize("is_passing", [True, False], ids=["outputs are passed", "outputs are returned"])
    def test_each_size_is_served_by_its_solution(self, is_passing):
        @apply("gemm")
        def gemm(A, B, C=None):
            return torch.zeros(A.shape[0], N) if C is None else C.zero_()

        sources = {name: f"def run(A, B, C):\n    C.fill_({value})\n" for name, value in (("ones", 1), ("twos", 2))}
        solutions = tuple(solution(name, source, passing=True) for name, source in sources.items())
        chosen = {4: 1.0, 2: 2.0, 3: 0.0}
        wrong = []
        with enable_apply(data_set(trace("ones", M=4), trace("twos", M=2), solutions=solutions), stats=True) as runtime:
            for place, m in enumerate(self.RUNS):
                a, c = torch.randn(m, K), torch.full((m, N), 7.0)
                found = gemm(a, B, c) if is_passing else gemm(a, B)
                if not torch.equal(c if is_passing else found, torch.full((m, N), chosen[m])):
                    wrong.append((place, m))
            stats = runtime.stats()["gemm"]
        assert wrong == []
        assert (stats.hits, stats.misses) == (
            {"M=4": self.RUNS.count(4), "M=2": self.RUNS.count(2)},
            {"not recorded": self.RUNS.count(3)},
        )

    def test_parameters_of_any_name_clash_with_no_name_of_generated_code(self):
        @apply("gemm")
        def extra(A, B, _=None):
            return torch.zeros(A.shape[0], N)

        @apply("gemm")
        def by_position(_, w):
            return torch.zeros(_.shape[0], N)

        @apply("gemm")
        def more(A, B, *_, **__):
            return torch.zeros(A.shape[0], N)

        with enable_apply(data_set(trace("ones", M=4), trace("ones", M=2))):
            for function in (extra, by_position, more):
                served = {m: served_by(function(torch.randn(m, K), B)) for m in (4, 2, 3) * 20}
                assert served == {4: "solution", 2: "solution", 3: "fallback"}

    def test_quarantined_solution_serves_no_size(self, gemm):
        with enable_apply(data_set(trace("ones", M=4), trace("ones", M=2))) as runtime:
            for m in self.RUNS:
                gemm(torch.randn(m, K), B)
            runtime.dispatcher("gemm").quarantine("ones", "a test")
            assert {served_by(gemm(torch.randn(m, K), B)) for m in self.RUNS} == {"fallback"}


class TestDestinationPassing:
    @pytest.mark.parametrize("is_passing", [True, False], ids=["solution writes", "solution returns"])
    def test_outputs_are_written(self, is_passing):
        @apply("gemm")
        def gemm(A, B, C):
            C.fill_(0)

        C = torch.full((4, N), 7.0)
        source = DESTINATION_PASSING if is_passing else VALUE_RETURNING
        with enable_apply(data_set(solutions=(solution("ones", source, passing=is_passing),))):
            for _ in range(2):
                assert gemm(A, B, C.fill_(7.0)) is None
                assert served_by(C) == "solution"


class TestOneCall:
    def test_by_position_and_by_name(self):
        def fallback(A, B):
            return torch.zeros(4, N)

        with enable_apply(data_set()) as call:
            results = [
                apply("gemm", args=(A, B), fallback=fallback),
                apply("gemm", args=(A,), kwargs={"B": B}, fallback=fallback),
                apply("gemm", runtime_kwargs={"A": A, "B": B}, fallback=fallback),
                apply("gemm", {"B": B, "A": A}, fallback),
                call("gemm", runtime_kwargs={"A": A, "B": B}, fallback=fallback),
                call.dispatch("gemm", {"A": A, "B": B}, fallback),
                call.dispatch("gemm", (A, B), {}, fallback),
                apply(lambda A, B: "gemm", args=(A, B)),
            ]
        assert [served_by(result) for result in results] == ["solution"] * len(results)

    def test_writes_outputs_among_its_arguments(self):
        C = torch.zeros(4, N)
        with enable_apply(data_set()):
            assert apply("gemm", kwargs={"A": A, "B": B, "C": C}) is None
        assert served_by(C) == "solution"

    def test_falls_back_with_the_same_arguments(self):
        def fallback(*args, **kwargs):
            return args, kwargs

        with enable_apply(data_set()):
            args, kwargs = apply("gemm", args=(A[:3],), kwargs={"B": B}, fallback=fallback)
            assert (len(args), kwargs) == (1, {"B": B})
            assert apply("other", args=(1,), kwargs={"x": 2}, fallback=fallback) == ((1,), {"x": 2})
        assert apply("gemm", args=(1,), fallback=fallback) == ((1,), {})

    def test_without_fallback_raises_with_the_reason(self):
        with pytest.raises(NoKernel, match="routing is not enabled"):
            apply("gemm", args=(A, B))
        with enable_apply(data_set()):
            with pytest.raises(NoKernel, match="no such definition"):
                apply("other", args=(A, B))
            with pytest.raises(NoKernel, match="no solution is chosen or ready"):
                apply("gemm", args=(A[:3], B))
            with pytest.raises(TypeError, match="misses argument 'B'"):
                apply("gemm", args=(A,))

    def test_needs_arguments_beside_a_fallback(self):
        with pytest.raises(TypeError, match="no arguments"):
            apply("gemm", fallback=print)

    @pytest.mark.parametrize("what", [None, 3, classmethod(3)], ids=["none", "number", "classmethod"])
    def test_only_functions_are_decorated(self, what):
        with pytest.raises(TypeError, match=r"@apply\('gemm'\) needs a function, the fallback of its calls; got"):
            apply("gemm")(what)


class TestResolver:
    def test_runs_once_per_call(self):
        asked = []

        def name_of(A, B):
            asked.append(A.shape[0])
            return "gemm" if B.shape[0] == N else "other"

        @apply(name_of)
        def gemm(A, B):
            return torch.zeros(4, N)

        with enable_apply(data_set()):
            assert [served_by(gemm(A, B)), served_by(gemm(A, B)), served_by(gemm(A, B[:2]))] == [
                "solution", "solution", "fallback",
            ]  # fmt: skip
        assert len(asked) == 3
        gemm(A, B)
        assert len(asked) == 3  # nobody wants to know


class TestRuntimes:
    def test_nest_and_restore(self, gemm):
        twos = solution("ones", VALUE_RETURNING.replace("ones(", "zeros("))
        with enable_apply(data_set()) as outer:
            with enable_apply(data_set(solutions=(twos,))) as inner:
                assert get_runtime() is inner
                assert served_by(gemm(A, B)) == "fallback"
            assert get_runtime() is outer
            assert served_by(gemm(A, B)) == "solution"
        assert get_runtime() is None

    def test_stopped_out_of_order_leave_the_others(self):
        first, second = enable_apply(data_set()), enable_apply(data_set())
        first.stop()
        assert get_runtime() is second
        second.stop()
        assert get_runtime() is None

    def test_need_a_data_set(self, tmp_path):
        with pytest.raises(DataSetNotFound):
            enable_apply(tmp_path / "nowhere")

    def test_a_definition_that_changes_later_goes_to_its_fallback(self, tmp_path, caplog):
        made = on_disk(tmp_path)
        runtime = ApplyRuntime(tmp_path)
        (path,) = made.definitions_path.rglob("*.json")
        path.write_text("{}")
        assert runtime.dispatch("gemm", (A, B), fallback=lambda a, b: "fallback") == "fallback"
        assert "calls of 'gemm' go to their fallbacks" in caplog.text

    def test_are_off_if_the_environment_says_so(self, gemm, monkeypatch):
        monkeypatch.setenv("FIB_ENABLE_APPLY", "0")
        with enable_apply(data_set()) as runtime:
            assert served_by(gemm(A, B)) == "fallback"
            set_runtime(runtime)
            assert served_by(gemm(A, B)) == "fallback"
            assert runtime("gemm", args=(A, B), fallback=lambda A, B: 0) == 0
            assert runtime.plan("gemm", A, B, fallback=int) is int
            assert served_by(apply("gemm")(lambda A, B: torch.zeros(4, N))(A, B)) == "fallback"


class TestGuards:
    def test_accept_parameters_and_calls_without_gradients(self, gemm):
        weight = torch.nn.Parameter(B.clone())
        with enable_apply(data_set()):
            assert served_by(gemm(A, weight)) == "fallback"
            with torch.no_grad():
                assert [served_by(gemm(A, weight)) for _ in range(3)] == ["solution"] * 3
            assert served_by(gemm(A, weight)) == "fallback"
            with torch.inference_mode():
                assert [served_by(gemm(torch.randn(4, K), weight)) for _ in range(3)] == ["solution"] * 3
            fixed = torch.nn.Parameter(B.clone(), requires_grad=False)
            assert [served_by(gemm(A, fixed)) for _ in range(3)] == ["solution"] * 3
            assert served_by(gemm(A, B)) == "solution"

    @pytest.mark.parametrize("is_seen", [False, True])
    @pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_reject_nested_tensors(self, gemm, layout, is_seen):
        """Guards of torch end the process for a strided one."""
        nested = torch.nested.nested_tensor([torch.randn(4, K), torch.randn(3, K)], layout=layout)
        function = apply("gemm")(lambda A, B: torch.zeros(1))
        with enable_apply(data_set(), stats=True) as runtime:
            for _ in range(2 * is_seen):
                assert served_by(function(A, B)) == "solution"
            for args in ((nested, B), (A, nested)):
                assert served_by(function(*args)) == "fallback"
                assert served_by(apply("gemm", args=args, fallback=function)) == "fallback"
            assert served_by(function(A, B)) == "solution"
            assert runtime.stats()["gemm"].misses["tensor"] >= 4

    def test_reject_torch_function_modes_on_the_slow_path(self, gemm):
        class Mode(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                return function(*args, **(kwargs or {}))

        with enable_apply(data_set()):
            with Mode():
                assert served_by(gemm(A, B)) == "fallback"
            with torch.device("cpu"):
                assert served_by(gemm(A, B)) == "solution"


class TestHook:
    def test_is_called_with_and_without_an_active_runtime(self, gemm):
        told = []
        set_apply_hook(lambda name, arguments: told.append((name, list(arguments))))
        gemm(A, B=B)
        with enable_apply(data_set()):
            assert served_by(gemm(A, B)) == "solution"
            assert served_by(gemm(A, B)) == "solution"
            apply("gemm", kwargs={"A": A, "B": B})
        apply("other", args=(A,), fallback=lambda A: None)
        expected = [("gemm", ["A", "B"])] * 4 + [("other", ["arg0"])]
        assert told == expected
        set_apply_hook(None)
        get_apply_hook()("gemm", {})
        gemm(A, B)
        assert told == expected


class TestErrors:
    BAD = "def run(A, B):\n    raise ValueError('broken')\n"

    def test_are_raised_by_default(self, gemm):
        with enable_apply(data_set(solutions=(solution("ones", self.BAD),))), pytest.raises(ValueError, match="broken"):
            gemm(A, B)

    def test_are_caught_on_request_and_quarantine_the_solution(self, gemm, caplog):
        config = ApplyConfig(on_error="fallback")
        with enable_apply(data_set(solutions=(solution("ones", self.BAD),)), config, stats=True) as runtime:
            assert [served_by(gemm(A, B)) for _ in range(3)] == ["fallback"] * 3
            assert runtime.stats()["gemm"].errors == {"ones": 1}
            assert runtime.left_out() == {"ones": "it raised ValueError: broken"}
        assert "'ones' is quarantined: it raised ValueError: broken" in caplog.text

    def test_of_a_solution_promote_the_next_candidate(self, gemm):
        found = data_set(trace("bad", 0.1), trace("ones", 0.5), solutions=(solution("ones"), solution("bad", self.BAD)))
        with enable_apply(found, ApplyConfig(on_error="fallback")) as runtime:
            assert served_by(gemm(A, B)) == "fallback"
            for _ in range(2):  # the call that finds that the next one is not loaded requests it
                gemm(A, B)
                assert runtime.wait_until_built(300)
            assert served_by(gemm(A, B)) == "solution"


class TestStats:
    def test_count_calls_by_outcome(self, gemm):
        with enable_apply(data_set(), stats=True) as runtime:
            for _ in range(5):
                gemm(A, B)
            for _ in range(3):
                gemm(A[:3], B)
            for _ in range(2):
                gemm(A.double(), B.double())
            found = runtime.stats()["gemm"]
        assert (found.calls, found.hits) == (10, {"M=4": 5})
        assert found.misses == {"not recorded": 3, "tensor": 2}

    def test_are_exact_across_threads(self, gemm):
        with enable_apply(data_set(), stats=True) as runtime:
            gemm(A, B)
            threads = [threading.Thread(target=lambda: [gemm(A, B) for _ in range(2_000)]) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert runtime.stats()["gemm"].hits == {"M=4": 8_001}


class TestPolicies:
    def test_are_registered_atomically(self):
        registry = ApplyConfigRegistry()
        registry.register("gemm", ApplyConfig())
        not_settings = {}
        for clashing in (
            {"other": ApplyConfig(), "gemm": ApplyConfig()},
            {"other": ApplyConfig(), "new": not_settings},
        ):
            with pytest.raises(InvalidSetting):
                registry.register_many(clashing)
            assert [*registry.per_definition] == ["gemm"]
        registry.register_many({"gemm": ApplyConfig(aot_ratio=0)}, override=True)
        assert registry.get("gemm") == ApplyConfig(aot_ratio=0)

    @pytest.mark.parametrize(
        ("field", "value"), [("aot_ratio", 2), ("on_miss_policy", "guess"), ("max_atol", -1), ("on_error", "ignore")]
    )
    def test_with_invalid_values_are_rejected(self, field, value):
        with pytest.raises(InvalidSetting, match=field):
            ApplyConfig(**{field: value})


class TestBackgroundBuilds:
    def test_with_wait_seconds_the_first_call_waits_for_the_build(self, gemm):
        with ApplyRuntime(data_set(), ApplyConfig(aot_ratio=0.0), wait_seconds=60.0):
            assert served_by(gemm(A, B)) == "solution"


class TestShadow:
    def test_returns_the_fallback_s_result_and_quarantines_a_mismatch(self, gemm, caplog):
        with enable_apply(data_set(), ApplyConfig(shadow_ratio=1.0)) as runtime:
            assert [served_by(gemm(A, B)) for _ in range(3)] == ["fallback"] * 3
            assert "32 of 32 elements" in runtime.left_out()["ones"]
        assert "differ from the fallback's" in caplog.text


SETUP = """
def setup(A, B):
    return {"rows": A.shape[0]}

def run(A, B, rows):
    import torch
    return torch.ones(rows, B.shape[0])
"""
EQUIVALENT = frozenset({"ones"})
"""Makes the solution of this name the fallback in another form."""
MAPPED = ParameterMap(
    tuple(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("A", "B", "carried")),
    ("A", "B"),
)


def planned():
    """A data set whose solution has a ``setup``."""
    return data_set(solutions=(solution("ones", SETUP),))


class TestPlans:
    """Engines plan before each step."""

    def plan(self, runtime, *inputs, **options):
        return runtime.dispatcher("gemm").plan_setup(*inputs, fallback=lambda *_: 7, **options)

    def test_only_planned_calls_reach_solutions_with_setup(self, gemm):
        with enable_apply(planned(), stats=True) as runtime:
            assert served_by(gemm(A, B)) == "fallback"
            assert runtime.stats()["gemm"].misses == {"by plan only": 1}
            run = runtime.plan("gemm", A, B, fallback=lambda A, B: torch.zeros(1))
            assert served_by(run(A, B)) == "solution"
            assert served_by(run(A[:3], B)) == "fallback"

    def test_plan_setup_plans_only_solutions_with_setup(self):
        with enable_apply(data_set()) as runtime:
            assert self.plan(runtime, A, B) is None
        with enable_apply(planned()) as runtime:
            run = self.plan(runtime, A, B)
            assert served_by(run(A, B)) == "solution"
            assert run(A[:3], B) == 7
            assert self.plan(runtime, A, B, fallback_equivalents=EQUIVALENT) == ServedByFallback(None)

    def test_calls_of_planned_equivalents_are_counted(self):
        """A reader of metrics sees that they have a recorded key."""
        with enable_apply(planned(), stats=True) as runtime:
            found = self.plan(runtime, A, B, fallback_equivalents=EQUIVALENT)
            assert isinstance(found, ServedByFallback)
            found.count()
            found.count()
            assert runtime.stats()["gemm"].misses == {"the fallback is the best": 2}
            assert runtime.stats()["gemm"].hits == {}
            unrecorded = self.plan(runtime, A[:3], B)
            assert isinstance(unrecorded, ServedByFallback)
            unrecorded.count()
            assert runtime.stats()["gemm"].misses == {"the fallback is the best": 2, "not recorded": 1}

    def test_calls_that_differ_from_their_plan_are_counted(self):
        with enable_apply(planned(), stats=True) as runtime:
            run = self.plan(runtime, A, B)
            assert run(A[:3], B) == 7
            runtime.dispatcher("gemm").quarantine("ones", "it is wrong")
            assert run(A, B) == 7
            assert runtime.stats()["gemm"].misses == {"not as planned": 2}
            assert self.plan(runtime, A, B) is None

    def test_an_equivalent_with_a_setup_is_the_best_without_a_plan_as_well(self):
        """A captured call is not planned; a slower solution must not serve it."""
        solutions = solution("planned", SETUP), solution("ones")
        found = data_set(trace("planned", 0.1), trace("ones", 0.2), solutions=solutions)
        for config in (ApplyConfig(), ApplyConfig(require_speedup=False)):
            with enable_apply(found, config, stats=True) as runtime:
                dispatcher = runtime.dispatcher("gemm")
                own = dispatcher.route("own", MAPPED, lambda *_: 7, fallback_equivalents=frozenset({"planned"}))
                assert [own(A, B, None), own(A, B, None)] == [7, 7]
                assert runtime.stats()["gemm"].misses == {"the fallback is the best": 2}

    def test_a_reload_plans_with_new_solutions(self, tmp_path):
        found = on_disk(tmp_path, trace("ones"))
        with enable_apply(tmp_path) as runtime:
            assert self.plan(runtime, A, B) is None
            found.add_solutions([solution("planned", SETUP)])
            found.add_traces([trace("planned", 0.01)])
            runtime.reload()
            assert self.plan(runtime, A, B) is not None

    def test_errors_are_caught_on_request(self):
        source = SETUP.replace('return {"rows": A.shape[0]}', "raise ValueError")
        with enable_apply(data_set(solutions=(solution("ones", source),)), ApplyConfig(on_error="fallback")) as runtime:
            assert runtime.plan("gemm", A, B, fallback=int) is int
            assert runtime.left_out()["ones"] == "it raised ValueError"


def test_a_fallback_serves_where_its_equivalent_is_best():
    carried = []

    def fallback(A, B, carried_along):
        carried.append(carried_along)
        return torch.zeros(A.shape[0], B.shape[0])

    with enable_apply(data_set(), stats=True) as runtime:
        dispatcher = runtime.dispatcher("gemm")
        own = dispatcher.route("own", MAPPED, fallback, fallback_equivalents=EQUIVALENT)
        other = dispatcher.route("other", MAPPED, fallback)
        for _ in range(2):
            assert served_by(own(A, B, "with it")) == "fallback"
            assert served_by(other(A, B, "with it")) == "solution"
        assert carried == ["with it", "with it"]
        assert runtime.stats()["gemm"].misses == {"the fallback is the best": 2}
        dispatcher.quarantine("ones", "a test says so")
        assert served_by(other(A, B, None)) == "fallback"


class TestFork:
    def in_child(self, call):
        pid = os.fork()
        if pid == 0:
            try:
                call()
            except BaseException:  # noqa: BLE001 - no test continues in the child
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def test_a_child_keeps_its_functions_until_it_enables_routing_itself(self, gemm):
        def child():
            assert get_runtime() is None
            for serve in (gemm, lambda *args: runtime.dispatch("gemm", args, fallback=gemm)):
                assert served_by(serve(A, B)) == "fallback"
            assert "before this process was forked" in runtime.explain("gemm", A, B)
            with enable_apply(data_set()) as own:
                assert own.wait_until_built(300)
                assert served_by(gemm(A, B)) == "solution"
            assert served_by(gemm(A, B)) == "fallback"

        with enable_apply(data_set()) as runtime:
            gemm(A, B)
            self.in_child(child)
            assert served_by(gemm(A, B)) == "solution"

    def test_the_variable_enables_routing_in_the_child_at_its_first_use(self, gemm, monkeypatch, tmp_path):
        def child():
            assert get_runtime() is None  # it is made in the background
            assert wait_until_built(300)
            assert served_by(gemm(A, B)) == "solution"

        on_disk(tmp_path, trace("ones"))
        with enable_apply(data_set()):
            monkeypatch.setenv("FIB_ENABLE_APPLY", "1")
            monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
            self.in_child(child)


class TestUnusualFunctions:
    """Functions that engines decorate beside plain ones."""

    def test_named_parameters_are_matched_by_name_beside_variadic_ones(self):
        @apply("gemm")
        def gemm(B, A, **options):
            return torch.zeros(4, N)

        with enable_apply(data_set()):
            assert served_by(gemm(B, A)) == "solution"
            assert served_by(gemm(B, A, fast=True)) == "fallback"

    def test_a_parameter_without_an_output_s_name_is_no_output(self, caplog):
        @apply("gemm")
        def gemm(x, w, residual):
            return torch.zeros(4, N)

        residual = torch.full((4, N), 7.0)
        with enable_apply(data_set()):
            assert served_by(gemm(A, B, residual)) == "fallback"
        assert float(residual[0, 0]) == 7.0
        assert "parameter 'residual' is ambiguous" in caplog.text

    def test_inputs_in_another_order_are_not_matched_by_position(self, caplog):
        @apply("gemm")
        def gemm(B, other):
            return torch.zeros(4, N)

        with enable_apply(data_set()):
            assert served_by(gemm(B, A)) == "fallback"
        assert "'B' is in the place of 'A'" in caplog.text

    def test_parameters_may_have_the_names_of_builtins(self):
        @apply("gemm")
        def gemm(A, B, type=None, Exception=1):
            return torch.zeros(4, N)

        with enable_apply(data_set()):
            assert [served_by(gemm(A, B)), served_by(gemm(A, B, None, int("1")))] == ["solution"] * 2

    def test_coroutines_and_generators_are_rejected(self):
        with pytest.raises(CannotRoute, match="returns no result"):

            @apply("gemm")
            async def gemm(A, B):
                return None


class TestKeys:
    def test_builders_that_read_values_run_at_each_call(self, gemm, monkeypatch):
        class BySign(AxesOnlyKeyBuilder):
            def features(self, args):
                return (("is_positive", bool(args[0][0, 0] > 0)),)

            def build_from_workload(self, workload):
                return ApplyKey(workload.axes, (("is_positive", True),))

        monkeypatch.setattr(ApplyKeyFactory, "_builders", {**ApplyKeyFactory.registered(), "gemm": BySign})
        with enable_apply(data_set()):
            assert [served_by(gemm(x, B)) for x in (A.abs() + 1, A.abs() + 1, -A.abs() - 1)] == [
                "solution", "solution", "fallback",
            ]  # fmt: skip

    def test_calls_go_to_the_fallback_if_the_builder_raises(self, gemm, monkeypatch, caplog):
        class Failing(AxesOnlyKeyBuilder):
            def features(self, args):
                raise IndexError("nothing there")

        monkeypatch.setattr(ApplyKeyFactory, "_builders", {**ApplyKeyFactory.registered(), "gemm": Failing})
        with enable_apply(data_set(), stats=True) as runtime:
            assert [served_by(gemm(A, B)) for _ in range(3)] == ["fallback"] * 3
            assert runtime.stats()["gemm"].misses == {"key": 3}
        assert caplog.text.count("the key builder raised IndexError: nothing there") == 1


class TestLifecycle:
    def test_a_runtime_may_be_entered_again(self):
        with enable_apply(data_set()) as runtime:
            with runtime:
                pass
            assert get_runtime() is runtime
        assert get_runtime() is None

    def test_counts_outlast_a_reload(self, gemm):
        with enable_apply(data_set(), stats=True) as runtime:
            gemm(A, B)
            runtime.reload()
            gemm(A, B)
            assert runtime.stats()["gemm"].hits == {"M=4": 2}

    def test_the_next_candidate_is_built_ahead_if_the_first_fails(self, gemm):
        found = data_set(
            trace("bad", 0.1), trace("ones", 0.5), solutions=(solution("ones"), solution("bad", "raise ImportError\n"))
        )
        with enable_apply(found):
            assert served_by(gemm(A, B)) == "solution"


class TestResolversThatFail:
    """The engine's call must go on, whatever `on_error` says of solutions."""

    @pytest.mark.parametrize("result", [None, 3, ["gemm"]])
    def test_another_result_than_a_name_goes_to_the_fallback(self, result, caplog):
        def resolver(A, B):
            return result

        @apply(resolver)
        def gemm(A, B):
            return torch.full((A.shape[0], N), FALLBACK)

        with enable_apply(data_set()) as runtime:
            assert [served_by(gemm(A, B)) for _ in range(3)] == ["fallback"] * 3
            assert apply(resolver, args=(A, B), fallback=lambda *_: "served") == "served"
            with pytest.raises(NoKernel, match="its resolver named no definition"):
                runtime(resolver, args=(A, B))
        (warning,) = [text for text in caplog.messages if "resolver" in text]
        assert f"returned {result!r} instead of the name of a definition" in warning
        assert f"test_apply.py:{resolver.__code__.co_firstlineno}" in warning

    def test_an_exception_goes_to_the_fallback(self, caplog):
        @apply(lambda A, B: f"gemm_{B.shape[7]}")
        def gemm(A, B):
            return torch.full((A.shape[0], N), FALLBACK)

        with enable_apply(data_set()):
            assert [served_by(gemm(A, B)) for _ in range(3)] == ["fallback"] * 3
        assert sum("raised IndexError" in text for text in caplog.messages) == 1

    @pytest.mark.parametrize("name", [3, None, ("gemm",)])
    def test_what_is_neither_a_name_nor_a_resolver_is_refused_at_once(self, name):
        with pytest.raises(TypeError, match="needs the name of a definition or a resolver"):
            apply(name)

    def test_a_decorator_without_a_name_says_how_to_write_it(self):
        @apply
        def scale(x: Any) -> Any:
            return x

        with pytest.raises(TypeError, match=r"Write @apply\('name of a definition'\)"):
            scale(A)


def test_a_function_that_does_not_fit_is_named_once(caplog):
    @apply("gemm")
    def other(inp, res, factor, mode):
        return inp

    for _ in range(3):
        with enable_apply(data_set()):
            other(A, B, 1.0, "fast")
    (warning,) = [text for text in caplog.messages if "cannot be routed" in text]
    assert "other" in warning
    assert f"test_apply.py:{other.__wrapped__.__code__.co_firstlineno}" in warning


class TestExplainCall:
    def test_it_names_the_solution_or_the_reason(self):
        with enable_apply(data_set(), stats=True) as runtime:
            explain = runtime.explain
            assert explain("gemm", A, B).startswith("ones: M=")
            assert explain("gemm", A, B=B).startswith("ones: M=")
            assert explain("gemm", A.double(), B).startswith("the fallback (tensor): A: ")
            assert explain("gemm", A).startswith("the fallback (arguments): ")
            assert explain("gemm", A[:3], B).startswith("the fallback (not recorded): M=3")
            with pytest.raises(KeyError, match="no definition is named 'gem'"):
                explain("gem", A, B)
            runtime.dispatcher("gemm").quarantine("ones", "it is wrong")
            assert explain("gemm", A, B).startswith("the fallback (quarantined): M=")
            assert runtime.stats()["gemm"].calls == 0

    def test_when_routing_is_off(self, monkeypatch):
        monkeypatch.setenv("FIB_ENABLE_APPLY", "0")
        with enable_apply(data_set()) as runtime:
            assert runtime.explain("gemm", A, B) == "the fallback: routing is off (FIB_ENABLE_APPLY is '0')"
