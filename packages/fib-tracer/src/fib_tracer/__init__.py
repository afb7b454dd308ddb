"""Recording of workloads: the calls of a live engine become workload records of a data set.

How a call becomes a record on the disk:

1. `runtime`: `enable_tracing` starts a `TracingRuntime`, which listens to fib-apply. fib-apply asks it once for each
   routed function (`TracingRuntime.bind`) for a callback, and runs the callback before each call of that function.
2. `capture.binding`: the generated callback looks up the call's shapes. If such calls are no longer wanted, it
   increments their counter (`capture.call_counts`) and returns.
3. `capture.recorder`: the definition's `Recorder` checks the call against the definition, reads the axes' sizes,
   counts it, and asks the filter policy (`policies.filtering`) for a verdict. The input dump policy
   (`policies.dumping`) chooses inputs.
4. `capture.copies`: memory is reserved in the byte budget and the chosen tensors are copied, those on a device
   asynchronously. The recorder enqueues a `PendingEntry`, and the engine's function runs.
5. `storage.writer`: the storage thread passes the entry to `storage.entries`, which waits for the copies. It passes
   the entry to a policy that samples, or checks the definition's constraints and makes a record.
6. `storage.records`: the record's uuid is a digest of its contents. `fib_schema.WorkloadLog` appends it to the data set
   unless the uuid is there already, with the tensors in a safetensors file.
7. `storage.traffic_file`: flushes, and the storage thread every minute, save the counts of calls.

Calls captured in CUDA graphs (`capture.graphs`) enter at step 3 after a replay. `config` holds the settings, `signals`
and `runtime` flush when the process ends. `dumps` imports what FlashInfer recorded itself, through step 3.
`maintenance` surveys, deduplicates and samples data sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = [
    "RANDOM",
    "Call",
    "CallReader",
    "DefinitionStats",
    "FilterPolicy",
    "InputDumpPolicy",
    "InvalidSetting",
    "NotCovered",
    "PolicyRegistry",
    "ReadCall",
    "RecordedCall",
    "Rule",
    "TracingConfig",
    "TracingConfigRegistry",
    "TracingRuntime",
    "Verdict",
    "WorkloadEntry",
    "__version__",
    "disable_tracing",
    "enable_tracing",
    "get_attention_only_configs",
    "get_default_configs",
    "get_full_configs",
    "get_tracing_runtime",
    "start_by_environment",
]

require_linux("fib-tracer")

if TYPE_CHECKING:
    from .config import (
        TracingConfigRegistry,
        get_attention_only_configs,
        get_default_configs,
        get_full_configs,
    )
    from .errors import InvalidSetting
    from .policies.calls import RANDOM, Call, WorkloadEntry
    from .policies.dumping import InputDumpPolicy
    from .policies.filtering import FilterPolicy, Verdict
    from .policies.registry import PolicyRegistry
    from .recorded_calls import CallReader, NotCovered, ReadCall, RecordedCall
    from .runtime import TracingRuntime, disable_tracing, enable_tracing, get_tracing_runtime, start_by_environment
    from .stats import DefinitionStats
    from .tracing_config import Rule, TracingConfig

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        "fib-tracer",
        {
            "config": "TracingConfigRegistry get_attention_only_configs get_default_configs get_full_configs",
            "errors": "InvalidSetting",
            "policies.calls": "Call RANDOM WorkloadEntry",
            "policies.dumping": "InputDumpPolicy",
            "policies.filtering": "FilterPolicy Verdict",
            "policies.registry": "PolicyRegistry",
            "recorded_calls": "CallReader NotCovered ReadCall RecordedCall",
            "runtime": "TracingRuntime disable_tracing enable_tracing get_tracing_runtime start_by_environment",
            "stats": "DefinitionStats",
            "tracing_config": "Rule TracingConfig",
        },
    )
