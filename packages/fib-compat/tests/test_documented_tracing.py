"""Documented behaviour of ``flashinfer_bench.tracing``, as its users write it."""

import compat_samples as samples
import pytest
import torch
from compat_samples import NAME
from flashinfer_bench import TraceSet, TracingConfig, TracingConfigRegistry, apply, disable_tracing, enable_tracing
from flashinfer_bench.tracing import PolicyRegistry, TracingRuntime, WorkloadEntry
from flashinfer_bench.tracing.policy import FilterPolicy, InputDumpPolicy
from flashinfer_bench.tracing.presets import (
    DumpAllPolicy,
    DumpIntPolicy,
    DumpNonePolicy,
    KeepAllPolicy,
    KeepFirstKByAxesPolicy,
    KeepFirstKPolicy,
    KeepFirstPolicy,
    KeepNonePolicy,
    get_attention_only_configs,
    get_default_configs,
    get_full_configs,
)

W = torch.ones(64)
KEEP = TracingConfig(filter_policy="keep_all")


class KeepLast:
    """A filter policy of a program of the old package: no base class."""

    def __init__(self):
        self.entries: list[WorkloadEntry] = []

    def submit(self, entry):
        self.entries.append(entry)

    def drain(self):
        kept, self.entries = self.entries[-1:], []
        return kept

    def reset(self):
        self.entries = []


class DumpWeight:
    """A dump policy of a program of the old package: no base class."""

    def dump(self, inputs):
        return [name for name in inputs if name == "weight"]


@pytest.fixture
def root(tmp_path):
    return samples.write(tmp_path)


def entry(batch, order=0):
    return WorkloadEntry(def_name=NAME, axes={"batch": batch}, inputs_to_dump={}, order=order)


def norm(batch):
    return apply(NAME, args=(torch.ones(batch, 64), W), kwargs={}, fallback=lambda x, weight: x * weight)


def collected(root):
    """The batch sizes in the data set besides the two that it had."""
    found = TraceSet.from_path(str(root)).workloads[NAME]
    return [trace.workload.axes["batch"] for trace in found if trace.workload.uuid not in ("b4", "b8")]


