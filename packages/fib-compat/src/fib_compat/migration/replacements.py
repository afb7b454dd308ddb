"""The FIB name that replaces each name of `flashinfer_bench`, derived from `fib_compat.table`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..replaced import REPLACED
from ..table import Origin, has_module, names_of

_EQUIVALENTS: Mapping[str, str] = MappingProxyType(
    {
        "fib_apply": "ApplyConfig ApplyConfigRegistry ApplyKey ApplyRuntime apply disable_apply enable_apply",
        "fib_bench": "Benchmark BenchmarkConfig EvalConfig ResolvedEvalConfig",
        "fib_schema": "SpeedupMetrics TraceSet TraceSetSummary",
        "fib_tracer": (
            "FilterPolicy InputDumpPolicy PolicyRegistry TracingConfig TracingConfigRegistry TracingRuntime "
            "WorkloadEntry disable_tracing enable_tracing get_attention_only_configs get_default_configs "
            "get_full_configs"
        ),
    }
)
"""Names, by package, that fib-compat offers in a form of its own with the behaviour of flashinfer-bench."""
_CURRENT_MODULES = frozenset({"apply", "apply.key", "bench", "data", "tracing"})
"""Rows whose names mean the equivalents; rows of the first release have the same names with other arguments."""
_ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "ALLOWED_DTYPES": "use frozenset(fib_schema.DType)",
        "ScalarValue": "use int | float | bool",
        "get_default_registry": "use fib_apply.ApplyConfigRegistry()",
        "get_registry": "use fib_compile.BuilderRegistry.get_instance()",
        "get_fib_enable_apply": "read the environment variable FIB_ENABLE_APPLY",
        "get_fib_enable_tracing": "read the environment variable FIB_ENABLE_TRACING",
        "dict_to_dataclass": "use fib_schema.parse_json",
        "from_json": "use fib_schema.parse_json",
        "to_json": "use fib_schema.format_json",
        "load_json_file": "use fib_schema.load_json_file, which takes the class first",
        "load_jsonl_file": "use fib_schema.load_jsonl_file, which takes the class first",
        "append_jsonl_line": "use fib_schema.append_jsonl_file",
        "append_jsonl_lines": "use fib_schema.append_jsonl_file",
        "TracingRule": "use fib_tracer.TracingConfig",
        "enable_tracing": "use fib_tracer.enable_tracing with tracing_config= and dataset_path=",
        "fib_attn_tracing": "use fib_tracer.get_attention_only_configs()",
        "fib_full_tracing": "use fib_tracer.get_full_configs()",
        "make_tracing_hook": "not needed: a runtime of fib_tracer.enable_tracing receives all calls",
        "FFI_PROMPT": "use fib_agents.read_guide, with the names tvm-ffi and judging",
        "FFI_PROMPT_SIMPLE": 'use fib_agents.read_guide("tvm-ffi")',
        "extract_solution_to_files": "use fib_agents.extract_solution_to_files, which writes no SOLUTION.md",
        "flashinfer_bench_list_ncu_options": "use fib_agents.list_profiler_options",
        "flashinfer_bench_run_ncu": "use fib_agents.profile, or profile_report for the whole text",
        "flashinfer_bench_run_sanitizer": "use fib_agents.sanitize, or sanitizer_report for the whole text",
        "get_all_tool_schemas": "use fib_agents.get_all_tool_schemas, which has the tools of fib-agents",
        "redirect_stdio_to_file": "use contextlib.redirect_stdout; workers capture the output of solutions",
        "time_runnable": "use fib_bench.evaluate",
        "__version__": "use importlib.metadata.version",
        "cli": "use the command fib-bench",
    }
)
_ONLY_HERE = "the FIB packages have no such name; keep flashinfer_bench with fib-compat for it"

MEMBERS: Mapping[str, str] = MappingProxyType(
    {
        "model_dump": "use fib_schema.to_plain, or attrs.asdict for settings",
        "model_dump_json": "use fib_schema.format_json",
        "model_validate": "use fib_schema.parse_json, or the constructor",
        "model_validate_json": "use fib_schema.parse_json",
        "model_copy": "use attrs.evolve",
        "get_const_axes": "use .const_axes",
        "get_var_axes": "use .var_axes",
        "get_var_axes_bindings": "use .var_axes_bindings",
        "requires_build": "use .spec.language.is_compiled",
        "is_workload": "use .is_workload_trace()",
    }
)
"""Members that only fib-compat adds to the classes, and what to use with the FIB packages."""


def replacement(module: str, name: str) -> Origin | str:
    """The FIB module and name that replace a name, or the reason why there is none.

    Args:
        module: A module of `flashinfer_bench` by its full name.
        name: One of its names.

    Raises:
        KeyError: `flashinfer_bench` has no such module or name.
    """
    below = module.partition(".")[2]
    if name in REPLACED.get(module, {}):
        return REPLACED[module][name]
    origin = names_of(module)[name]
    if has_module(origin.module):
        return replacement(*origin)
    if origin.module.partition(".")[0] != "fib_compat":
        return origin
    for package, names in _EQUIVALENTS.items():
        if below in _CURRENT_MODULES and name in names.split():
            return Origin(package, name)
    return _ADVICE.get(name, _ONLY_HERE)
