"""Solutions that sample tokens, judged by the evaluator of sampling on small vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import attrs
import pytest
from fib_compile.device import is_cuda_available
from public_data_set import needs_data_set
from solution_cases import Case, Check, children

TORCH = "sampling_torch.py"
TRITON = "sampling_triton.py"
TOP_K = "top_k_sampling_from_probs_v128256"
TOP_P = "top_p_sampling_from_probs_v129280"
BOTH = "top_k_top_p_sampling_from_probs_v129280"
EVEN = [0.125] * 8
TIED = [0.25, 0.2, 0.05, 0.2, 0.2, 0.05, 0.025, 0.025]
STEEP = [0.0, 0.01, 0.9, 0.0, 0.05, 0.02, 0.02, 0.0]


def _rows(definition: str, about: str, *rows: tuple[list[float], Any, float | None]) -> Case:
    """A case with these probabilities, top-k and top-p."""
    probs, top_k, top_p = ([*column] for column in zip(*rows, strict=True))
    limits = {"top_k": top_k, "top_p": top_p}
    tensors = {"probs": probs, **{name: values for name, values in limits.items() if values[0] is not None}}
    axes, constants = {"batch_size": len(rows)}, {"vocab_size": len(probs[0])}
    return Case(TORCH, definition, axes, tensors, constants, about=about)


def _random(definition: str, seed: int) -> Case:
    """A case of random rows, of which a program reads the longer ones in several parts."""
    size = (500, 1000, 5000)[seed]
    return Case(TORCH, definition, {"batch_size": 3}, {}, {"vocab_size": size}, seed=seed, about=f"{size} tokens")


CASES = (
    *(_random(definition, seed) for definition in (TOP_K, TOP_P, BOTH) for seed in range(3)),
    _rows(TOP_K, "ties", (TIED, 2, None), (TIED, 5, None), (EVEN, 3, None), (STEEP, 1, None)),
    _rows(TOP_K, "no limit", (TIED, 0, None), (TIED, -1, None), (TIED, 8, None), (TIED, 100, None)),
    _rows(TOP_P, "ties", (TIED, None, 0.5), (EVEN, None, 0.3), (STEEP, None, 0.89), (STEEP, None, 0.91)),
    _rows(TOP_P, "extremes", (TIED, None, 0.0), (TIED, None, 1.0), (EVEN, None, -1.0), (STEEP, None, 1.5)),
    _rows(BOTH, "ties", (TIED, 4, 0.6), (EVEN, 5, 0.5), (STEEP, 2, 0.97), (STEEP, 7, 0.5)),
    _rows(BOTH, "extremes", (TIED, 0, 0.5), (TIED, 3, 1.0), (STEEP, 1, 0.0), (EVEN, 100, 0.0)),
    _rows(BOTH, "one row", (TIED, 3, 0.9)),
)
TRITON_CASES = tuple(attrs.evolve(case, solution=TRITON) for case in CASES)

pytestmark = needs_data_set
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs the extra 'triton'")


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Checks a case on the CPU."""
    yield from children("cpu", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Checks a case on a CUDA device."""
    if not is_cuda_available():
        pytest.skip("there is no CUDA device")
    yield from children("cuda:0", tmp_path_factory.mktemp("cache"))


@needs_triton
@pytest.mark.parametrize("case", TRITON_CASES, ids=str)
def test_draws_of_triton_follow_the_reference(case: Case, on_cpu: Check) -> None:
    on_cpu(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_follow_the_reference(case: Case, on_cpu: Check) -> None:
    on_cpu(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES + TRITON_CASES, ids=str)
def test_draws_follow_the_reference_on_a_device_and_from_a_cuda_graph(case: Case, on_gpu: Check) -> None:
    on_gpu(case)
