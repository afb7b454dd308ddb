"""Check of decode wrappers for CUDA graphs: solutions are benchmarked, then captured and replayed after later plans.

Our decode solutions are benchmarked on two numbers of pages. Their traces must state `padded_indices`, and on a device
`graph_safe`. Then a wrapper with ``use_cuda_graph=True`` is planned, run, and captured in a graph; after each of some
further plans, the replay is compared with what FlashInfer answers for an ordinary wrapper. On the CPU, with stand-ins
for FlashInfer, a replay is another run of the wrapper. Exits 1 if an answer differs, or no solution served.

usage: graph_wrappers.py DATA_SET                      on a device, with FlashInfer
       graph_wrappers.py DATA_SET --stand-ins 0.6.4    on the CPU, with the stand-ins of fib-integrations' tests
"""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs
import torch
from fib_apply import ApplyConfig, enable_apply, warm_up
from fib_bench import Benchmark, BenchmarkConfig, EvalConfig
from fib_integrations import install_flashinfer_integrations, uninstall_flashinfer_integrations
from fib_schema import Definition, RandomInput, Trace, TraceSet, Workload, load_json_file
from fib_schema.padded_indices import PADDED_INDICES

HERE = Path(__file__).resolve().parent
SUPPORT = HERE.parents[1] / "packages" / "fib-integrations" / "tests" / "support"
sys.path.insert(0, str(HERE.parent / "support"))

from solution_table import capturable_entry, entries_for  # noqa: E402

ON_DEVICE = ("gqa_paged_decode_h16_kv2_d128_ps1", "gqa_paged_decode_h32_kv8_d128_ps64")
ON_CPU = ("gqa_paged_decode_h6_kv1_d128_ps64",)
REQUESTS = 4
PAGES = 24
"""Of the cache."""
BUFFER = 64
"""Page numbers that the wrapper's buffer holds."""
PLANS = ([0, 3, 4, 9, 10], [0, 1, 2, 3, 3], [0, 20, 21, 40, 64], [0, 0, 5, 5, 11])
"""Offsets of pages, the first one at the capture; at the end of some, engines have requests without pages."""
TOLERANCE = 1e-2
_WORKSPACE_BYTES = 128 * 1024 * 1024
_READY_SECONDS = 120.0
_HARDLY_SECONDS = 0.01
"""The time for measuring a latency on the CPU, where only statuses are used."""


