"""Adapter declarations: which functions of a kernel library are patched, and how their calls are converted.

An `Adapter` is a list of targets. A `Call` names a function by its import path and has a plain Python function
`convert`, whose parameters are those of the library that matter. It returns the inputs of a definition, or a string:
the reason why no definition describes the call, which then falls through to the original function. Parameters that
`convert` does not name must be at their defaults, so that a parameter of a newer library version is never ignored.

An engine changes its functions with each release: an adapter of them names an `Engine`, which states the versions and
the parameters. Another version is used, with a warning, if the parameters are equal; else the function is not touched.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import inspect
import logging
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from inspect import Parameter
from typing import Any, TypeAlias

import attrs
from fib_schema import AxisConst, AxisSpec, AxisVar, Definition, FibError, TensorSpec
from fib_schema.syntax import parse_source


@attrs.frozen
class CannotAdapt(FibError, TypeError):
    """A target differs from what its adapter was written for."""

    target: str
    problem: str

    def __str__(self) -> str:
        return f"{self.target} cannot be adapted: {self.problem}"


@attrs.frozen
class NotPatched(FibError, LookupError):
    """A function has no adapter, or its patch is not installed."""

    function: str
    patched: tuple[str, ...]

    def __str__(self) -> str:
        patched = ", ".join(self.patched) or "nothing; call install_flashinfer_integrations() first"
        return f"{self.function} is not patched (patched: {patched})"


_logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Engine:
    """The distribution of an engine, with what is known of its functions."""

    distribution: str
    """Its name on the package index."""
    versions: tuple[str, ...]
    """The versions that were read."""
    parameters: Mapping[str, str]
    """By the path of a function, its parameters without annotations: ``"x, weight, epsilon, variance_size=None"``."""

    @property
    def is_installed(self) -> bool:
        """Whether a version of it is installed."""
        return installed_version(self.distribution) != _UNKNOWN

    def check(self, path: str, function: Callable[..., Any]) -> None:
        """Check that a function is one that the adapter was written for; log a warning for an unknown version.

        Raises:
            CannotAdapt: It has other parameters than in the known versions.
        """
        version, found = installed_version(self.distribution), parameters_of(function)
        if found != self.parameters[path]:
            wanted = f"({self.parameters[path]}) as in {self.distribution} {', '.join(self.versions)}"
            raise CannotAdapt(path, f"its parameters are ({found}) in version {version}, not {wanted}")
        if version not in self.versions:
            known = ", ".join(self.versions)
            _logger.warning(
                "%s is of %s %s, which was not read (known: %s); it is used, because its parameters are equal",
                path, self.distribution, version, known,
            )  # fmt: skip


_UNKNOWN = "unknown"


def installed_version(distribution: str) -> str:
    """The version of a distribution, without a local part such as ``+cu130``; ``unknown`` if it is not installed."""
    try:
        return importlib.metadata.version(distribution).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return _UNKNOWN


def parameters_of(function: Callable[..., Any]) -> str:
    """The parameters of a function as they stand in a ``def``, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "unreadable"
    bare = [parameter.replace(annotation=Parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(bare)).removeprefix("(").removesuffix(")")


VLLM = Engine(
    distribution="vllm",
    versions=("0.26.0",),
    parameters={
        "vllm.ir.ops.rms_norm": "x, weight, epsilon, variance_size=None",
        "vllm.ir.ops.fused_add_rms_norm": "x, x_residual, weight, epsilon, variance_size=None",
        "vllm._custom_ops.rms_norm": "out, input, weight, epsilon",
        "vllm._custom_ops.fused_add_rms_norm": "input, residual, weight, epsilon",
        "vllm._custom_ops.rotary_embedding": (
            "positions, query, key, head_size, cos_sin_cache, is_neox, rope_dim_offset=0, inverse=False"
        ),
        "vllm.vllm_flash_attn.flash_attn_interface.flash_attn_varlen_func": (
            "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None, "
            "dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None, "
            "deterministic=False, return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, "
            "scheduler_metadata=None, q_descale=None, k_descale=None, v_descale=None, num_splits=0, output_scale=None, "
            "fa_version=2, s_aux=None, cp_world_size=1, cp_rank=0, cp_tot_seqused_k=None, mask_mod=None, "
            "aux_tensors=None, dynamic_causal=None"
        ),
        "vllm.model_executor.layers.fused_moe.experts.triton_moe.TritonExperts.apply": (
            "self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map, "
            "a1q_scale, a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input"
        ),
        "vllm.model_executor.layers.utils.default_unquantized_gemm": "layer, x, weight, bias=None",
    },
)
SGLANG = Engine(
    distribution="sglang",
    versions=("0.5.17",),
    parameters={
        "sglang.kernels.ops.layernorm.norm.rmsnorm": "input, weight, out=None, eps=1e-06",
        "sglang.kernels.ops.layernorm.norm.fused_add_rmsnorm": (
            "input, residual, weight, eps=1e-06, *, cast_x_before_out_mul=False"
        ),
    },
)
SGL_KERNEL = Engine(
    distribution="sglang-kernel",
    versions=("0.4.5",),
    parameters={
        "sgl_kernel.elementwise.rmsnorm": "input, weight, eps=1e-06, out=None, enable_pdl=None",
        "sgl_kernel.elementwise.fused_add_rmsnorm": "input, residual, weight, eps=1e-06, enable_pdl=None",
    },
)


Conversion: TypeAlias = "tuple[Hashable, tuple[Any, ...], bool] | str"
"""The result of `Call.convert`: ``(key, values, is_dps)``, or the reason why the call is unsupported.

`Call.describe` maps the key to a definition. The values are the definition's inputs, in order, followed by its
outputs if `is_dps` (destination-passing style: the caller gave a buffer for each of them).
"""
Original: TypeAlias = Callable[..., Any]


@attrs.frozen
class DefinitionRef:
    """The definition that calls with one key compute."""

    name: str
    inputs: tuple[str, ...]
    """Names, in the definition's order."""
    outputs: tuple[str, ...]
    constants: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    """Scalars of the call that the reference has as constants instead of inputs, such as an epsilon."""


@attrs.frozen(kw_only=True)
class Call:
    """A function that computes what a definition describes.

    For a method with `uses_plan`, the first argument of `convert` is the value that `Plan.convert` returned.
    """

    path: str
    """The import path: ``flashinfer.norm.rmsnorm``."""
    convert: Callable[..., Conversion]
    describe: Callable[[Any], DefinitionRef]
    """Maps a key to its definition."""
    key: Callable[..., Hashable] | None = None
    """Makes the key of `convert` alone; takes, by name, any parameters of `convert`. With it, calls of a key that are
    neither routed nor traced are not converted. Worth while if that costs more than the key; not for a method with
    `uses_plan`."""
    finalize: Callable[..., Any] | None = None
    """Makes the caller's result from the definition's outputs (None if they were passed as buffers); it also takes, by
    name, any parameters of `convert`, and writes to inputs that the library modifies in place. Without it, the caller
    gets the only output, or its own buffer if it passed one."""
    shadow: Callable[[Original, tuple[Any, ...], dict[str, Any], Sequence[Any]], Any] | None = None
    """Calls the original for a shadow comparison and returns the definition's outputs; takes the original, the call's
    positional and keyword arguments, and the converted values. A keyword argument may have been moved to its position:
    bind the arguments to change one. Without it, the original is expected to return the outputs."""
    is_deterministic: bool = True
    """Whether equal arguments give equal results; if not (sampling), calls are never shadow-compared."""
    ignored: frozenset[str] = frozenset()
    """Parameters that do not change the result, such as backend hints."""
    signature: str | None = None
    """The parameters, for a function that `inspect` cannot read: ``"input, weight, bias=None"``."""
    compiled_as: Callable[[Original, Original, Callable[[Any], bool]], Original] | None = None
    """Makes the function that torch.compile traces instead of the original, of which it would compile the kernels. It
    takes the original, the patched function, and a function that says whether calls of a key may be routed or are
    traced; that one is a constant for the compiler."""
    uses_plan: bool = False
    """Whether this method runs what an earlier call of a `Plan` method set up."""
    changes_plan: bool = False
    """Whether this method also changes settings of the plan, as FlashInfer's ``forward`` does. `convert` then keeps the
    plan's value up to date; a call that does not reach it invalidates the plan."""


@attrs.frozen(kw_only=True)
class Plan:
    """A method that sets up the next runs of an object, such as FlashInfer's ``plan``."""

    path: str
    convert: Callable[..., Any]
    """Takes the object and parameters; returns the value to keep for runs, or the reason why these are unsupported.

    The value has an attribute `is_routable`, which is false if a CUDA graph may replay the runs after a later plan.
    Listeners see such runs. They are routed only if the value has an attribute `buffers` that is not empty: by name of
    an input, the whole buffer that replays read, where runs have the part that is valid now. All tensors of the plan
    must then be buffers that each plan writes to. If runs change the value, it has a method `detached`: a copy that
    changes no object, for explanations."""
    ignored: frozenset[str] = frozenset()
    neutral: Mapping[str, Any] = attrs.field(factory=dict)
    """Parameters that `convert` does not know, each with its default, for versions whose method takes them as keywords
    without stating a default. With any other value, the runs are unsupported."""


PLAN_STATE = "_plan_info"
"""The attribute of FlashInfer's wrappers that every plan replaces: reveals one that bypassed the patched method."""
Target: TypeAlias = Call | Plan


@attrs.frozen(kw_only=True)
class Family:
    """Definitions that differ in sizes, which their names state."""

    name: str
    """With sizes by the names of axes: ``gemm_bf16_n{N}_k{K}``. All other axes are variable."""
    op_type: str
    inputs: Mapping[str, str]
    """Axes and dtype by name: ``M K bfloat16``; the dtype alone of a scalar."""
    outputs: Mapping[str, str]
    reference: str
    description: str
    constraints: tuple[str, ...] = ()
    baseline: str | None = None
    """The source of a solution that calls the library itself."""

    def describe(self, key: Sequence[int]) -> DefinitionRef:
        """The definition of sizes in the order in which the name has them."""
        name = re.sub(r"\{\w+\}", "{}", self.name).format(*key)
        return DefinitionRef(name, tuple(self.inputs), tuple(self.outputs))

    def define(self, name: str) -> Definition | None:
        """The definition of a name; None for a name of others."""
        found = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[0-9]+)", self.name), name)
        if found is None:
            return None
        axes: dict[str, AxisSpec] = {}
        inputs, outputs = ({one: text.split() for one, text in texts.items()} for texts in (self.inputs, self.outputs))
        for *shape, _ in (*inputs.values(), *outputs.values()):
            axes |= {axis: AxisConst(int(found[axis])) if axis in found.groupdict() else AxisVar() for axis in shape}
        tensors = [
            {one: TensorSpec(text[:-1] or None, text[-1]) for one, text in texts.items()} for texts in (inputs, outputs)
        ]
        more: dict[str, Any] = {"constraints": self.constraints, "description": self.description}
        return Definition(name, self.op_type, axes, tensors[0], tensors[1], self.reference, **more)


