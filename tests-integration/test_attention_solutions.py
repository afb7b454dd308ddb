"""Attention and CUDA solutions, compared with their definitions' references on tiny workloads.

Triton solutions run in a child process, because Triton reads ``TRITON_INTERPRET`` only when it is imported. On the CPU
the child interprets them; on a GPU it also captures them in a CUDA graph.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import attrs
import pytest
import torch
from fib_bench import make_inputs
from fib_compile import BuilderRegistry, Runnable
from fib_compile.device import is_cuda_available
from fib_schema import BuildSpec, Definition, RandomInput, Solution, SourceFile, Workload, parse_json
from public_data_set import data_set_path, needs_data_set

HERE = Path(__file__).parent
TOLERANCE = 1e-2
GQA_DECODE = "gqa_paged_decode_triton.py"
GQA_PAGED = "gqa_paged_prefill_triton.py"
GQA_RAGGED = "gqa_ragged_prefill_triton.py"
MLA_DECODE = "mla_paged_decode_triton.py"
MLA_PAGED = "mla_paged_prefill_triton.py"
MLA_RAGGED = "mla_ragged_prefill_triton.py"
DSA = "dsa_paged_triton.py"
FAMILIES = {
    GQA_DECODE: "gqa_paged_decode_*",
    GQA_PAGED: "gqa_paged_prefill_causal_*",
    GQA_RAGGED: "gqa_ragged_prefill_causal_*",
    MLA_DECODE: "mla_paged_decode_*",
    MLA_PAGED: "mla_paged_prefill_causal_*",
    MLA_RAGGED: "mla_ragged_prefill_causal_*",
    DSA: "dsa_sparse_attention_*",
}
"""The definitions that each solution implements."""
VALUE_RETURNING = (GQA_PAGED, MLA_DECODE, MLA_RAGGED)
SIZES = {
    "batch_size": 3,
    "len_indptr": 4,
    "num_kv_indices": 8,
    "num_pages": 12,
    "num_tokens": 2,
    "total_kv": 30,
    "total_q": 6,
}
"""Tiny values for the variable axes of all attention definitions; together they satisfy the constraints."""


@attrs.frozen
class Case:
    """A solution, its definition, and a workload."""

    solution: str
    definition: str
    axes: Mapping[str, int] = SIZES
    """Sizes of at least the definition's variable axes."""
    tensors: Mapping[str, list[int]] = attrs.field(factory=dict)
    """Integer inputs with fixed values."""

    def __str__(self) -> str:
        return f"{self.solution}-{self.definition}"


def _paged(
    solution: str,
    definition: str,
    kv_indptr: list[int],
    last: list[int] | None = None,
    qo_indptr: list[int] | None = None,
) -> Case:
    """A case of attention over these pages; with ragged keys, a page is one key.

    Args:
        solution: The file of the solution.
        definition: The name of the definition.
        kv_indptr: Offsets of pages.
        last: Lengths of the last pages, where pages have more than one token.
        qo_indptr: Offsets of queries, for a prefill.
    """
    total = kv_indptr[-1]
    axes = {"batch_size": len(kv_indptr) - 1, "len_indptr": len(kv_indptr), "num_pages": total + 3}
    axes |= {"num_kv_indices": total, "total_kv": total, "total_q": qo_indptr[-1] if qo_indptr else 0}
    given = {"kv_indptr": kv_indptr, "kv_last_page_len": last, "qo_indptr": qo_indptr}
    return Case(solution, definition, axes, {name: values for name, values in given.items() if values})


