"""Solutions of other authors, and a data set with what they need, for ``on_gpu.py --sections real``.

    python others.py CLONES DATASET OUT

``others.toml`` lists the solutions and says by which rule they were chosen. Each file is read at its commit from clones
(``CLONES/owner/name``); nothing of them is in this repository. OUT gets ``solutions`` and
``dataset``: definitions of DATASET, or derived from them by other constants, with up to three workloads each. These are
recorded ones where DATASET has some, small, large and middle; otherwise of the sizes of `published_set`, with random
inputs and the scalars that users of a definition have. Problems in KernelBench's form have their own inputs.

All that is missing is printed, and the exit status is 1 then: files, commits, definitions, and entry points whose
parameters are not those of the definition.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import attrs
from fib_bench.authoring.inference import STYLES, Choices, infer_sources
from fib_bench.problem_import import add_problem, read_kernelbench
from fib_schema import AxisConst, Definition, FibError, Solution, SourceFile, Trace, TraceSet, format_json, parse_json
from published_set import workloads_of

LIST = Path(__file__).with_name("others.toml")
DERIVED: dict[str, tuple[str, dict[str, int]]] = {
    "gdn_prefill_qk4_v8_d128_k_last": (
        "gdn_prefill_qk8_v16_d128_k_last", {"num_q_heads": 4, "num_k_heads": 4, "num_v_heads": 8},
    ),
    "gemm_n28672_k4096": ("gemm_n4096_k4096", {"N": 28672}),
    "gqa_paged_decode_h32_kv4_d128_ps1": ("gqa_paged_decode_h20_kv4_d128_ps1", {"num_qo_heads": 32}),
    "mla_paged_decode_h16_ckv512_kpe64_ps1": ("mla_paged_decode_h8_ckv512_kpe64_ps1", {"num_qo_heads": 16}),
    "mla_paged_prefill_causal_h16_ckv512_kpe64_ps1": (
        "mla_paged_prefill_causal_h8_ckv512_kpe64_ps1", {"num_qo_heads": 16},
    ),
}  # fmt: skip
"""Definitions that the public data set lacks: that of a sibling, and the constants that differ."""
_WORKLOADS = 3
_HARDWARE = ("cuda",)


@attrs.frozen(kw_only=True)
class Entry:
    """A solution of the list."""

    repository: str
    commit: str
    paths: tuple[str, ...] = attrs.field(converter=tuple)
    """Files, the entry file among them; one that ends in ``.json`` is a solution with its sources."""
    definition: str
    language: str
    entry_point: str
    destination_passing_style: bool
    author: str
    problem: str = ""
    """A file in KernelBench's form, which gives the definition; `paths` is a file with `ModelNew` then."""

    @property
    def name(self) -> str:
        """The name of the solution."""
        return f"{self.author}_{self.definition}_{self.language}"

    def read(self, clones: Path, path: str) -> str:
        """The text of a file at the commit."""
        clone = clones / self.repository
        if not clone.is_dir():
            raise FileNotFoundError(f"no clone of {self.repository} in {clones}")
        command = ["git", "-C", str(clone), "show", f"{self.commit}:{path}"]
        run = subprocess.run(command, capture_output=True, check=False)
        if run.returncode:
            raise FileNotFoundError(run.stderr.decode(errors="replace").strip())
        return run.stdout.decode()

    def sources(self, clones: Path) -> tuple[SourceFile, ...]:
        """The files, or those in solutions in JSON."""
        texts = {PurePosixPath(path).name: self.read(clones, path) for path in self.paths}
        if all(name.endswith(".json") for name in texts):
            found = [source for text in texts.values() for source in json.loads(text)["sources"]]
            return tuple(SourceFile(source["path"], source["content"]) for source in found)
        return tuple(SourceFile(name, text) for name, text in texts.items())

    def solution(self, sources: tuple[SourceFile, ...], definition: Definition) -> Solution:
        """The solution; `FibError` or ValueError if there is no such entry point, or it is not called as listed."""
        style = STYLES[not self.destination_passing_style] if self.language == "cuda" else None  # no names to infer by
        choices = Choices(language=self.language, entry_point=self.entry_point, style=style, hardware=_HARDWARE)
        spec = infer_sources(self.name, sources, definition, choices).spec
        if spec.destination_passing_style != self.destination_passing_style:
            raise ValueError(f"{self.entry_point} is called in the other style ({' or '.join(STYLES)})")
        origin = f"from https://github.com/{self.repository} {self.commit} {' '.join(self.paths)}"
        return Solution(self.name, self.definition, self.author, spec, sources, description=origin)