@attrs.frozen(kw_only=True)
class Adapter:
    """Connects functions of a library with definitions."""

    name: str
    op_types: tuple[str, ...]
    """The op_types of its definitions."""
    targets: tuple[Target, ...]
    supported: str
    """One line: the calls that are converted."""
    unsupported: str
    """One line: the calls that fall through to the original."""
    is_default: bool = True
    """Whether it is installed unless the user selects adapters."""
    reference_constants: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict)
    """By definition, the constants of its reference. They apply only where the definition itself is not available."""
    families: tuple[Family, ...] = ()
    """Definitions of its calls that the public data set does not have."""
    engine: Engine | None = None
    """The engine that its functions are of, if they are part of one: they change with each version of it."""
    baseline: Callable[[Definition], str | None] | None = None
    """Returns the source of a solution that calls the library itself; None for an unsupported definition."""
    other_baselines: Mapping[str, Callable[[Definition], str | None]] = attrs.field(factory=dict)
    """The same for other settings that engines choose, by a suffix of the solution's name."""


# -- definitions at hand -----------------------------------------------------------------------------

_EPSILON_LIMIT = 1e-2
"""Epsilons are below this, all other constants of a reference above."""


def definition_mismatch(adapter: Adapter, reference: DefinitionRef, definition: Definition | None) -> str | None:
    """Reason that calls cannot be described by a definition; None if they can."""
    if definition is not None:
        inputs, outputs = tuple(definition.inputs), tuple(definition.outputs)
        if (inputs, outputs) != (reference.inputs, reference.outputs):
            return f"{reference.name!r} in the data set has inputs {inputs} and outputs {outputs}"
    for parameter, value in reference.constants.items():
        constant = None if definition is None else epsilon_constant(definition.reference)
        if constant is None:
            constant = adapter.reference_constants.get(reference.name, {}).get(parameter)
        if constant is None and definition is not None:
            return f"the {parameter} of {reference.name!r} is neither readable from its reference nor declared"
        if constant is not None and constant != value:
            return f"{parameter} is {value!r}, and the reference of {reference.name!r} has {constant!r}"
    return None


@functools.lru_cache(maxsize=1024)
def epsilon_constant(reference: str) -> float | None:
    """The only small positive number in a reference's source; None if there is none, or more than one."""
    numbers = {
        node.value
        for node in ast.walk(parse_source(reference))
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < _EPSILON_LIMIT
    }
    return numbers.pop() if len(numbers) == 1 else None
