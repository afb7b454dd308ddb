"""The command ``fib-bench tune``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fib_schema import Definition, InvalidField, Solution, TraceSet
from fib_schema.command import add_data_set, data_set_of
from fib_schema.display import format_latency
from rich.console import Console

from ..authoring.inference import infer_kernel
from ..authoring.solutions import base_name, default_author
from ..tuning.space import make_space
from .kernels import add_inference_options, choices_of
from .options import add_json, add_run_options, config_of, set_command
from .output import (
    interruptible,
    make_table,
    output_console,
    print_json,
    print_skipped,
    print_table,
    progress_on,
    safe_cell,
    say,
)

if TYPE_CHECKING:
    from ..tuning.files import Tuned

_LEFT_OUT = frozenset(("definitions", "solutions", "op_types", "quick", "baseline", "reference_as_solution"))


def declare_tune(tune: argparse.ArgumentParser) -> None:
    """Declare ``fib-bench tune``."""
    set_command(tune, _tune)
    text = "a solution of the data set, or a .py, .cu or .cpp file, or a folder of them"
    tune.add_argument("solution", metavar="SOLUTION|FILE", help=text)
    tune.add_argument("--definition", metavar="NAME", required=True, help="what it computes")
    add_data_set(tune)
    tune.add_argument("--space", metavar="YAML", type=Path, help="constants with their values, and constraints")
    tune.add_argument("--output", metavar="DIR", type=Path, help="new folder for results (default: tuned-NAME)")
    tune.add_argument("--resume", action="store_true", help="go on in that folder")
    text = "start no evaluation after this time"
    tune.add_argument("--seconds", metavar="SECONDS", type=float, help=text)
    text = "measure the configurations of this file in full too, and print what they lose"
    tune.add_argument("--verify", metavar="FILE", type=Path, help=text)
    text = "also write the file that vLLM loads for fused experts"
    tune.add_argument("--export", metavar="vllm-moe=FOLDER", type=_export, help=text)
    add_json(tune)
    add_run_options(tune, _LEFT_OUT)
    add_inference_options(tune.add_argument_group("inferred from the file unless given"))


def _export(text: str) -> Path:
    kind, _, path = text.partition("=")
    if kind != "vllm-moe" or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not vllm-moe=FOLDER")
    return Path(path)


def _tune(arguments: argparse.Namespace, errors: Console) -> int:
    """Choose the configuration of a solution for each size among the workloads of a definition.

    The configurations are those of its @triton.autotune, or the values of constants that a space file states:

      parameters: {BLOCK: [16, 32, 64], UNROLL: [1, 2, 4]}
      constraints: ["BLOCK * UNROLL <= 128"]

    A constant is assigned once: BLOCK = 16 in Python, #define BLOCK 16 or constexpr int BLOCK = 16 in C++ and CUDA.
    Each configuration is a solution: it is checked as any other, first quickly, and those that may be the fastest
    somewhere in full. Configurations whose intervals overlap, or are apart by at most 0.5 % or 0.1 us, are equal;
    among equals, the one that is equal for most sizes is chosen. Sizes without a workload get no configuration.

    The folder of results has tuned.json (the table), chosen (a data set for fib-apply) and search (a data set
    of everything, for fib-bench report).

    Examples:
      fib-bench tune kernel.py --definition gemm_n4096_k4096 --device cuda:0
      fib-bench tune kernel.cpp --definition rmsnorm_h1024 --space space.yaml
      fib-bench tune moe.py --definition moe_e128 --export vllm-moe=configs
      fib-bench tune moe.py --definition moe_e128 --verify E=128,N=768,device_name=NVIDIA_H200.json
    """
    root = data_set_of(arguments)
    source = TraceSet.from_path(root)
    definition = source.get_definition(arguments.definition)
    solution = _solution_of(arguments, source, definition)
    space = make_space(solution, arguments.space)
    output: Path = arguments.output or Path(f"tuned-{solution.name}")
    if not source.workloads.get(definition.name):
        raise InvalidField(
            "--definition", f"{definition.name} has no workloads in {root}, and each size to tune needs one"
        )
    if output.exists() and not arguments.resume:
        raise InvalidField("--output", f"{output} exists; go on with --resume, or name another folder")
    from ..tuning.files import Tuned, read_configurations, write_chosen, write_json, write_vllm_moe
    from ..tuning.search import Search

    search = Search(source, space, output / "search", config_of(arguments, source))
    if arguments.verify is not None:
        search.verify(read_configurations(arguments.verify, search.calls))
    with progress_on(errors) as observe, interruptible(lambda: search.stop(at_once=True), errors):
        search.run(arguments.seconds, observe)
    tuned = Tuned(search, search.choices(), shlex.join(["fib-bench", *sys.argv[1:]]))
    print_skipped(errors, search.skipped)
    write_chosen(output / "chosen", tuned)
    if not tuned.choices:
        say(errors, f"nothing chosen; for the reasons: fib-bench report summary {shlex.quote(str(output / 'search'))}")
    write_json(output / "tuned.json", tuned.to_plain())
    say(errors, f"wrote {output / 'tuned.json'}")
    if arguments.export is not None:
        say(errors, f"wrote {write_vllm_moe(arguments.export, tuned)}")
    if arguments.json:
        print_json(tuned.to_plain())
    else:
        _print(tuned)
    return 1 if search.skipped or search.is_stopped or not tuned.choices else 0


def _solution_of(arguments: argparse.Namespace, source: TraceSet, definition: Definition) -> Solution:
    if (found := source.get_solution(arguments.solution)) is not None:
        if found.definition != definition.name:
            raise InvalidField("--definition", f"{found.name} computes {found.definition}")
        return found
    path = Path(arguments.solution)
    kernel = infer_kernel(path, definition, choices_of(arguments))
    return Solution(base_name(path), definition.name, default_author(), kernel.spec, kernel.sources)


def _print(tuned: Tuned) -> None:
    numbers = ("calls", "latency", "equal", "runner-up / chosen")
    table = make_table("", ("size", "configuration"), (*numbers, "verified / best") if tuned.losses() else numbers)
    losses = tuned.losses()
    for choice in tuned.choices:
        size = ", ".join(f"{axis}={value}" for axis, value in choice.key)
        shown = " ".join(f"{name}={value}" for name, value in tuned.search.parameters[choice.chosen].items())
        cells = [f"{choice.calls:.0f}", format_latency(choice.cost.ms), str(len(choice.equals)), _range(choice.gain)]
        cells += [_range(losses.get(choice.key))] if losses else []
        table.add_row(safe_cell(size), safe_cell(shown), *cells)
    print_table(output_console(), table)


def _range(bounds: Sequence[float] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]:.3f} to {bounds[-1]:.3f}"
