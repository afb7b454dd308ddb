"""Our solutions, judged by their definitions' references and evaluators on small workloads.

Each solution runs one case with every change and all cases in the slow tests: on the CPU through Triton's interpreter,
and where there is a device also there, and replayed from a CUDA graph.
"""

from importlib.util import find_spec

import attrs
import pytest
from fib_compile.device import is_cuda_available
from public_data_set import definition_names, needs_data_set
from solution_cases import Case, children
from solution_table import entry_of

# Attention

GQA_DECODE = "gqa_paged_decode_triton.py"
GQA_DECODE_TORCH = "gqa_paged_decode_torch.py"
GQA_DECODE_CUDA = "gqa_paged_decode.cu"
GQA_PAGED = "gqa_paged_prefill_triton.py"
GQA_RAGGED = "gqa_ragged_prefill_triton.py"
MLA_DECODE = "mla_paged_decode_triton.py"
MLA_PAGED = "mla_paged_prefill_triton.py"
MLA_RAGGED = "mla_ragged_prefill_triton.py"
DSA = "dsa_paged_triton.py"
FAMILIES = (GQA_DECODE, GQA_PAGED, GQA_RAGGED, MLA_DECODE, MLA_PAGED, MLA_RAGGED, DSA)


def _paged(solution, definition, kv_indptr, last=None, qo_indptr=None):
    """A case of attention over these pages; ragged keys are pages of one; `last` has the lengths of last pages."""
    total = kv_indptr[-1]
    axes = {"batch_size": len(kv_indptr) - 1, "len_indptr": len(kv_indptr), "num_pages": total + 3}
    axes |= {"num_kv_indices": total, "total_kv": total, "total_q": qo_indptr[-1] if qo_indptr else 0}
    given = {"kv_indptr": kv_indptr, "kv_last_page_len": last, "qo_indptr": qo_indptr}
    return Case(solution, definition, axes, {name: values for name, values in given.items() if values})