def entries() -> list[Entry]:
    """The list."""
    return [Entry(**fields) for fields in tomllib.loads(LIST.read_text("utf-8"))["solution"]]


def definition_of(public: TraceSet, name: str) -> Definition:
    """A definition of the public data set, or one derived from it: its constants and its reference's checks change."""
    if name not in DERIVED or name in public.definition_names():
        return public.get_definition(name)
    sibling, constants = DERIVED[name]
    definition = public.get_definition(sibling)
    axes, reference = dict(definition.axes), definition.reference
    for axis, value in constants.items():
        before = definition.const_axes[axis]
        axes[axis] = AxisConst(value)
        reference = re.sub(rf"\b({axis} ==? ){before}\b", rf"\g<1>{value}", reference)
    text = f"{sibling} with other constants: {constants}."
    return attrs.evolve(definition, name=name, axes=axes, reference=reference, description=text, tags=())


def add(entry: Entry, clones: Path, public: TraceSet, root: Path) -> tuple[Definition, tuple[SourceFile, ...]]:
    """Add the definition of a solution with its workloads to the data set; returns it and the solution's sources."""
    sources = entry.sources(clones)
    if entry.problem:
        with tempfile.TemporaryDirectory() as folder:
            problem, own = Path(folder, "problem.py"), Path(folder, "own.py")
            problem.write_text(entry.read(clones, entry.problem), "utf-8")
            own.write_text(sources[0].content, "utf-8")
            foreign = read_kernelbench(problem, name=entry.definition)
            return add_problem(root, foreign.problem).definition, foreign.solution(own)
    definition, made = definition_of(public, entry.definition), TraceSet.from_path(root)
    if definition.name not in made.definition_names():
        made.add_definitions([definition])
        some, _ = workloads_of(public, definition, _WORKLOADS)
        made.add_traces([Trace(definition.name, workload) for workload in some])
    return definition, sources


def write(clones: Path, public: TraceSet, out: Path) -> Iterator[str]:
    """Write solutions and data set into a new folder; yields what is missing."""
    (out / "solutions").mkdir(parents=True)
    (out / "dataset").mkdir()
    found: list[Entry] = []
    for entry in entries():
        try:
            definition, sources = add(entry, clones, public, out / "dataset")
            text = format_json(entry.solution(sources, definition))
            parse_json(text, Solution)
        except (FibError, OSError, ValueError) as error:
            yield f"{entry.name}: {error}"
        else:
            (out / "solutions" / f"{entry.name}.json").write_text(text, "utf-8")
            found.append(entry)
    authors, definitions = {entry.author for entry in found}, {entry.definition for entry in found}
    print(f"{len(found)} solutions of {len(authors)} authors for {len(definitions)} definitions")


def main() -> int:
    """Write all; returns 1 if something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("clones", "dataset", "out"):
        parser.add_argument(name, type=Path, metavar=name.upper())
    arguments = parser.parse_args()
    if arguments.out.exists():
        parser.error(f"{arguments.out} exists; remove it, or name another folder")
    missing = list(write(arguments.clones, TraceSet.from_path(arguments.dataset), arguments.out))
    for problem in missing:
        print(problem, file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
