"""The work of a call: the bytes that it must move, the operations that it must do, and the least time of both.

The file ``work.yaml`` declares it for each op_type. Some of it follows from the sizes alone. That of attention and
experts also depends on the values of page tables, offsets and choices of experts: it is counted for the values given.

*Roofline.* Peaks are theoretical, so that nothing exceeds them: verdicts and reported shares are made by the same.

Source: the roofline model (Williams, Waterman and Patterson, 2009). Operations per cycle and
multiprocessor are those of NVIDIA's architecture white papers (dense, without sparsity).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources

import attrs
import torch
import yaml
from fib_compile.device import torch_dtype
from fib_schema import Definition, TensorSpec

_TOP_K_IN_NAME = re.compile(r"top_?k_?(\d+)")
Values = Mapping[str, torch.Tensor | int | float | bool | None]
"""Inputs of a call by name."""


@attrs.frozen
class Work:
    """The least work of a call."""

    read_bytes: int
    written_bytes: int
    operations: int
    operand_bytes: float
    """The size of one operand of these operations."""
    is_certain: bool = True
    """Whether no right kernel can do with less, on whatever values; a latency that contradicts it is refused."""


def work_of(definition: Definition, axes: Mapping[str, int], values: Values | None = None) -> Work | None:
    """The least work of a call; None where nothing is declared for the op_type, or its inputs have other names.

    Op_types whose work depends on the inputs have none without their values. Only work by sizes is certain.
    """
    declared = _declarations().get(definition.op_type)
    if declared is None:
        return None
    shapes = dict(zip(definition.inputs, definition.get_input_shapes(axes), strict=True))
    shapes |= dict(zip(definition.outputs, definition.get_output_shapes(axes), strict=True))
    call = _Call(definition, {**definition.const_axes, **axes}, shapes, values or {})
    try:
        return _COUNTERS[declared.counted](call, declared)
    except KeyError:  # an input that the counter needs is not there
        return None


@attrs.frozen
class _Declaration:
    reads: str | Sequence[str] = ()
    writes: str | Sequence[str] = ()
    operations: Sequence[int | str] = ()
    operands: str = ""
    is_certain: bool = True
    counted: str = "sizes"
    queries: Sequence[str] = ()
    keys: Sequence[str] = ()
    score: Sequence[str] = ()
    value: Sequence[str] = ()


@functools.cache
def _declarations() -> Mapping[str, _Declaration]:
    text = resources.files(__package__).joinpath("work.yaml").read_text("utf-8")
    return {op_type: _Declaration(**fields) for op_type, fields in yaml.safe_load(text).items()}


@attrs.frozen
class _Call:
    """A call whose work is counted; lookups of missing names raise `KeyError`."""

    definition: Definition
    axes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...] | None]
    values: Values

    def integers(self, name: str) -> torch.Tensor:
        """An integer input, on the CPU."""
        value = self.values[name]
        if not isinstance(value, torch.Tensor):
            raise KeyError(name)
        return value.detach().cpu().long()

    def operand_bytes(self, name: str) -> float:
        """The size of an element of an input."""
        dtype = self.definition.inputs[name].dtype
        return 0.5 if dtype == "float4_e2m1" else float(torch_dtype(dtype).itemsize)

    def row_bytes(self, names: Iterable[str], leading: int = 0) -> int:
        """The bytes of some tensors, or of one row of each, without that many leading dimensions."""
        specs = {**self.definition.inputs, **self.definition.outputs}
        sizes = {name: math.prod((self.shapes[name] or ())[leading:]) for name in names}
        return sum(size * torch_dtype(specs[name].dtype).itemsize for name, size in sizes.items())

    def tensors(self, specs: Mapping[str, TensorSpec], names: str | Sequence[str] = "*") -> list[str]:
        """Those of some inputs or outputs that are tensors of every call."""
        wanted = [name for name in specs if names == "*" or name in names]
        return [name for name in wanted if self.shapes[name] is not None and not specs[name].optional]


def _work_by_sizes(call: _Call, declared: _Declaration) -> Work:
    """Tensors that are moved whole, and a product of axes; without operations if an axis or operand is not there."""
    definition, factors = call.definition, declared.operations
    sizes = [call.axes.get(factor, 0) if isinstance(factor, str) else factor for factor in factors]
    operands = definition.inputs.get(declared.operands)
    return Work(
        read_bytes=call.row_bytes(call.tensors(definition.inputs, declared.reads)),
        written_bytes=call.row_bytes(call.tensors(definition.outputs, declared.writes)),
        operations=math.prod(sizes) if sizes and operands else 0,
        operand_bytes=call.operand_bytes(declared.operands) if operands else 2.0,
        is_certain=declared.is_certain,
    )


def _attention(call: _Call, declared: _Declaration) -> Work:
    """Queries of sequences over their keys, which lie in a row each, or in pages that a table names.

    Keys that several sequences share are read once. Queries without a key are neither read nor written.
    """
    tokens = _keys_of_sequences(call)
    queries = call.integers("qo_indptr").diff() if "qo_indptr" in call.definition.inputs else torch.ones_like(tokens)
    if "causal" in call.definition.name:  # the last query sees all keys
        rows = torch.minimum(queries, tokens)
        visible = (rows * (2 * tokens - rows + 1)).sum() // 2
    else:
        rows = torch.where(tokens > 0, queries, 0)
        visible = (rows * tokens).sum()
    is_read = rows > 0
    if "kv_indices" in call.definition.inputs:
        read = _distinct_tokens(call, tokens, is_read) * call.row_bytes(declared.keys, leading=2)
    else:
        read = int(tokens[is_read].sum()) * call.row_bytes(declared.keys, leading=1)
    return _attention_work(call, declared, int(rows.sum()), int(visible), read)


def _sparse_attention(call: _Call, declared: _Declaration) -> Work:
    """Each query over the tokens of its own row of indices; negative ones are padding."""
    indices = call.integers("sparse_indices")
    is_given = indices >= 0
    read = len(torch.unique(indices[is_given])) * call.row_bytes(declared.keys, leading=2)
    return _attention_work(call, declared, int(is_given.any(dim=1).sum()), int(is_given.sum()), read)


def _attention_work(call: _Call, declared: _Declaration, rows: int, visible: int, read_bytes: int) -> Work:
    heads = (call.shapes[declared.queries[0]] or ())[1]
    width = sum(call.axes[axis] for axis in (*declared.score, *declared.value))
    inputs = call.definition.inputs
    integers = [name for name in call.tensors(inputs) if inputs[name].is_integer]  # tables and offsets are read whole
    return Work(
        read_bytes=rows * call.row_bytes(declared.queries, leading=1) + read_bytes + call.row_bytes(integers),
        written_bytes=rows * call.row_bytes([*call.definition.outputs], leading=1),
        operations=2 * heads * width * visible,
        operand_bytes=call.operand_bytes(declared.keys[0]),
        is_certain=False,
    )


def _keys_of_sequences(call: _Call) -> torch.Tensor:
    entries = call.integers("kv_indptr").diff()
    if "kv_indices" not in call.definition.inputs:
        return entries
    size = call.axes["page_size"]
    if "kv_last_page_len" not in call.definition.inputs:
        return entries * size
    last = call.integers("kv_last_page_len")[: len(entries)]
    return torch.where(entries > 0, (entries - 1) * size + last, 0)


def _distinct_tokens(call: _Call, tokens: torch.Tensor, is_read: torch.Tensor) -> int:
    """Number of tokens of pages that are read at least once."""
    size, begins = call.axes["page_size"], call.integers("kv_indptr")
    counts = begins.diff()
    sequence = torch.repeat_interleave(torch.arange(len(counts)), counts)
    place = torch.arange(len(sequence)) - torch.repeat_interleave(begins[:-1] - begins[0], counts)
    used = (tokens[sequence] - place * size).clamp(0, size) * is_read[sequence]
    pages = call.integers("kv_indices")[begins[0] : begins[0] + len(sequence)]
    names, index = torch.unique(pages, return_inverse=True)
    return int(torch.zeros(len(names), dtype=torch.long).scatter_reduce(0, index, used, "amax").sum())


def _experts(call: _Call, _: _Declaration) -> Work:
    """The weights of experts that some token chose, and the tokens; a choice by groups counts as one without."""
    inputs = call.definition.inputs
    expert_axis = (inputs["gemm1_weights"].shape or ("",))[0]
    count = (call.shapes["gemm1_weights"] or (0,))[0]
    chosen = _chosen_experts(call) - int(call.values.get("local_expert_offset") or 0)
    local = chosen[(chosen >= 0) & (chosen < count)]
    names = [name for name in inputs if call.shapes[name]]
    of_experts = [name for name in names if (inputs[name].shape or ("",))[0] == expert_axis]
    of_tokens = [name for name in names if name not in of_experts]
    weights = sum(math.prod((call.shapes[name] or ())[1:]) for name in ("gemm1_weights", "gemm2_weights"))
    return Work(
        read_bytes=len(torch.unique(local)) * call.row_bytes(of_experts, leading=1) + call.row_bytes(of_tokens),
        written_bytes=call.row_bytes([*call.definition.outputs]),
        operations=2 * int(local.numel()) * weights,
        operand_bytes=call.operand_bytes("gemm1_weights"),
        is_certain=False,
    )


def _chosen_experts(call: _Call) -> torch.Tensor:
    """``[tokens, top_k]``: given, or those of the best scores, which are ``sigmoid(logits) + bias`` with a bias."""
    if "topk_ids" in call.values:
        return call.integers("topk_ids")
    logits, bias = call.values["routing_logits"], call.values.get("routing_bias")
    if not isinstance(logits, torch.Tensor):
        raise KeyError("routing_logits")
    scores = logits.double() if not isinstance(bias, torch.Tensor) else logits.double().sigmoid() + bias.double()
    named = _TOP_K_IN_NAME.search(call.definition.name)
    count = int(named[1]) if named and "top_k" not in call.axes else call.axes["top_k"]
    return scores.topk(count, dim=1).indices.cpu()


_COUNTERS: Mapping[str, Callable[[_Call, _Declaration], Work]] = {
    "sizes": _work_by_sizes,
    "attention": _attention,
    "sparse attention": _sparse_attention,
    "experts": _experts,
}


# -- roofline ------------------------------------------------------------------------------------

_HALF_OPERATIONS_PER_CYCLE = {
    (8, 0): 2048, (8, 6): 1024, (8, 7): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192, (12, 0): 1024,
}  # fmt: skip
"""Operations per cycle of one multiprocessor with two-byte operands, by compute capability."""
_RATE_BY_BYTES = {0.5: 4.0, 1.0: 2.0, 2.0: 1.0, 4.0: 0.5, 8.0: 0.125}
"""Relative to that, by the size of an operand; four bytes count as TF32."""
_MARGIN = 0.97
_GRAIN_MS = 0.0005  # uncertainty of the clock's own cost


@attrs.frozen
class Peaks:
    """Upper bounds of the speed of a device."""

    bytes_per_second: float
    half_operations_per_second: float | None
    """With two-byte operands; None if unknown."""
    l2_bytes: int
    """Size of the L2 cache: written bytes that may still be there when a call has ended."""

    def least_ms(self, work: Work) -> float:
        """The time below which no call can be."""
        moved = work.read_bytes + max(work.written_bytes - self.l2_bytes, 0)
        rate = self.half_operations_per_second
        done = work.operations / (rate * _RATE_BY_BYTES[work.operand_bytes]) if rate else 0.0
        return 1e3 * max(moved / self.bytes_per_second, done)

    def attainable_ms(self, work: Work) -> float:
        """The time in which a perfect kernel would do it, written bytes included."""
        return attrs.evolve(self, l2_bytes=0).least_ms(work)

    def objection(self, work: Work, latency_ms: float) -> str:
        """Reason that a latency cannot be true; empty if it can."""
        least = self.least_ms(work)
        if not work.is_certain or latency_ms >= _MARGIN * least - _GRAIN_MS:
            return ""
        return (
            f"a latency of {latency_ms:.5f} ms is impossible: reading {work.read_bytes} bytes, writing "
            f"{work.written_bytes} and doing {work.operations} operations takes this device {least:.5f} ms at least "
            f"({self.bytes_per_second / 1e12:.2f} TB/s)"
        )


def speed_fields(peaks: Peaks | None, work: Work | None, latency_ms: float) -> dict[str, float]:
    """The fields of a trace: the achieved speed and, of a device with known peaks, its share of the attainable one."""
    if work is None or latency_ms <= 0:
        return {}
    moved = work.read_bytes + work.written_bytes
    extra = {"bytes": moved, "achieved_gb_per_s": round(moved / latency_ms / 1e6, 1)}
    if work.operations:
        extra |= {"operations": work.operations, "achieved_tflop_per_s": round(work.operations / latency_ms / 1e9, 2)}
    if peaks is not None and (least_ms := peaks.attainable_ms(work)):
        extra["attainable_fraction"] = round(least_ms / latency_ms, 4)
    return extra


def theoretical_peaks(device: torch.device) -> Peaks | None:
    """Upper bounds from the clocks and widths of a CUDA device; None on the CPU."""
    if device.type == "cpu":
        return None
    from cuda.bindings import driver

    attributes = driver.CUdevice_attribute

    def ask(attribute: object) -> int:
        _, value = driver.cuDeviceGetAttribute(attribute, device.index or 0)
        return int(value)

    memory_hz = 1e3 * ask(attributes.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
    width_bytes = ask(attributes.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8
    clock_hz = 1e3 * ask(attributes.CU_DEVICE_ATTRIBUTE_CLOCK_RATE)
    properties = torch.cuda.get_device_properties(device)
    per_cycle = _HALF_OPERATIONS_PER_CYCLE.get((properties.major, properties.minor))
    rate = per_cycle * properties.multi_processor_count * clock_hz if per_cycle else None
    bytes_per_second = 2 * memory_hz * width_bytes or math.inf  # a driver that does not report it sets no floor
    return Peaks(bytes_per_second, rate or None, properties.L2_cache_size)