class TestPolicies:
    def test_classes_without_a_base_class_work(self, root):
        PolicyRegistry.register_filter_policy("compat_keep_last", KeepLast, override=True)
        PolicyRegistry.register_input_dump_policy("compat_weight", DumpWeight, override=True)
        config = TracingConfig(input_dump_policy="compat_weight", filter_policy="compat_keep_last")
        with enable_tracing(str(root), config):
            norm(11)
            norm(12)
        assert collected(root) == [12]
        trace_set = TraceSet.from_path(str(root))
        (trace,) = [t for t in trace_set.workloads[NAME] if t.workload.axes["batch"] == 12]
        assert trace.workload.inputs["weight"].type == "safetensors"
        assert trace.workload.inputs["x"].type == "random"

    def test_protocols_recognise_such_classes(self):
        assert isinstance(KeepLast(), FilterPolicy)
        assert isinstance(DumpWeight(), InputDumpPolicy)
        assert not isinstance(object(), FilterPolicy)

    def test_the_registry_decorates_and_lists(self):
        @PolicyRegistry.register_filter_policy("compat_decorated", override=True)
        class Mine(KeepLast):
            pass

        assert PolicyRegistry.get_filter_policy("compat_decorated") is Mine
        assert "compat_decorated" in PolicyRegistry.list_filter_policies()
        assert {"dump_all", "dump_none", "dump_int"} <= set(PolicyRegistry.list_input_dump_policies())

    def test_dump_all_chooses_scalars_too(self):
        inputs = {"x": torch.ones(2), "scale": 0.5, "is_causal": True}
        assert TracingConfig("dump_all").get_inputs_to_dump(tuple(inputs), inputs.values()) == inputs

    def test_a_name_registers_once(self):
        PolicyRegistry.register_filter_policy("compat_once", KeepLast, override=True)
        with pytest.raises(ValueError):
            PolicyRegistry.register_filter_policy("compat_once", KeepFirstPolicy)

    def test_unknown_names_are_value_errors(self):
        with pytest.raises(ValueError):
            PolicyRegistry.get_filter_policy("no_such")
        known = ", ".join(map(repr, PolicyRegistry.list_input_dump_policies()))  # those of other tests, too
        with pytest.raises(ValueError, match=f"known are {known}$"):
            PolicyRegistry.get_input_dump_policy("zz")

    def test_dump_policies(self):
        inputs = {"q": torch.ones(2), "indptr": torch.zeros(2, dtype=torch.int32), "mask": torch.ones(1).bool(), "s": 1}
        assert DumpIntPolicy().dump(inputs) == ["indptr", "mask"]
        assert DumpNonePolicy().dump(inputs) == []
        assert set(DumpAllPolicy().dump(inputs)) >= {"q", "indptr", "mask"}

    @pytest.mark.parametrize(
        ("policy", "kept"),
        [
            (KeepAllPolicy(), [1, 1, 2]),
            (KeepNonePolicy(), []),
            (KeepFirstPolicy(), [1]),
            (KeepFirstKPolicy(k=2), [1, 1]),
            (KeepFirstKByAxesPolicy(k=1), [1, 2]),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_filter_policies(self, policy, kept):
        for order, batch in enumerate((1, 1, 2)):
            policy.submit(entry(batch, order))
        assert [each.axes["batch"] for each in policy.drain()] == kept
        policy.submit(entry(3))
        policy.reset()
        assert policy.drain() == []

    def test_k_must_be_positive(self):
        with pytest.raises(ValueError):
            KeepFirstKPolicy(k=0)


class TestConfig:
    def test_filter_policies_have_independent_state(self):
        config = TracingConfig(filter_policy="keep_first_k", filter_policy_kwargs={"k": 1})
        first, second = config.create_filter_policy(), config.create_filter_policy()
        assert first is not second
        first.submit(entry(1))
        second.submit(entry(2))
        assert [each.axes["batch"] for each in second.drain()] == [2]

    def test_an_unknown_filter_policy_is_a_value_error(self):
        with pytest.raises(ValueError):
            TracingConfig(filter_policy="no_such").create_filter_policy()

    def test_inputs_to_dump_by_policy_and_by_names(self):
        names, values = ["x", "indptr"], [torch.ones(1), torch.zeros(2, dtype=torch.int32)]
        found = TracingConfig(input_dump_policy="dump_int").get_inputs_to_dump(names, values)
        assert list(found) == ["indptr"]
        assert found["indptr"] is values[1]
        assert list(TracingConfig(input_dump_policy=["x"]).get_inputs_to_dump(names, values)) == ["x"]
        assert TracingConfig().get_inputs_to_dump(names, values) == {}

    def test_a_name_that_is_no_input_is_a_value_error(self):
        with pytest.raises(ValueError):
            TracingConfig(input_dump_policy=["y"]).get_inputs_to_dump(["x"], [1])

    def test_a_registry_chains_and_may_have_no_default(self):
        registry = TracingConfigRegistry(default=None).register("a", KEEP).register_many({"b": KEEP})
        assert (registry.get("a"), registry.get("b"), registry.get("c")) == (KEEP, KEEP, None)

    def test_presets_are_registries(self):
        for preset in (get_default_configs(), get_full_configs(), get_attention_only_configs()):
            assert isinstance(preset, TracingConfigRegistry)

    def test_settings_dump(self):
        config = TracingConfig(input_dump_policy=["x"], filter_policy="keep_first_k", filter_policy_kwargs={"k": 2})
        assert TracingConfig.model_validate_json(config.model_dump_json()) == config
        assert TracingConfig.model_validate(config.model_dump()) == config


class TestRuntime:
    def test_an_entry_has_the_documented_fields(self):
        made = entry(3, order=5)
        assert (made.def_name, made.axes, made.order, made.cuda_graph_snapshot) == (NAME, {"batch": 3}, 5, None)
        assert WorkloadEntry(NAME, {"batch": 3}, {"x": 1}, 0).inputs_to_dump == {"x": 1}

    def test_collect_and_flush(self, root):
        with TracingRuntime(TraceSet.from_path(str(root)), KEEP) as runtime:
            assert TracingRuntime.get_instance() is runtime
            runtime.collect(NAME, (torch.ones(5, 64), W), {})
            runtime.collect(NAME, args=(torch.ones(6, 64),), kwargs={"weight": W})
            runtime.flush()
            assert sorted(collected(root)) == [5, 6]
        assert TracingRuntime.get_instance() is None

    def test_collect_skips_a_bad_call(self, root):
        runtime = TracingRuntime(TraceSet.from_path(str(root)), KEEP)
        runtime.start()
        runtime.collect("unknown", (torch.ones(5, 64), W), {})
        runtime.collect(NAME, (torch.ones(5, 32), W), {})
        runtime.collect(NAME, (torch.ones(64), W), {})
        runtime.collect(NAME, (), {})
        runtime.collect(NAME, (torch.ones(5, 64), W), {"no_such": 1})
        runtime.collect(NAME, (torch.ones(7, 64), W), {})
        runtime.stop()
        assert collected(root) == [7]

    def test_the_object_is_used_and_not_its_folder(self, root):
        """A definition that is in memory only is recorded."""
        trace_set = TraceSet.from_path(str(root))
        trace_set.definitions["other_h64"] = samples.definition("other_h64")
        with TracingRuntime(trace_set, KEEP) as runtime:
            runtime.collect("other_h64", (torch.ones(5, 64), W), {})
        assert [trace.workload.axes["batch"] for trace in trace_set.workloads["other_h64"]] == [5]

    def test_stop_is_last_in_first_out(self, root):
        trace_set = TraceSet.from_path(str(root))
        first, second = TracingRuntime(trace_set, KEEP), TracingRuntime(trace_set, KEEP)
        first.start()
        second.start()
        with pytest.raises(RuntimeError):
            first.stop()
        second.stop()
        first.stop()

    def test_a_configuration_for_an_absent_definition_warns_and_goes_on(self, root, caplog):
        with enable_tracing(str(root), {NAME: KEEP, "absent_d7": KEEP}):
            norm(9)
        assert collected(root) == [9]
        assert "absent_d7" in caplog.text

    def test_a_definition_without_settings_is_not_recorded(self, root):
        with enable_tracing(str(root), TracingConfigRegistry(default=None, per_definition={"other": KEEP})):
            norm(9)
        assert collected(root) == []

    def test_disable_writes(self, root):
        enable_tracing(str(root), KEEP)
        norm(9)
        disable_tracing()
        disable_tracing()
        norm(10)
        assert collected(root) == [9]

    def test_the_variable_starts_a_runtime(self, root, run):
        program = (
            "from flashinfer_bench.tracing import TracingRuntime\n"
            "assert TracingRuntime.get_instance() is not None\n"
            "assert TracingRuntime.get_instance() is TracingRuntime.get_instance()\n"
        )
        run(program, FIB_ENABLE_TRACING="1", FIB_DATASET_PATH=str(root))