ATTENTION = (
    _paged(GQA_DECODE, "gqa_paged_decode_h5_kv1_d128_ps1", [0, 0, 3, 73, 74]),
    _paged(GQA_DECODE, "gqa_paged_decode_h24_kv8_d128_ps1", [0, 2, 2]),
    _paged(GQA_DECODE, "gqa_paged_decode_h6_kv1_d128_ps64", [0, 5, 5, 6], [17, 1, 9]),
    _paged(GQA_DECODE, "gqa_paged_decode_h16_kv2_d128_ps64", [0, 20, 20, 21], [17, 1, 9]),
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


def _padded(case, buffer, *replays):
    """A case with a buffer for page numbers, and replays with these offsets and lengths of the last pages."""
    given = [{"kv_indptr": offsets, **({"kv_last_page_len": last} if last else {})} for offsets, last in replays]
    return attrs.evolve(case, replays=given, buffer=buffer, about="padded")


_PAGES_OF_ONE = _paged(GQA_DECODE, "gqa_paged_decode_h5_kv1_d128_ps1", [0, 0, 3, 73, 74])
_PAGES_OF_64 = _paged(GQA_DECODE, "gqa_paged_decode_h6_kv1_d128_ps64", [0, 5, 5, 6], [17, 1, 9])
_LATENT = _paged(MLA_DECODE, "mla_paged_decode_h8_ckv512_kpe64_ps1", [0, 0, 3, 40])
_LATENT_OF_64 = _paged(MLA_DECODE, "mla_paged_decode_h16_ckv512_kpe64_ps64", [0, 4, 4, 5], [17, 1, 64])
PADDED = (
    _padded(_PAGES_OF_ONE, 400, ([0, 40, 41, 300, 300], None), ([0, 1, 2, 3, 3], None), ([0, 0, 0, 0, 400], None)),
    _padded(_PAGES_OF_64, 20, ([0, 1, 9, 9], [64, 3, 1]), ([0, 1, 1, 2], [1, 1, 64])),
    _padded(
        attrs.evolve(_PAGES_OF_64, solution=GQA_DECODE_TORCH), 20, ([0, 1, 9, 9], [64, 3, 1]), ([0, 1, 4, 20], None)
    ),
    _padded(_LATENT, 150, ([0, 20, 90, 91], None), ([0, 1, 2, 2], None)),
    _padded(_LATENT_OF_64, 11, ([0, 1, 6, 6], [64, 3, 1])),
)
"""Page numbers in a longer buffer whose rest is no pages, and other totals at the same addresses."""
PACKED = tuple(
    attrs.evolve(case, is_packed=True, about="packed") for case in ATTENTION if case.solution in (GQA_DECODE, GQA_PAGED)
)
"""Queries cut out of the output of one product, and keys and values that lie in one tensor, as engines have them."""

CUDA_CASES = (
    Case("rmsnorm.cu", "rmsnorm_h128", {"batch_size": 5}),
    Case("rmsnorm.cu", "rmsnorm_h1536", {"batch_size": 1}),
    Case("rmsnorm.cu", "rmsnorm_h7168", {"batch_size": 5}),
    Case("fused_add_rmsnorm.cu", "fused_add_rmsnorm_h2048", {"batch_size": 5}),
    Case("fused_add_rmsnorm.cu", "fused_add_rmsnorm_h7168", {"batch_size": 1}),
    Case("gemm.cu", "gemm_n128_k2048", {"M": 1}),
    Case("gemm.cu", "gemm_n256_k7168", {"M": 70}),
    Case("gemm.cu", "gemm_n2048_k5376", {"M": 300}),
    *(
        attrs.evolve(case, solution=GQA_DECODE_CUDA)
        for case in ATTENTION + PADDED + PACKED
        if case.solution == GQA_DECODE and entry_of(GQA_DECODE_CUDA).implements(case.definition)
    ),
)
FAMILY_CASES = [
    Case(file, name, about="family")
    for file in FAMILIES
    for name in definition_names()
    if entry_of(file).implements(name)
]

# Mixtures of experts

MOE = "moe_triton.py"
FP8_GROUPED = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
FP8_BIASED = "moe_fp8_block_scale_ds_routing_topk8_ng1_kg1_e384_h7168_i2048"
FP8_RENORM = "moe_fp8_block_scale_renorm_topk8_e128_h2048_i768"
FP8_TENSOR = "trtllm_fp8_per_tensor_scale_moe_topk8_e128_h2048_i768"
FP8_TENSOR_SINGLE = "trtllm_fp8_per_tensor_scale_moe_topk1_e16_h5120_i8192"
FP4 = "trtllm_fp4_block_scale_moe_topk8_e128_h2048_i768"
FP4_SINGLE = "trtllm_fp4_block_scale_moe_topk1_e16_h5120_i8192"
FP4_ROUTED = "trtllm_fp4_block_scale_routed_moe_topk8_e64_h4096_i1536"
FP4_ROUTED_SINGLE = "trtllm_fp4_block_scale_routed_moe_topk1_e16_h5120_i8192"
SMALL = {"hidden_size": 256, "intermediate_size": 128}
EXPERTS = 12
_EXPERT_AXES = {
    FP8_GROUPED: {"num_local_experts": 64},  # the groups depend on the number of all experts, which stays
    FP8_BIASED: {"num_experts": EXPERTS, "num_local_experts": EXPERTS},
    FP8_RENORM: {"num_local_experts": EXPERTS},
}
_BFLOAT16_HALF = 0x3F00
"""The bits of 0.5."""


def _experts(definition, about, tokens, **options):
    constants = SMALL | _EXPERT_AXES.get(definition, {"num_experts": EXPERTS})
    return Case(MOE, definition, {"seq_len": tokens}, constants=constants, about=about, **options)


def _logits(definition, about, rows, **tensors):
    return _experts(definition, about, len(rows), tensors={"routing_logits": rows, **tensors})


def _routed(definition, about, experts):
    """A case of packed experts, each with the weight 0.5."""
    packed = [[expert << 16 | _BFLOAT16_HALF for expert in row] for row in experts]
    return _experts(definition, about, len(experts), tensors={"topk_ids": packed})


LOGIT_DEFINITIONS = (FP8_RENORM, FP8_TENSOR, FP8_TENSOR_SINGLE, FP4, FP4_SINGLE)
ONE_EXPERT = [[float(expert == 7) * 9 - 0.125 * expert for expert in range(EXPERTS)]] * 40
EQUAL_LOGITS = [[0.0] * EXPERTS] * 3
EXPERT_CASES = (
    *(_experts(name, "one token", 1) for name in (*LOGIT_DEFINITIONS, FP8_BIASED, FP4_ROUTED, FP4_ROUTED_SINGLE)),
    *(_experts(name, f"{tokens} tokens", tokens, seed=tokens) for name in LOGIT_DEFINITIONS for tokens in (5, 33)),
    *(_logits(name, "all tokens to one expert", ONE_EXPERT) for name in LOGIT_DEFINITIONS),
    *(_logits(name, "ties", EQUAL_LOGITS) for name in LOGIT_DEFINITIONS),
    *(_experts(name, "large tiles", 50) for name in (FP8_RENORM, FP4)),
    _experts(FP8_BIASED, "more tokens", 21, seed=1, tensors={"routed_scaling_factor": 1.5}),
    *(
        _experts(FP8_GROUPED, f"offset {offset}", 9, seed=offset, tensors={"local_expert_offset": offset})
        for offset in (0, 64, 192, 224)
    ),
    _routed(FP4_ROUTED, "repeated experts", [[3] * 8, [0, 1, 2, 3, 3, 2, 1, 0], [11] * 8]),
    _routed(FP4_ROUTED, "experts elsewhere", [[-1, 12, 99, 0, 5, 12, -1, 11], [4, 5, 6, 7, 8, 9, 10, 11]]),
    _routed(FP4_ROUTED_SINGLE, "one expert", [[7]] * 20),
)

# Sampling

SAMPLING = "sampling_torch.py"
SAMPLING_TRITON = "sampling_triton.py"
TOP_K = "top_k_sampling_from_probs_v128256"
TOP_P = "top_p_sampling_from_probs_v129280"
BOTH = "top_k_top_p_sampling_from_probs_v129280"
EVEN = [0.125] * 8
TIED = [0.25, 0.2, 0.05, 0.2, 0.2, 0.05, 0.025, 0.025]
STEEP = [0.0, 0.01, 0.9, 0.0, 0.05, 0.02, 0.02, 0.0]


def _draws(definition, about, *rows):
    """A case with these probabilities, top-k and top-p."""
    probs, top_k, top_p = ([*column] for column in zip(*rows, strict=True))
    limits = {"top_k": top_k, "top_p": top_p}
    tensors = {"probs": probs, **{name: values for name, values in limits.items() if values[0] is not None}}
    axes, constants = {"batch_size": len(rows)}, {"vocab_size": len(probs[0])}
    return Case(SAMPLING, definition, axes, tensors, constants, about=about)


def _random_draws(definition, seed):
    """A case of random rows, of which a program reads the longer ones in several parts."""
    size = (500, 1000, 5000)[seed]
    return Case(SAMPLING, definition, {"batch_size": 3}, {}, {"vocab_size": size}, seed=seed, about=f"{size} tokens")


SAMPLING_CASES = (
    *(_random_draws(definition, seed) for definition in (TOP_K, TOP_P, BOTH) for seed in range(3)),
    _draws(TOP_K, "ties", (TIED, 2, None), (TIED, 5, None), (EVEN, 3, None), (STEEP, 1, None)),
    _draws(TOP_K, "no limit", (TIED, 0, None), (TIED, -1, None), (TIED, 8, None), (TIED, 100, None)),
    _draws(TOP_P, "ties", (TIED, None, 0.5), (EVEN, None, 0.3), (STEEP, None, 0.89), (STEEP, None, 0.91)),
    _draws(TOP_P, "extremes", (TIED, None, 0.0), (TIED, None, 1.0), (EVEN, None, -1.0), (STEEP, None, 1.5)),
    _draws(BOTH, "ties", (TIED, 4, 0.6), (EVEN, 5, 0.5), (STEEP, 2, 0.97), (STEEP, 7, 0.5)),
    _draws(BOTH, "extremes", (TIED, 0, 0.5), (TIED, 3, 1.0), (STEEP, 1, 0.0), (EVEN, 100, 0.0)),
    _draws(BOTH, "one row", (TIED, 3, 0.9)),
)
SAMPLING_CASES += tuple(attrs.evolve(case, solution=SAMPLING_TRITON) for case in SAMPLING_CASES)

# Recurrent ops and rotary embedding

GDN = "gdn_triton.py"
SSU = "mamba_ssu_decode_triton.py"
ROPE = "rope_triton.py"
HEADS = {"num_q_heads": 2, "num_k_heads": 2, "num_v_heads": 4}
"""Fewer heads than in the data set; every solution reads them from the tensors."""


def _decode(about, batch, **options):
    axes = {"batch_size": batch}
    return Case(GDN, "gdn_decode_qk8_v16_d128_k_last", axes, constants=HEADS, about=about, **options)


def _several(about, slots, tokens):
    """A case of several tokens per sequence; the reference writes to the optional buffer, which is no output."""
    axes, absent = {"batch_size": len(slots), "seq_len": tokens, "pool_size": 5}, ("intermediate_states_buffer",)
    tensors = {"initial_state_indices": slots}
    return Case(GDN, "gdn_mtp_qk8_v16_d128_k_last", axes, tensors, HEADS, absent, about=about)


def _prefill(about, offsets, **options):
    axes = {"total_seq_len": offsets[-1], "num_seqs": len(offsets) - 1, "len_cu_seqlens": len(offsets)}
    tensors = {"cu_seqlens": offsets}
    return Case(GDN, "gdn_prefill_qk8_v16_d128_k_last", axes, tensors, HEADS, about=about, **options)


def _update(about, slots, **options):
    axes, tensors = {"batch_size": len(slots), "state_cache_size": 6}, {"state_batch_indices": slots}
    constants = {"nheads": 8, "ngroups": 2}
    return Case(SSU, "mamba_ssu_decode_h64_d64_s128_ng4", axes, tensors, constants, about=about, **options)


def _rotation(about, positions, query_heads, key_heads):
    axes = {"num_tokens": len(positions), "num_qo_heads": query_heads, "num_kv_heads": key_heads, "max_seq_len": 40}
    return Case(ROPE, "rope_with_cos_sin_cache_neox_style_d128_rd64", axes, {"positions": positions}, about=about)


RECURRENT_CASES = (
    _decode("one sequence", 1),
    _decode("three sequences", 3, seed=1),
    _decode("five sequences", 5, seed=2),
    _decode("no state", 2, absent=("state",)),
    _decode("default scale", 2, tensors={"scale": 0.0}),
    Case(GDN, "gdn_decode_qk4_v8_d128_k_last", {"batch_size": 2}),
    _several("three tokens", [4, 0, 2], tokens=3),
    _several("shared state", [1, 1], tokens=2),
    _prefill("one sequence", [0, 7]),
    _prefill("empty sequences", [0, 0, 1, 6, 6], seed=3),
    _prefill("no state", [0, 4, 9], absent=("state",)),
    _update("one sequence", [5]),
    _update("padding", [-1, 3, -1, 0], seed=1),
    _update("shared states", [2, 1, 2, -1], seed=2),
    _update("padding only", [-1, -1]),
    Case(SSU, "mamba_ssu_decode_h128_d64_s128_ng8", {"batch_size": 2, "state_cache_size": 4}),
    _rotation("one token", [39], 8, 8),
    _rotation("odd heads", [3, 0, 0, 39, 7], 17, 1),
    _rotation("one head", [1, 2], 1, 1),
)

CASES = (*ATTENTION, *PADDED, *PACKED, *EXPERT_CASES, *SAMPLING_CASES, *RECURRENT_CASES)
FEW = {case.solution: case for case in reversed(CASES)}
"""The first case of each solution."""

pytestmark = needs_data_set


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """Checks a case on the CPU, Triton's through its interpreter."""
    if find_spec("triton") is None:
        pytest.skip("needs the extra 'triton'")
    yield from children("cpu", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    """Checks a case on a CUDA device, and replayed from a CUDA graph."""
    if not is_cuda_available():
        pytest.skip("there is no CUDA device")
    yield from children("cuda:0", tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("case", FEW.values(), ids=str)
def test_each_solution_agrees_with_a_reference(case, on_cpu):
    on_cpu(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in FEW.values()], ids=str)
def test_solution_agrees_with_the_reference(case, on_cpu):
    on_cpu(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", FAMILY_CASES, ids=str)
def test_solution_agrees_for_every_definition_of_its_family(case, on_cpu):
    on_cpu(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *CUDA_CASES, *FAMILY_CASES], ids=str)
def test_solution_agrees_on_a_device(case, on_gpu):
    on_gpu(case)