HARD_CASES = (
    _paged(GQA_DECODE, "gqa_paged_decode_h5_kv1_d128_ps1", [0, 0, 3, 73, 74]),
    _paged(GQA_DECODE, "gqa_paged_decode_h24_kv8_d128_ps1", [0, 2, 2]),
    _paged(GQA_DECODE, "gqa_paged_decode_h6_kv1_d128_ps64", [0, 5, 5, 6], [17, 1, 9]),
    _paged(GQA_DECODE, "gqa_paged_decode_h32_kv4_d128_ps64", [0, 1, 3], [64, 1]),
    _paged(GQA_PAGED, "gqa_paged_prefill_causal_h24_kv8_d128_ps1", [0, 90, 90, 95], None, [0, 9, 11, 11]),
    _paged(GQA_PAGED, "gqa_paged_prefill_causal_h6_kv1_d128_ps1", [0, 20, 95], None, [0, 20, 24]),
    _paged(GQA_PAGED, "gqa_paged_prefill_causal_h5_kv1_d128_ps64", [0, 1, 2, 4, 6], [7, 64, 9, 30], [0, 3, 3, 4, 34]),
    _paged(GQA_PAGED, "gqa_paged_prefill_causal_h16_kv1_d128_ps64", [0, 2], [64, 0], [0, 12]),
    _paged(GQA_RAGGED, "gqa_ragged_prefill_causal_h24_kv8_d128", [0, 90, 90, 95], None, [0, 9, 11, 11]),
    _paged(GQA_RAGGED, "gqa_ragged_prefill_causal_h5_kv1_d128", [0, 0, 30, 103], None, [0, 0, 30, 34]),
    _paged(GQA_RAGGED, "gqa_ragged_prefill_causal_h32_kv4_d128", [0, 70, 71], None, [0, 70, 71]),
    _paged(MLA_DECODE, "mla_paged_decode_h8_ckv512_kpe64_ps1", [0, 0, 3, 40]),
    _paged(MLA_DECODE, "mla_paged_decode_h16_ckv512_kpe64_ps64", [0, 4, 4, 5], [17, 1, 64]),
    _paged(MLA_PAGED, "mla_paged_prefill_causal_h8_ckv512_kpe64_ps1", [0, 50, 50, 52], None, [0, 9, 11, 11]),
    _paged(MLA_PAGED, "mla_paged_prefill_causal_h16_ckv512_kpe64_ps64", [0, 1, 2, 4], [30, 64, 9], [0, 2, 2, 9]),
    _paged(MLA_RAGGED, "mla_ragged_prefill_causal_h8_qk192_vo128", [0, 90, 90, 95], None, [0, 9, 11, 11]),
    _paged(MLA_RAGGED, "mla_ragged_prefill_causal_h16_qk192_vo128", [0, 20, 93], None, [0, 20, 21]),
    Case(DSA, "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps1", {"num_tokens": 3, "num_pages": 150}),
    Case(DSA, "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64", {"num_tokens": 3, "num_pages": 3}),
)
"""Sequences without keys, without queries, shorter than a page, with fewer queries than keys; padding."""
CUDA_CASES = (
    Case("rmsnorm.cu", "rmsnorm_h128", {"batch_size": 5}),
    Case("rmsnorm.cu", "rmsnorm_h1536", {"batch_size": 1}),
    Case("rmsnorm.cu", "rmsnorm_h7168", {"batch_size": 5}),
    Case("gemm.cu", "gemm_n128_k2048", {"M": 1}),
    Case("gemm.cu", "gemm_n256_k7168", {"M": 70}),
    Case("gemm.cu", "gemm_n2048_k5376", {"M": 300}),
)


def _definition_files(pattern: str) -> list[Path]:
    return sorted((data_set_path() / "definitions").rglob(f"{pattern}.json"))


FAMILY_CASES = [
    Case(solution, file.stem) for solution, pattern in FAMILIES.items() for file in _definition_files(pattern)
]


# -- in the child process -------------------------------------------------------------------


def main(device: str) -> None:
    """Check each case on standard input, a line of JSON, and print the problem, or an empty string, as JSON."""
    for line in sys.stdin:
        try:
            _check(Case(**json.loads(line)), device)
            problem = ""
        except Exception:  # noqa: BLE001 - the test shows it
            problem = traceback.format_exc()
        print(json.dumps(problem), flush=True)


