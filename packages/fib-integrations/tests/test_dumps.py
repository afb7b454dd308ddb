"""Reader of FlashInfer's call dumps, without FlashInfer."""

import importlib.metadata
import inspect
import sys

import pytest
import torch

pytest.importorskip("fib_tracer", reason="the extra `tracing` is not installed")

from fib_integrations.dumps import call_reader
from fib_tracer.dump_calls import GROUP, NotCovered, RecordedCall
from flashinfer_stand_ins import behaviour
from flashinfer_stand_ins.examples import EXAMPLES, KV_INDICES, KV_INDPTR, caches, last_page_len, random

WRAPPER = "BatchDecodeWithPagedKVCacheWrapper"


class Recorder:
    """Records the calls of a test as FlashInfer's own dump does."""

    def __init__(self, flashinfer, monkeypatch):
        self.calls: list[RecordedCall] = []
        for module in [m for name, m in sys.modules.items() if name.startswith("flashinfer.")]:
            for name, value in list(vars(module).items()):
                if inspect.isfunction(value) and value.__module__.startswith("flashinfer."):
                    monkeypatch.setattr(module, name, self._recording(value, name))
                elif inspect.isclass(value) and issubclass(value, behaviour.Wrapper):
                    for method in ("__init__", "plan", "run"):
                        recording = self._recording(getattr(value, method), f"{name}.{method}")
                        monkeypatch.setattr(value, method, recording)

    def _recording(self, function, name):
        signature = inspect.signature(function)

        def recording(*args, **kwargs):
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            arguments.update(arguments.pop("kwargs", {}))
            owner = arguments.pop("self", None)
            kept = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
            instance = None if owner is None else str(id(owner))
            self.calls.append(RecordedCall(function.__module__, name, kept, instance))
            return function(*args, **kwargs)

        return recording


def convert_all(calls, reader):
    for call in calls:
        assert reader.knows(call.module, call.function)
        found = reader.read(call)
        if found is not None:
            yield found


DUMPED = [example for example in EXAMPLES if "forward" not in example.name]
"""FlashInfer dumps the run that a ``forward`` makes, without the settings that it replaces."""


@pytest.mark.parametrize("example", DUMPED, ids=lambda example: example.name)
def test_dumped_calls_are_converted(example, flashinfer, monkeypatch, inputs_of_examples):
    recorder = Recorder(flashinfer, monkeypatch)
    example.prepare(flashinfer)()
    (found,) = convert_all(recorder.calls, call_reader())
    assert found.definition == example.definition.name
    assert list(found.inputs) == list(example.definition.inputs)
    for name, value in inputs_of_examples[example.name].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found.inputs[name].float(), value.float())
        else:
            assert found.inputs[name] == value


def call(function, instance="one", /, **arguments):
    return RecordedCall("flashinfer.decode", function, arguments, instance)


MADE = call(f"{WRAPPER}.__init__", float_workspace_buffer=torch.empty(1), kv_layout="NHD")
PLANNED = call(
    f"{WRAPPER}.plan",
    indptr=KV_INDPTR,
    indices=KV_INDICES,
    last_page_len=last_page_len(1),
    num_qo_heads=4,
    num_kv_heads=2,
    head_dim=8,
    page_size=1,
    q_data_type=torch.bfloat16,
)
RUN = call(f"{WRAPPER}.run", q=random(3, 4, 8), paged_kv_cache=caches(1))


def test_plan_belongs_to_its_instance():
    reader = call_reader()
    assert reader.read(MADE) is None
    assert reader.read(PLANNED) is None
    assert reader.read(RUN) is not None
    with pytest.raises(NotCovered, match="its plan was not recorded"):
        reader.read(call(f"{WRAPPER}.run", "two", **RUN.arguments))


def test_wrapper_without_recorded_construction_is_not_covered():
    reader = call_reader()
    reader.read(PLANNED)
    with pytest.raises(NotCovered, match="the construction of its wrapper was not recorded"):
        reader.read(RUN)


def test_subclass_of_a_wrapper_is_known():
    reader = call_reader()
    for recorded in (MADE, PLANNED):
        reader.read(call(f"CUDAGraph{recorded.function}", **recorded.arguments))
    assert reader.read(call(f"CUDAGraph{WRAPPER}.run", **RUN.arguments)) is not None


def test_unsupported_calls_are_not_covered():
    reader = call_reader()
    reader.read(MADE)
    reader.read(PLANNED)
    with pytest.raises(NotCovered, match="it has quantisation scales"):
        reader.read(call(f"{WRAPPER}.run", **RUN.arguments, k_scale=0.5))
    with pytest.raises(NotCovered, match="sinks is given"):
        reader.read(call(f"{WRAPPER}.run", **RUN.arguments, sinks=torch.ones(4)))
    with pytest.raises(NotCovered, match="recorded as text"):
        reader.read(call(f"{WRAPPER}.run", q=random(3, 4, 8), paged_kv_cache=object()))
    with pytest.raises(NotCovered, match="was not recorded"):
        reader.read(call(f"{WRAPPER}.run", q=random(3, 4, 8)))
    reader.read(call(f"{WRAPPER}.plan", **PLANNED.arguments, window_left=16))
    with pytest.raises(NotCovered, match="sliding window"):
        reader.read(RUN)


def test_different_epsilon_than_the_declared_one_is_not_covered():
    arguments = {"input": random(3, 128), "weight": random(128)}
    found = call_reader().read(RecordedCall("flashinfer.norm", "rmsnorm", arguments))
    assert found.definition == "rmsnorm_h128"
    with pytest.raises(NotCovered, match="eps is 1e-05"):
        call_reader().read(RecordedCall("flashinfer.norm", "rmsnorm", {**arguments, "eps": 1e-5}))


def test_reader_does_not_know_other_functions():
    reader = call_reader()
    assert not reader.knows("flashinfer.norm", "gemma_rmsnorm")
    assert not reader.knows("another_library.norm", "rmsnorm")
    assert reader.knows("flashinfer.mla._batch_mla._wrapper", "BatchMLAPagedAttentionWrapper.run")


def test_reader_is_an_entry_point_of_fib_tracer():
    points = {point.name: point.value for point in importlib.metadata.entry_points(group=GROUP)}
    assert points["flashinfer"] == "fib_integrations.dumps:call_reader"
