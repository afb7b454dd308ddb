"""Module paths that only regroup names, made from a table instead of files.

The first release had a module for each class. Programs still import these paths, but they hold no code: a row of
`MODULES` states which module has the names today, and `TableFinder` compiles it to the source that a file would hold.
The paths of the current documents are files, which type checkers can read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import MappingProxyType, ModuleType

PACKAGE = __name__.rpartition(".")[0]
MODULES: Mapping[str, str] = MappingProxyType(
    {
        "apply.api": "flashinfer_bench.apply: apply disable_apply enable_apply",
        "apply.config": "flashinfer_bench.apply: ApplyConfig ApplyConfigRegistry get_default_registry",
        "apply.hook": "flashinfer_bench.apply: get_apply_hook set_apply_hook",
        "apply.key": (
            "fib_apply: ApplyKey ApplyKeyBuilder ApplyKeyFactory "
            "AxesOnlyKeyBuilder GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder"
        ),
        "apply.runtime": "flashinfer_bench.apply: ApplyRuntime get_runtime set_runtime",
        "apply.table": "fib_apply: ApplyTable",
        "bench.benchmark": "flashinfer_bench.bench: Benchmark",
        "bench.config": "flashinfer_bench.bench: BenchmarkConfig EvalConfig ResolvedEvalConfig",
        "bench.runner": "",
        "bench.runners": "",
        "bench.runners.mp_runner": "",
        "compile.builders.cuda_builder": "flashinfer_bench.compile.builders: CUDABuilder",
        "compile.builders.python_builder": "flashinfer_bench.compile.builders: PythonBuilder",
        "compile.builders.triton_builder": "flashinfer_bench.compile.builders: TritonBuilder",
        "compile.registry": "flashinfer_bench.compile: BuilderRegistry get_registry",
        "compile.runnable": "flashinfer_bench.compile: Runnable RunnableMetadata",
        "data.definition": (
            "flashinfer_bench.data: ALLOWED_DTYPES AxisConst AxisSpec AxisVar DType Definition TensorSpec"
        ),
        "data.solution": ("flashinfer_bench.data: BuildSpec Solution SourceFile SupportedBindings SupportedLanguages"),
        "data.trace": (
            "flashinfer_bench.data: Correctness Environment Evaluation EvaluationStatus InputDesc InputSpec "
            "Performance RandomInput SafetensorsInput ScalarInput ScalarValue Trace Workload"
        ),
        "data.traceset": "flashinfer_bench.data: TraceSet",
        "integration": "",
        "integration.flashinfer": "fib_integrations: install_flashinfer_integrations",
        "integration.flashinfer.adapters": "",
        "integration.flashinfer.adapters.gqa_paged_decode": ("fib_integrations.adapters.gqa_paged: GQA_PAGED_DECODE"),
        "integration.flashinfer.adapters.gqa_paged_prefill": ("fib_integrations.adapters.gqa_paged: GQA_PAGED_PREFILL"),
        "integration.flashinfer.adapters.mla_paged": "fib_integrations.adapters.mla_paged: MLA_PAGED",
        "integration.flashinfer.adapters.ragged_prefill": "fib_integrations.adapters.ragged_prefill: RAGGED_PREFILL",
        "integration.flashinfer.common": "",
        "integration.patch_manager": "fib_integrations.patching: Kind PatchManager PatchSpec get_manager",
        "integration.utils": "",
        "tracer.hook_impl": "flashinfer_bench.tracer: make_tracing_hook",
        "tracer.rule": "flashinfer_bench.tracer: fib_attn_tracing fib_full_tracing",
        "tracer.tracer": "flashinfer_bench.tracer: Tracer disable_tracing enable_tracing get_tracer",
    }
)
"""By module below this package: the module that has the names, and the names; empty if all are replaced."""


class TableFinder(MetaPathFinder, InspectLoader):
    """Finds and loads the modules of the table.

    `InspectLoader` of the standard library compiles the source, so that ``python -m``, ``importlib.util.find_spec`` and
    ``importlib.reload`` treat these modules like files.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a module of the table, else None."""
        del path, target
        return spec_from_loader(fullname, self) if _row(fullname) is not None else None

    def is_package(self, fullname: str) -> bool:
        """Whether the table has modules below this one."""
        below = f"{_below_package(fullname)}."
        return any(name.startswith(below) for name in MODULES)

    def get_source(self, fullname: str) -> str:
        """The source that a file in the place of a row would hold.

        Raises:
            ImportError: The table has no such module.
        """
        row = _row(fullname)
        if row is None:
            raise ImportError(f"no module {fullname!r} in the table of {PACKAGE}", name=fullname)
        module, _, listed = row.partition(": ")
        names = listed.split()
        lines = [f'"""Names that the first release had here. `{PACKAGE}.replaced` explains those that are gone."""']
        if names:
            lines.append(f"from {module} import {', '.join(names)}")
        lines += [f"from {PACKAGE}.replaced import make_getattr", f"__all__ = {names!r}"]
        lines.append("__getattr__ = make_getattr(__name__)")
        return "\n".join(lines) + "\n"


def install_finder() -> None:
    """Make the modules of the table importable; files precede them."""
    if not any(type(finder).__qualname__ == TableFinder.__qualname__ for finder in sys.meta_path):
        sys.meta_path.append(TableFinder())


def _row(fullname: str) -> str | None:
    return MODULES.get(_below_package(fullname)) if fullname.startswith(f"{PACKAGE}.") else None


def _below_package(fullname: str) -> str:
    return fullname.removeprefix(f"{PACKAGE}.")