@attrs.frozen
class Check:
    """One definition on one device."""

    fi: Any
    definition: Definition
    device: str

    @property
    def page_size(self):
        return self.definition.const_axes["page_size"]

    @property
    def heads(self):
        """The numbers of query and key heads, and their size."""
        query, key, size = (self.definition.const_axes[name] for name in ("num_qo_heads", "num_kv_heads", "head_dim"))
        return query, key, size

    # -- benchmark -----------------------------------------------------------------------------------

    def benchmark(self, work):
        """Benchmark the solution into a data set; returns what its traces lack."""
        (work / "definitions").mkdir(parents=True)
        trace_set = TraceSet.from_path(work)
        trace_set.add_definitions([self.definition])
        trace_set.add_solutions([self._solution()])
        trace_set.add_traces(Trace(self.definition.name, self._workload(total)) for total in (9, 16))
        seconds = None if self.device != "cpu" else _HARDLY_SECONDS
        config = BenchmarkConfig(
            device=self.device, defaults=EvalConfig(num_trials=1, iterations=5, measure_seconds=seconds)
        )
        with Benchmark(trace_set, config) as run:
            run.run_all()
        return self._lacking(TraceSet.from_path(work))

    def _solution(self):
        entry = capturable_entry(self.definition.name)
        if self.device == "cpu":  # an interpreted solution has no latency
            (entry,) = entries_for(self.definition.name, device="cpu")
        assert entry is not None, "the table has a solution"
        return entry.solution(self.definition, "cpu" if self.device == "cpu" else torch.cuda.get_device_name(0))

    def _workload(self, total):
        axes = {"batch_size": REQUESTS, "len_indptr": REQUESTS + 1, "num_pages": PAGES, "num_kv_indices": total}
        return Workload(axes, {name: RandomInput() for name in self.definition.inputs}, f"pages-{total}")

    def _lacking(self, measured):
        fields = [PADDED_INDICES] if self.device == "cpu" else [PADDED_INDICES, "graph_safe"]
        problems = []
        for trace in measured.traces[self.definition.name]:
            assert trace.evaluation is not None, "the benchmark appends evaluations"
            performance = trace.evaluation.performance
            if performance is None:
                problems.append(f"{trace.workload.uuid}: {trace.evaluation.status}: {trace.evaluation.log[-500:]}")
                continue
            timing = (performance.extra or {})["timing"]
            problems += [f"{trace.workload.uuid}: no {f}: {dict(timing)}" for f in fields if timing.get(f) is not True]
        return problems

    # -- replays -------------------------------------------------------------------------------------

    def replay(self, work):
        """Replay a run after later plans; returns what differs from FlashInfer's answers."""
        torch.manual_seed(0)
        query_heads, key_heads, size = self.heads
        q = self._random(REQUESTS, query_heads, size)
        cache = tuple(self._random(PAGES, self.page_size, key_heads, size) for _ in range(2))
        planned = [self._pages(offsets) for offsets in PLANS]
        wanted = [self._expected(pages, q, cache) for pages in planned]
        install_flashinfer_integrations(count_calls=True)
        try:
            with enable_apply(TraceSet.from_path(work), ApplyConfig(require_speedup=False), stats=True) as runtime:
                return self._replay_planned(runtime, planned, wanted, q, cache)
        finally:
            uninstall_flashinfer_integrations()

    def _replay_planned(self, runtime, planned, wanted, q, cache):
        wrapper = self._graph_wrapper()
        outputs = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)

        def run():
            wrapper.run(q, cache, out=outputs[0], lse=outputs[1], return_lse=True)

        self._plan(wrapper, planned[0])
        for _ in range(2):  # the first call requests builds and first runs, the second one is a first run
            run()
            runtime.wait_until_built(_READY_SECONDS)
        run()
        warm_up(_READY_SECONDS)
        before = self._hits(runtime)
        replay = run if self.device == "cpu" else _captured(run)
        problems = []
        for number, (pages, expected) in enumerate(zip(planned, wanted, strict=True)):
            self._plan(wrapper, pages)
            for output in outputs:
                output.fill_(torch.nan)
            replay()
            problems += [f"plan {number}: {problem}" for problem in _differences(outputs, expected)]
        if self._hits(runtime) <= before:
            stats = runtime.stats()[self.definition.name]
            problems.append(f"no solution served: hits {dict(stats.hits)}, misses {dict(stats.misses)}")
        return problems

    def _hits(self, runtime):
        """The calls with padded indices that a solution served; a capture is one call."""
        stats = runtime.stats().get(self.definition.name)
        return sum(count for key, count in (stats.hits if stats else {}).items() if "padded=" in key)

    def _pages(self, offsets):
        indices = torch.randint(PAGES, (offsets[-1],), dtype=torch.int32)
        last = torch.randint(1, self.page_size + 1, (REQUESTS,), dtype=torch.int32)
        return torch.tensor(offsets, dtype=torch.int32), indices, last

    def _random(self, *shape):
        return torch.randn(*shape, device=self.device).to(torch.bfloat16)

    def _plan(self, wrapper, pages):
        tensors = [tensor.to(self.device) for tensor in pages]
        wrapper.plan(*tensors, *self.heads, self.page_size, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)

    def _workspace(self):
        return torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=self.device)

    def _expected(self, pages, q, cache):
        """The answer of an ordinary wrapper; requests without pages are left to the solution."""
        wrapper = self.fi.decode.BatchDecodeWithPagedKVCacheWrapper(self._workspace())
        self._plan(wrapper, pages)
        output, lse = wrapper.run(q, cache, return_lse=True)
        empty = (pages[0].diff() == 0).to(self.device)
        return output.masked_fill(empty[:, None, None], 0.0), lse.masked_fill(empty[:, None], -torch.inf)

    def _graph_wrapper(self):
        """A wrapper whose buffer of page numbers holds no pages yet."""

        def buffer(length, value=0):
            return torch.full((length,), value, dtype=torch.int32, device=self.device)

        return self.fi.decode.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace(),
            use_cuda_graph=True,
            paged_kv_indptr_buffer=buffer(REQUESTS + 1),
            paged_kv_indices_buffer=buffer(BUFFER, 2**31 - 1),
            paged_kv_last_page_len_buffer=buffer(REQUESTS, 1),
        )


def _captured(run):
    """A replay of a run that is captured in a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _differences(found, expected):
    problems = []
    for name, one, other in zip(("output", "lse"), found, expected, strict=True):
        is_close = torch.isclose(one.float(), other.float(), atol=TOLERANCE, rtol=TOLERANCE)
        if not bool(is_close.all()):
            problems.append(f"{name}: {int((~is_close).sum())} of {one.numel()} elements differ from FlashInfer's")
    return problems


def _library(stand_ins, folder):
    """FlashInfer, or a stand-in of a version."""
    if stand_ins:
        sys.path.insert(0, str(SUPPORT))
        module = importlib.import_module("flashinfer_stand_ins")
        sys.path.insert(0, str(module.write(folder, stand_ins)))
    return importlib.import_module("flashinfer")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_set", type=Path)
    parser.add_argument("--stand-ins", metavar="VERSION")
    options = parser.parse_args()
    device, names = ("cpu", ON_CPU) if options.stand_ins else ("cuda:0", ON_DEVICE)
    files = {path.stem: path for path in (options.data_set / "definitions").rglob("*.json")}
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        fi = _library(options.stand_ins, Path(folder) / "library")
        for name in names:
            check, work = Check(fi, load_json_file(Definition, files[name]), device), Path(folder) / name
            problems = check.benchmark(work) or check.replay(work)
            print(f"{name}: {'; '.join(problems) or f'{len(PLANS)} plans replayed, all answers agree'}", flush=True)
            failed = failed or bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
