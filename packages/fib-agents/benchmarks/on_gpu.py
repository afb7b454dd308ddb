"""All tools on one machine, as a page in Markdown: planted defects, and the cost of tools against the bare programs.

It ends within `--budget` seconds: steps that do not fit are named. `--only` measures some steps, such as those that an
earlier run left out. `--device cpu` tries the page out without a GPU, where tools that need one say so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import attrs
import fib_agents as agents
from bare import Bare, phase_table
from defects import (
    DEFECTS,
    DEFINITION,
    LARGE,
    NORM,
    NORM_TORCH,
    NORM_WORKLOAD,
    NOT_PLANTED,
    RIGHT_CPP,
    RIGHT_CUDA,
    RIGHT_TORCH,
    RIGHT_TRITON,
    THREE_KERNELS,
    WORKLOAD,
    WRONG_TORCH,
    Defect,
)
from fib_agents.errors import CountersForbidden, NeedsGpu, ToolFailed
from fib_agents.profiler_output import SECTIONS
from fib_agents.profiling import WARM_CALLS, profiler_command
from fib_agents.sandboxed.jobs import built_before, make_values, write_job
from fib_agents.sandboxed.run import Sandbox, find_program
from fib_agents.sanitizing import ENVIRONMENT, Sanitized, sanitizer_command, with_lines
from fib_agents.workspace import Workspace, read_solution
from fib_bench import BenchmarkConfig
from fib_bench import evaluate as run_evaluation
from fib_bench.events import Event, PhaseTimes
from fib_schema import Solution, Trace, TraceSet

NAME = DEFINITION.name
_TURNS = 3
_PROFILE_SECONDS = 120.0
"""After which no further turn of `profile` and the bare run begins."""
_PAUSE_SECONDS = 1.0
"""In which an agent would think."""
Files = Mapping[str, str]


@attrs.define
class Page:
    """The report, and the time that is left."""

    workspace: Workspace
    path: Path
    end: float
    lines: list[str] = attrs.Factory(list)
    failures: int = 0
    sanitizes_in: Workspace = attrs.field(init=False)
    """Outside of the sandbox, once the sanitizer has failed inside."""

    @sanitizes_in.default
    def _same(self) -> Workspace:
        return self.workspace

    def say(self, text: str = "") -> None:
        """Add to the page, print it, and save it: the machine may be taken away."""
        self.lines.append(text)
        print(text, flush=True)
        self.path.write_text("\n".join(self.lines) + "\n")

    def step(self, title: str, seconds: float, run: Callable[[], Iterator[str]]) -> None:
        """Run a step if its seconds are left; what it raises is written down."""
        self.say(f"\n## {title}\n")
        left = self.end - time.monotonic()
        if left < seconds:
            self.say(f"left out: it takes about {seconds:.0f} s, and {left:.0f} s are left")
            return
        begin = time.monotonic()
        try:
            for line in run():
                self.say(line)
        except NeedsGpu as error:
            self.say(f"not run: {error}")
        except Exception as error:  # noqa: BLE001 - the other steps are worth their time all the same
            self.failures += 1
            self.say(f"failed: {type(error).__name__}: {str(error)[:1500]}")
            traceback.print_exc()
        self.say(f"\n({time.monotonic() - begin:.1f} s)")


def block(text: str) -> str:
    """Text as a block of Markdown."""
    return "\n".join(["```", *text.splitlines(), "```"])


# -- steps ---------------------------------------------------------------------------------------


def machine(page: Page) -> Iterator[str]:
    import torch

    programs = ("nvcc", "ncu", "compute-sanitizer", "cuobjdump", "nvdisasm")
    yield f"- torch {torch.__version__}, Python {sys.version.split()[0]}, device {page.workspace.device}"
    if page.workspace.is_cuda:
        yield f"- {torch.cuda.get_device_name(page.workspace.device)}"
    for program in programs:
        path = shutil.which(program)
        version = _output([path, "--version"]).splitlines()[-2:] if path else ["missing"]
        yield f"- {program}: {' '.join(version)}"
    parameters = Path("/proc/driver/nvidia/params")
    if parameters.exists():
        yield "- " + next(
            (x for x in parameters.read_text().splitlines() if "RmProfilingAdminOnly" in x), "no parameter"
        )
    ended = _sandbox_level(page.workspace)
    yield f"\nIsolation of profilers:\n\n{block(ended)}"


def catalogue(page: Page) -> Iterator[str]:
    """The tools that run nothing."""
    space = page.workspace
    tried = RIGHT_CUDA if space.is_cuda else RIGHT_CPP
    results = (
        agents.list_definitions(space),
        agents.check_source(space, NAME, tried),
        agents.submit(space, NAME, tried, name="right"),
        agents.submit(space, NAME, tried, name="right"),
    )
    yield from (block(result.to_text()) for result in results)


def builds(page: Page) -> Iterator[str]:
    """Compile what later steps need, all at once: nvcc takes longer than most tools."""
    if not page.workspace.is_cuda and not shutil.which("nvcc"):
        yield "not run: nvcc is missing"
        return
    codes = [RIGHT_CUDA, THREE_KERNELS, *(defect.files for defect in DEFECTS if defect.language == "cuda")]
    trace_set = TraceSet.from_path(page.workspace.root)
    plain = [read_solution(page.workspace, trace_set, DEFINITION, dict(files)) for files in codes]
    begin = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ended = list(pool.map(lambda one: _build(page.workspace, one), [*plain, *map(with_lines, plain)]))
    yield f"{len(ended)} solutions in CUDA in {time.monotonic() - begin:.1f} s, exit statuses {sorted(set(ended))}"


def evaluation(page: Page) -> Iterator[str]:
    space = page.workspace
    codes: dict[str, Files] = {"torch": RIGHT_TORCH, "c++": RIGHT_CPP}
    if space.is_cuda:
        codes = {"torch": RIGHT_TORCH, "triton": RIGHT_TRITON, "cuda": RIGHT_CUDA}
    yield "| code | first, s | warm, at once, s | warm, after a pause, s | result |\n| --- | --- | --- | --- | --- |"
    for name, files in codes.items():
        results = [agents.evaluate(space, NAME, files, workloads=[WORKLOAD.uuid]) for _ in range(4)]
        at_once = sorted(one.seconds for one in results[1:])[1]
        after_pause = []
        for _ in range(3):
            time.sleep(_PAUSE_SECONDS)
            after_pause.append(agents.evaluate(space, NAME, files, workloads=[WORKLOAD.uuid]).seconds)
        seconds = f"{results[0].seconds:.2f} | {at_once:.2f} | {sorted(after_pause)[1]:.2f}"
        yield f"| {name} | {seconds} | {results[-1].results[0].status} |"
    yield f"\nSeconds of one warm evaluation by phase:\n\n{block(chr(10).join(_phases(space, codes)))}"
    yield f"\n{block(agents.describe(space, NAME).to_text())}"
    yield block(agents.compare(space, NAME, codes["torch"], list(codes.values())[-1]).to_text())
    yield block(agents.explain_failure(space, NAME, WRONG_TORCH).to_text())


def _phases(space: Workspace, codes: Mapping[str, Files]) -> Iterator[str]:
    """The phases of the last of three evaluations, in the process of the tools or one of the same settings."""
    trace_set = TraceSet.from_path(space.root)
    config = BenchmarkConfig(device=space.device, quick=True, timeout_seconds=space.timeout_seconds)
    for name, files in codes.items():
        solution = read_solution(space, trace_set, DEFINITION, dict(files))
        events: list[Event] = []
        for _ in range(3):
            run_evaluation(
                DEFINITION,
                solution,
                [WORKLOAD],
                config.for_data_set(trace_set),
                root=space.root,
                observe=events.append,
            )
        phases = [event.seconds for event in events if isinstance(event, PhaseTimes)][-1]
        yield f"{name}: " + ", ".join(f"{phase} {taken:.3f}" for phase, taken in phases.items())


def disassembly(page: Page) -> Iterator[str]:
    codes = (RIGHT_CUDA, RIGHT_TRITON) if page.workspace.is_cuda else (RIGHT_CPP,)
    for files in codes:
        begin = time.monotonic()
        result = agents.disassemble(page.workspace, NAME, files)
        yield f"{result.solution}: {time.monotonic() - begin:.1f} s\n\n{block(result.to_text(1500))}"


def profiles(page: Page) -> Iterator[str]:
    tried = THREE_KERNELS if page.workspace.is_cuda else RIGHT_CPP
    space = page.workspace
    start = begin = time.monotonic()
    try:
        result = agents.profile(space, NAME, tried, workload=LARGE.uuid)
    except (CountersForbidden, ToolFailed) as error:
        yield f"in the sandbox: {type(error).__name__}: {error}\n\noutside of the sandbox:"
        space, begin = attrs.evolve(space, trusts_solutions=True), time.monotonic()
        result = agents.profile(space, NAME, tried, workload=LARGE.uuid)
    seconds = time.monotonic() - begin
    text = result.to_text()
    yield f"{len(text)} characters, isolation level {result.isolation_level}\n\n{block(text)}"
    program = find_program("ncu", "")
    yield f"\nthe first profile of the machine took {seconds:.1f} s: programs come from the disk"
    bare = Bare(
        space=space,
        solution=read_solution(space, TraceSet.from_path(space.root), DEFINITION, dict(tried)),
        command=lambda log, call: profiler_command(program, SECTIONS, log, call),
        warm_calls=WARM_CALLS,
    )
    bare.build()
    yield f"the first bare run took {bare.run()[0]:.1f} s; neither counts\n"
    yield "| turn | profile, s | bare ncu, s | difference, s |\n| --- | --- | --- | --- |"
    ours, theirs, phases = [], [], []
    for turn in range(1, _TURNS + 1):
        if turn > 1 and time.monotonic() - start > _PROFILE_SECONDS:
            yield f"| {turn} | left out: {_PROFILE_SECONDS:.0f} s are over | | |"
            break
        begin = time.monotonic()
        result = agents.profile(space, NAME, tried, workload=LARGE.uuid)
        ours.append(time.monotonic() - begin)
        seconds, found = bare.run()
        theirs.append(seconds)
        phases.append((result.phases, found))
        yield f"| {turn} | {ours[-1]:.1f} | {seconds:.1f} | {ours[-1] - seconds:.1f} |"
    difference = statistics.median(ours) - statistics.median(theirs)
    medians = f"profile {statistics.median(ours):.1f} s, bare ncu {statistics.median(theirs):.1f} s"
    yield f"\nmedians: {medians}, difference {difference:.1f} s (limit 2 s)\n"
    yield from phase_table(phases)
    triton = agents.profile(space, NAME, RIGHT_TRITON, workload=LARGE.uuid)
    yield f"\n{block(triton.to_text())}"


def roofline(page: Page) -> Iterator[str]:
    """Tools that show the least latency: the work of a norm is declared, that of `DEFINITION` is not."""
    yield block(agents.describe(page.workspace, NORM.name).to_text())
    yield block(agents.profile(page.workspace, NORM.name, NORM_TORCH).to_text())


def sanitizer_cost(page: Page) -> Iterator[str]:
    tried = THREE_KERNELS if page.workspace.is_cuda else RIGHT_CPP
    begin = time.monotonic()
    result = agents.sanitize(page.sanitizes_in, NAME, tried, workload=LARGE.uuid)
    seconds = time.monotonic() - begin
    yield block(result.to_text())
    program = find_program("compute-sanitizer", "")
    trace_set = TraceSet.from_path(page.workspace.root)
    solution = with_lines(read_solution(page.workspace, trace_set, DEFINITION, dict(tried)))
    bare = Bare(
        space=page.workspace,
        solution=solution,
        command=lambda log, call: sanitizer_command(program, "memcheck", log, call),
        environment=ENVIRONMENT,
    )
    bare.build()
    taken, _ = bare.run()
    difference = f"difference {seconds - taken:.1f} s (limit 2 s)"
    yield f"\nsanitize {seconds:.1f} s, bare compute-sanitizer {taken:.1f} s, {difference}"


def reports(page: Page) -> Iterator[str]:
    """The text of both tools: its length, and its beginning."""
    tried = read_solution(page.workspace, TraceSet.from_path(page.workspace.root), DEFINITION, dict(THREE_KERNELS))
    listed = agents.list_profiler_options()
    yield f"sets and sections, {len(listed.splitlines())} lines\n\n{block(listed[:600])}"
    for name in ("details", "raw", "source"):
        options = agents.ProfilerOptions(section_set="basic" if name != "source" else "full", page=name)
        text = agents.profile_report(page.sanitizes_in, tried, WORKLOAD, options)
        yield f"page {name}, {len(text)} characters\n\n{block(text[:800])}"
    text = agents.sanitizer_report(page.sanitizes_in, tried, WORKLOAD)
    yield f"all checks, {len(text)} characters\n\n{block(text[:2000])}"


def planted(page: Page) -> Iterator[str]:
    yield "| defect | language | check | found | where | s |\n| --- | --- | --- | --- | --- | --- |"
    for defect in DEFECTS:
        if page.end - time.monotonic() < 25:
            yield f"| {defect.name} | {defect.language} | {defect.check} | left out: no time | | |"
            continue
        begin = time.monotonic()
        try:
            try:
                result = agents.sanitize(page.sanitizes_in, NAME, defect.files, checks=[defect.check])
            except ToolFailed as error:
                if page.sanitizes_in.trusts_solutions:
                    raise
                page.say(f"| in the sandbox | | | {str(error)[:300].replace(chr(10), ' ').replace('|', '/')} | | |")
                page.sanitizes_in = attrs.evolve(page.workspace, trusts_solutions=True)
                result = agents.sanitize(page.sanitizes_in, NAME, defect.files, checks=[defect.check])
            found, where = _judge(defect, result)
        except Exception as error:  # noqa: BLE001 - the other defects are worth their time all the same
            found, where = f"error: {type(error).__name__}", str(error)[:200].replace("\n", " ").replace("|", "/")
        seconds = time.monotonic() - begin
        yield f"| {defect.name} | {defect.language} | {defect.check} | {found} | {where} | {seconds:.1f} |"
    yield "\n" + "\n".join(NOT_PLANTED)


# -- parts of steps ------------------------------------------------------------------------------


def _judge(defect: Defect, result: Sanitized) -> tuple[str, str]:
    """Whether a defect was found, and the place that the report names."""
    (check,) = result.checks
    if check.problem and not check.defects:
        return f"no: {check.problem[:120]}", ""
    if not check.defects:
        return "no", check.summary
    lines = [text.splitlines() for text in defect.files.values()]
    for one in check.defects:
        for place in one.places:
            if place.line is not None and any(
                place.line <= len(text) and defect.line in text[place.line - 1] for text in lines
            ):
                return "yes, right line", f"{Path(place.file or '').name}:{place.line}"
    first = check.defects[0]
    return "yes", f"{first.kind} at {', '.join(map(str, first.places)) or 'no place'}"[:160]


def _build(space: Workspace, solution: Solution) -> int | None:
    with Sandbox(space, solution) as sandbox:
        values = make_values(space, DEFINITION, WORKLOAD, "normal")
        call = write_job(sandbox, space, DEFINITION, solution, WORKLOAD, values)
        variables = {} if space.is_cuda else {"FIB_CUDA_ARCH_LIST": "9.0a"}
        ended = sandbox.run(built_before(call, ["/bin/true"]), timeout_seconds=100, environment=variables)
        if ended.code != 0:
            print(ended.output, file=sys.stderr)
        return ended.code


def _sandbox_level(space: Workspace) -> str:
    solution = read_solution(space, TraceSet.from_path(space.root), DEFINITION, dict(RIGHT_TORCH))
    with Sandbox(space, solution, local_sockets=True) as sandbox:
        return sandbox.run([sys.executable, "-c", "pass"], timeout_seconds=30).isolation


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


STEPS: Mapping[str, tuple[float, Callable[[Page], Iterator[str]]]] = {
    "machine": (5, machine),
    "catalogue": (5, catalogue),
    "builds": (30, builds),
    "evaluation": (25, evaluation),
    "profiles": (30, profiles),
    "roofline": (20, roofline),
    "planted defects": (30, planted),
    "sanitizer": (30, sanitizer_cost),
    "reports": (40, reports),
    "disassembly": (15, disassembly),
}
"""By name: about how many seconds a step takes, after `builds`, and what it does. Each runs without the others, too."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder for agents.md")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, default=240.0, metavar="SECONDS")
    parser.add_argument("--only", action="append", choices=list(STEPS), help="run this step; may be repeated")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("FIB_CACHE_PATH", tempfile.mkdtemp(prefix="fib-agents-cache-"))
    end = time.monotonic() + options.budget
    with tempfile.TemporaryDirectory() as folder:
        trace_set = TraceSet(folder)
        trace_set.add_definitions([DEFINITION, NORM])
        trace_set.add_traces([Trace(NAME, WORKLOAD), Trace(NAME, LARGE), Trace(NORM.name, NORM_WORKLOAD)])
        page = Page(Workspace(folder, options.device), options.output / "agents.md", end)
        page.say(f"# Tools for agents on {options.device}")
        for title in options.only or STEPS:
            seconds, step = STEPS[title]
            page.step(title.capitalize(), seconds, partial(step, page))
    sys.exit(1 if page.failures else 0)


if __name__ == "__main__":
    main()