def _check(case: Case, device: str) -> None:
    """Compare with the reference; on a GPU also when it is called from a CUDA graph."""
    (file,) = _definition_files(case.definition)
    definition = parse_json(file.read_text("utf-8"), Definition)
    registry = BuilderRegistry.get_instance()
    runnable = registry.build(definition, _solution(case))
    inputs = _inputs(case, definition, device)
    results = registry.build_reference(definition).call_value_returning(*inputs)
    wanted = results if isinstance(results, tuple) else (results,)
    buffers = [torch.full_like(tensor, torch.nan) for tensor in wanted]
    runnable.call_destination_passing(*inputs, *buffers)
    _compare(definition, buffers, wanted)
    if device != "cpu":
        _replay(runnable, inputs, buffers)
        _compare(definition, buffers, wanted)


def _solution(case: Case) -> Solution:
    language = {".cu": "cuda", ".py": "triton"}[Path(case.solution).suffix]
    spec = BuildSpec(
        language,
        ("NVIDIA H200", "cpu"),
        f"{case.solution}::run",
        destination_passing_style=case.solution not in VALUE_RETURNING,
    )
    source = SourceFile(case.solution, (HERE / "solutions" / case.solution).read_text("utf-8"))
    return Solution(Path(case.solution).stem, case.definition, "tests", spec, (source,))


def _inputs(case: Case, definition: Definition, device: str) -> list[Any]:
    axes = {axis: case.axes[axis] for axis in definition.var_axes}
    workload = Workload(axes, {name: RandomInput() for name in definition.inputs}, "tiny")
    inputs = make_inputs(definition, workload, seed=0, synthesize_missing=True)
    for name, values in case.tensors.items():
        inputs[name] = torch.tensor(values, dtype=torch.int32)
    if isinstance(slots := inputs.get("sparse_indices"), torch.Tensor):  # an empty row, and one with gaps
        slots[0] = -1
        slots[1, 5:2000:3] = -1
        slots[1, -1] = 0
    return [value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs.values()]


def _replay(runnable: Runnable, inputs: list[Any], buffers: list[torch.Tensor]) -> None:
    """Call it from a CUDA graph, whose capture fails if the call synchronises."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        runnable.call_destination_passing(*inputs, *buffers)
    for buffer in buffers:
        buffer.fill_(torch.nan)
    graph.replay()


def _compare(definition: Definition, found: list[torch.Tensor], wanted: tuple[torch.Tensor, ...]) -> None:
    for name, ours, reference in zip(definition.outputs, found, wanted, strict=True):
        assert not reference.isnan().any(), f"the reference's {name} holds NaN: the workload is invalid"
        torch.testing.assert_close(
            ours, reference, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
        )


# -- the tests ---------------------------------------------------------------------------------

pytestmark = needs_data_set
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs the extra 'triton'")
Check = Callable[[Case], None]


def _child(device: str, cache: Path) -> Iterator[Check]:
    environment = {**os.environ, "FIB_CACHE_PATH": str(cache), "TRITON_INTERPRET": str(int(device == "cpu"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "support"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, device]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        to, back = process.stdin, process.stdout
        yield lambda case: _ask(to, back, case)


def _ask(to: IO[str], back: IO[str], case: Case) -> None:
    to.write(json.dumps(attrs.asdict(case)) + "\n")
    to.flush()
    if problem := json.loads(back.readline() or '"the child ended"'):
        pytest.fail(problem, pytrace=False)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Checks a case on the CPU, through Triton's interpreter."""
    yield from _child("cpu", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Checks a case on a CUDA device."""
    if not is_cuda_available():
        pytest.skip("there is no CUDA device")
    yield from _child("cuda:0", tmp_path_factory.mktemp("cache"))


@needs_triton
@pytest.mark.parametrize("case", HARD_CASES, ids=str)
def test_solution_agrees_with_the_reference(case: Case, interpreted: Check) -> None:
    interpreted(case)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", FAMILY_CASES, ids=str)
def test_solution_agrees_for_every_definition_of_its_family(case: Case, interpreted: Check) -> None:
    interpreted(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", HARD_CASES + CUDA_CASES, ids=str)
def test_solution_agrees_on_a_device_and_from_a_cuda_graph(case: Case, on_gpu: Check) -> None:
    on_gpu(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", FAMILY_CASES, ids=str)
def test_solution_agrees_for_its_family_on_a_device(case: Case, on_gpu: Check) -> None:
    on_gpu(case)


if __name__ == "__main__":
    main(sys.argv[1])
