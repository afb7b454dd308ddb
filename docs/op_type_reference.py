"""Reference of op_types: inputs, evaluator, tolerances and least work of one definition of each.

The folder `op_types` has the interfaces of definitions of the public data set, without their reference code. Everything
else comes from the rules, evaluators, settings and declarations of fib-bench.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from fib_bench import BenchmarkConfig, recipe
from fib_bench.config.model import ResolvedEvalConfig
from fib_bench.evaluators import evaluator_for
from fib_bench.inputs.synthesis import Role, find_rule
from fib_bench.timing import work
from fib_schema import AxisConst, Definition, TensorSpec
from fib_schema.data_files import load_json_file
from sphinx.pycode import ModuleAnalyzer

_TEXTS = {
    recipe.NORMAL: "standard normal values",
    recipe.UNIFORM: "uniform values between {0.low:g} and {0.high:g}",
    recipe.SHARES: "rows of probabilities: a softmax of normal logits of deviation 3",
    recipe.DIRECTION: "rows of length 1; a delta rule diverges with longer keys",
    recipe.INTEGER: "uniform integers from {0.first} to {0.last}",
    recipe.BYTES: "uniform bit patterns of e2m1, all finite (-6 to 6); the last axis counts bytes of two values",
    recipe.MASK: "a fair random mask; the first element of each row is true, so that no row is fully masked",
}
INTERFACES = Path(__file__).parent / "op_types"


def op_type_reference() -> str:
    """Markdown: a section for each op_type."""
    return "\n\n".join(map(_section, definitions()))


def definitions() -> list[Definition]:
    """The definitions of the sections, by op_type."""
    return [load_json_file(Definition, path) for path in sorted(INTERFACES.glob("*.json"))]


def _section(definition: Definition) -> str:
    evaluator = evaluator_for(definition, BenchmarkConfig().resolve_eval_config(definition))
    config = evaluator.settings(BenchmarkConfig().resolve_eval_config(definition))
    checked = (
        f"By the evaluator [`{evaluator.name}`](evaluators.md): {_summary(evaluator)} {_settings(definition, config)}"
    )
    parts = [f"## {definition.op_type}", f"Example: `{definition.name}`, {_axes(definition)}.", *_inputs(definition)]
    parts += [f"**Check.** {checked}", f"**Speed of light.** {_least_work(definition)}"]
    return "\n\n".join(parts)


def _axes(definition: Definition) -> str:
    sizes = (f"`{n}` = {a.value}" if isinstance(a, AxisConst) else f"`{n}` varies" for n, a in definition.axes.items())
    return ", ".join(sizes)


def _inputs(definition: Definition) -> Iterator[str]:
    rows = ["| input | shape | dtype | made values | role |", "| --- | --- | --- | --- | --- |"]
    for name, spec in definition.inputs.items():
        rule = find_rule(definition, name)
        text = _TEXTS[rule.make.kind].format(rule.make) if isinstance(rule.make, recipe.Content) else str(rule.make)
        text = (rule.make.__doc__ or "") if callable(rule.make) else text
        made = inspect.cleandoc(text).partition("\n\n")[0].replace("\n", " ")
        made = made.removeprefix("Make ").removeprefix("Return ").rstrip(".")
        rows.append(f"| `{name}` | {_shape(spec)} | {spec.dtype} | {made} | [{rule.role.value}](#roles-of-inputs) |")
    yield "\n".join(rows)
    outputs = (f"`{name}` {_shape(spec)} {spec.dtype}" for name, spec in definition.outputs.items())
    yield f"Outputs: {', '.join(outputs)}."
    if definition.constraints:
        yield f"Constraints: {', '.join(f'`{constraint}`' for constraint in definition.constraints)}."


def _shape(spec: TensorSpec) -> str:
    return "scalar" if spec.shape is None else f"[{', '.join(spec.shape)}]"


def _summary(evaluator: object) -> str:
    """The first paragraph behind the summary of the evaluator's module, or the summary of its class."""
    module = inspect.getmodule(type(evaluator))
    paragraphs = inspect.cleandoc((module and module.__doc__) or "").split("\n\n")
    text = paragraphs[1] if len(paragraphs) > 1 else inspect.cleandoc(type(evaluator).__doc__ or "")
    return " ".join(text.split())


def _settings(definition: Definition, config: ResolvedEvalConfig) -> str:
    bounds = {name: config.tolerance(spec.dtype) for name, spec in definition.outputs.items()}
    floating = [f"`{name}` {bound.atol:g} and {bound.rtol:g}" for name, bound in bounds.items() if bound.rtol]
    exact = [f"`{name}`" for name, bound in bounds.items() if not bound.rtol]
    told = [f"`atol` and `rtol`: {', '.join(floating)}."] if floating else []
    told += [f"Exact dtypes: {', '.join(exact)}."] if exact else []
    ratio = "all elements" if config.required_matched_ratio is None else f"{config.required_matched_ratio:g} of them"
    told += [f"`required_matched_ratio`: {ratio}; `error_cap`: {config.error_cap:g}."]
    told += [f"Distributions: {', '.join(config.distributions)}, on {config.num_trials} input sets of the first."]
    told += [f"`{key}`: {value}." for key, value in config.extra.items()]
    return " ".join(told)


@functools.cache
def _declarations() -> Mapping[str, Mapping[str, Any]]:
    declared: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
        resources.files("fib_bench.timing").joinpath("work.yaml").read_text("utf-8")
    )
    return declared


def _least_work(definition: Definition) -> str:
    declared = _declarations().get(definition.op_type)
    if declared is None:
        return "Nothing is declared for this op_type; reports give no share."
    if "counted" in declared:
        counter = work._COUNTERS[declared["counted"]]  # noqa: SLF001 - its docstring is the description
        text = " ".join(inspect.cleandoc(counter.__doc__ or "").split())
        return f"Counted from the values of the call, so that it never refutes a latency. {text}"
    read, written = _names(declared.get("reads", ()), "inputs"), _names(declared.get("writes", ()), "outputs")
    text = f"Bytes: {read} are read, {written} written."
    if factors := declared.get("operations"):
        text += f" Operations: {' * '.join(map(str, factors))}, at the rate of the dtype of `{declared['operands']}`."
    if declared.get("is_certain", True):
        return f"{text} A latency below the time that this takes is impossible, and a verdict."
    return f"{text} A right kernel may read less, so that it never refutes a latency."


def _names(names: str | list[str], kind: str) -> str:
    return f"all {kind}" if names == "*" else ", ".join(f"`{name}`" for name in names)


def role_table() -> str:
    """Markdown: the roles of inputs and what their values mean."""
    found = ModuleAnalyzer.for_module(Role.__module__).find_attr_docs()
    rows = ["| role | values |", "| --- | --- |"]
    for role in Role:
        rows.append(f"| {role.value} | {' '.join(found['Role', role.name]).strip()} |")
    return "\n".join(rows)
