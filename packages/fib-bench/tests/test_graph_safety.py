"""Tests of graph safety: what a timing must have done for a solution to be called safe in CUDA graphs."""

from collections import Counter
from types import SimpleNamespace

import pytest
from fib_bench.judge.passes import Sample
from fib_bench.judge.timer import Timer

from .samples import make_definition

ALL = ("at", "seq_lens", "mask")
HAS_SETUP = {"has_setup": True, "keeps_integers": True}


@pytest.mark.parametrize(
    ("changed", "timing", "problem"),
    [
        (ALL, {}, ""),
        (("at", "seq_lens"), {}, "integer or boolean inputs were not redrawn: mask"),
        (("at",), {}, "integer or boolean inputs were not redrawn: mask, seq_lens"),
        (("at", "mask"), {"determined": "seq_lens"}, ""),
        (("at", "mask"), {"padded": "seq_lens"}, ""),
        (("at", "mask"), {"padded": "seq_lens", "is_padding_right": False}, "were not redrawn: seq_lens"),
        (ALL, {"constraints": ("seq_lens.min().item() >= 0",)}, "were not redrawn: seq_lens"),
        (ALL, {"constraints": ("seq_lens.min().item() >= 0",), "moved": {"seq_lens": None}}, ""),
        (ALL, {"constraints": ("at.min().item() >= 0",)}, ""),
        (ALL, {"method": "eager"}, "it was timed by the method 'eager'"),
        (ALL, HAS_SETUP, "its setup makes a plan on the host"),
        (ALL, {"keeps_integers": True}, "its integers were not redrawn, because the baseline has a setup"),
        (ALL, {"verified": 9}, "only 9 replays were compared"),
        (ALL, {"reads": ("k.py:3 (.item())",)}, "it waits for the device in k.py:3 (.item())"),
        (ALL, {"waits": ("k.py:9 (synchronize)",)}, "it waits for the device in k.py:9 (synchronize)"),
    ],
)
def test_verified_replays_with_other_integers_are_safe(changed, timing, problem):
    inputs = {"x": "float32[n]", "at": "int64[m]", "seq_lens": "int32[m]", "mask": "bool[m]"}
    context = SimpleNamespace(is_cuda=True)
    options = {"has_setup": False, "keeps_integers": False, "context": context, **timing}
    code, constraints = "def run(x, at, seq_lens, mask): ...", options.pop("constraints", ())
    definition = make_definition(inputs, {"y": "float32[n]"}, code, constraints=constraints)
    compared = Counter({Sample.PUBLISHED: options.pop("verified", 10), Sample.OTHER: 90})
    prepared = SimpleNamespace(
        layout=SimpleNamespace(inputs=inputs),
        checker=SimpleNamespace(definition=definition),
        determined_integers=frozenset({options.pop("determined", "")}),
        padded_integers=frozenset({options.pop("padded", "")}),
        moved=options.pop("moved", {}),
    )
    timer = SimpleNamespace(
        method=options.pop("method", "handshake"),
        passes=SimpleNamespace(
            changed_names=frozenset({"x", *changed}), reads=options.pop("reads", ()), waits=options.pop("waits", ())
        ),
        verification=SimpleNamespace(compared=compared),
    )
    is_padding_right = options.pop("is_padding_right", True)
    timer._function, timer._prepared = SimpleNamespace(**options), prepared
    found = Timer.graph_fields(timer, is_padding_right=is_padding_right)
    assert found["graph_safe"] is (not problem)
    assert problem in str(found.get("graph_unsafe_reason", ""))
