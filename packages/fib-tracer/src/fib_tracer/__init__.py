"""Recording of workloads: the calls of a live engine become workload records of a data set.

How a call becomes a record on the disk:

1. `runtime`: `enable_tracing` starts a `TracingRuntime`, which listens to fib-apply. fib-apply asks it once for each
   routed function (`TracingRuntime.bind`) for a callback, and runs the callback before each call of that function.
2. `binding`: the generated callback looks up the call's shapes. If such calls are no longer wanted, it increments
   their counter (`counts`) and returns.
3. `recorder`: the definition's `Recorder` checks the call against the definition, reads the axes' sizes, counts it, and
   asks the filter policy (`policies`). The input dump policy chooses inputs.
4. `copies`: memory is reserved in the byte budget and the chosen tensors are copied, those on a device asynchronously.
   The recorder enqueues a `PendingEntry`, and the engine's function runs.
5. `writer`: the storage thread waits for the copies. It passes the entry to a policy that samples, or checks the
   definition's constraints and makes a record.
6. `records`: the record's uuid is a digest of its contents. `fib_schema.WorkloadLog` appends it to the data set unless
   the uuid is there already, with the tensors in a safetensors file.
7. `counts`: flushes, and the storage thread every minute, save the counts of calls.

`settings` holds what is recorded, of which definitions. `dump_import` imports what FlashInfer recorded itself, through
step 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = [
    "RANDOM",
    "Call",
    "CallReader",
    "Decision",
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
    from fib_schema.settings import InvalidSetting

    from .counts import DefinitionStats
    from .dump_calls import CallReader, NotCovered, ReadCall, RecordedCall
    from .policies import RANDOM, Call, Decision, FilterPolicy, InputDumpPolicy, PolicyRegistry, WorkloadEntry
    from .runtime import TracingRuntime, disable_tracing, enable_tracing, get_tracing_runtime, start_by_environment
    from .settings import (
        Rule,
        TracingConfig,
        TracingConfigRegistry,
        get_attention_only_configs,
        get_default_configs,
        get_full_configs,
    )

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(__name__, "fib-tracer")
