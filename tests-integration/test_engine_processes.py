"""Processes of the harness of engines on the CPU, with stand-ins for vLLM, FlashInfer and the benchmark.

All other parts are real: tracing in both modes, data sets of arms, warm-up, routed engines and two ranks.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from fib_schema import TraceSet
from public_data_set import needs_data_set, public_set

FOLDER = Path(__file__).parent
ENGINES = FOLDER / "engines"
STAND_INS = FOLDER.parent / "packages" / "fib-integrations" / "tests" / "support"
DECODE, PREFILL = "gqa_paged_decode_h32_kv8_d128_ps64", "gqa_paged_prefill_causal_h32_kv8_d128_ps64"
NORM = "rmsnorm_h4096"
BEST = "the fallback is the best"


@attrs.frozen
class Harness:
    """The programs of the harness in a folder, with the stand-ins on their path."""

    out: Path
    environment: dict[str, str]

    def run(self, program, *arguments, code=0):
        command = [sys.executable, str(program), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def trace(self, mode, code=0):
        return self.run(ENGINES / "vllm_arms.py", "trace", str(self.out), "--mode", mode, code=code)

    def engine(self, arm, mode="eager"):
        record = self.out / f"{arm}-{mode}.json"
        arguments = ["engine", str(self.out), "--arm", arm, "--mode", mode, "--record", str(record), "--turns", "1"]
        self.run(ENGINES / "vllm_arms.py", *arguments)
        return dict(json.loads(record.read_text()))


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """A folder with traced workloads, made-up evaluations and the arms."""
    folder = tmp_path_factory.mktemp("engines")
    site, out = folder / "site", folder / "out"
    site.mkdir()
    code = f"import flashinfer_stand_ins as f, pathlib; f.write(pathlib.Path({str(site)!r}), '0.6.4')"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(STAND_INS)}, check=True)
    shutil.copytree(ENGINES / "vllm_stand_in", site / "vllm")
    (site / "vllm-0.26.0.dist-info").mkdir()
    (site / "vllm-0.26.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    paths = [str(site), str(STAND_INS), str(ENGINES), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "FIB_CACHE_PATH": str(folder / "cache")}
    made = Harness(out, environment)
    (out / "tracing").mkdir(parents=True)
    data_set = TraceSet.from_path(out / "tracing")
    data_set.add_definitions([public_set().get_definition(name) for name in (DECODE, PREFILL, NORM)])
    made.trace("eager")
    made.trace("graphs")
    (out / "tracing").rename(out / "dataset")
    made.run(ENGINES / "arm_data_sets.py", "solutions", str(out))
    made.run(ENGINES / "engine_bench.py", str(out / "dataset"))
    printed = made.run(ENGINES / "arm_data_sets.py", "arms", str(out))
    assert f"routed, {DECODE}: 2 of 2 keys have a solution on cpu" in printed
    return made


@needs_data_set
@pytest.mark.slow
class TestProcesses:
    def test_both_modes_are_traced(self, harness):
        workloads = TraceSet.from_path(harness.out / "dataset").workloads
        assert {trace.workload.axes["batch_size"] for trace in workloads[DECODE]} == {1, 4}
        assert len(workloads[DECODE]) > len(TraceSet.from_path(harness.out / "arms" / "routed").definitions)
        captured = json.loads((harness.out / "traced-graphs.json").read_text())["captured"]
        assert captured["traced"] == {DECODE: 2}

    def test_calls_of_the_overhead_arm_are_decided_by_their_keys(self, harness):
        """Attention goes to the original, which is the best by a recorded key; the norm is called as a solution."""
        plain, routed = harness.engine("plain"), harness.engine("routed")
        assert routed["tokens"] == plain["tokens"]
        assert set(routed["hits"]) == {NORM}
        assert set(routed["misses"]) == {f"{DECODE}: {BEST}", f"{PREFILL}: {BEST}"}
        assert not routed["unsupported"]
        assert not any(plain[kind] for kind in ("hits", "misses", "unsupported"))

    def test_slow_solutions_are_called(self, harness):
        slow = harness.engine("slow")
        assert {name for name, count in slow["hits"].items() if count} == {DECODE, PREFILL, NORM}
        assert not slow["misses"]

    def test_captured_calls_are_counted(self, harness):
        record = harness.engine("routed", "graphs")
        assert record["captured"]["misses"] == {f"{DECODE}: not recorded": 2}
        assert set(record["misses"]) == {f"{PREFILL}: {BEST}"}

    def test_two_ranks_are_traced_and_routed(self, harness):
        harness.run(ENGINES / "two_ranks.py", "trace", str(harness.out))
        printed = harness.run(ENGINES / "two_ranks.py", "route", str(harness.out), "routed")
        assert f"by rank 0 in the last generation: {{'{PREFILL}': 1, '{DECODE}': 2}}" in printed
        for name in ("trace", "route-routed"):
            assert json.loads((harness.out / "two-ranks" / f"{name}.json").read_text())["problems"] == []

    def test_the_tutorial_is_followed(self, harness, tmp_path):
        """All its commands but the benchmark are the real ones; Triton interprets its kernel."""
        commands = {
            "python": '"$@"',
            "fib-apply": '-c "import sys; from fib_apply.cli import main; sys.exit(main())" "$@"',
            "fib-integrations": '-c "import sys; from fib_integrations.cli import main; sys.exit(main())" "$@"',
            "fib-bench": '-c "import sys; from fib_bench.cli.main import main; sys.exit(main())" "$@"',
        }
        (tmp_path / "bin").mkdir()
        for name, arguments in commands.items():
            program = tmp_path / "bin" / name
            line = f"exec {sys.executable} {arguments}\n"
            if name == "fib-bench":
                line = f'[ "$1" != run ] || exec {sys.executable} {ENGINES / "engine_bench.py"} "$2"\n{line}'
            program.write_text(f"#!/usr/bin/env bash\n{line}")
            program.chmod(0o755)
        path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
        there = attrs.evolve(harness, environment={**harness.environment, "PATH": path, "TRITON_INTERPRET": "1"})
        there.run(
            ENGINES / "follow_tutorial.py", str(tmp_path / "tutorial"), str(harness.out / "dataset" / "definitions")
        )
        found = json.loads((tmp_path / "tutorial" / "followed.json").read_text())
        assert found["problems"] == []
        assert f"{PREFILL}: 0 calls routed, the others: {{'{BEST}'" in found["value"]


FLASHINFER_JIT = """
import os, pathlib

class Module:
    def __init__(self, *kind):
        self.name = "_".join(str(word).removeprefix("torch.") for word in kind)
        self.jit_library_path = pathlib.Path(os.environ["FLASHINFER_WORKSPACE_BASE"], self.name)

    def build(self, verbose):
        assert pathlib.Path(os.environ["FLASHINFER_EXTRA_LDFLAGS"].removeprefix("-L"), "libcuda.so").exists()
        self.jit_library_path.write_text(os.environ["FLASHINFER_EXTRA_CUDAFLAGS"])

gen_batch_prefill_module = Module
"""


def test_libraries_of_flashinfer_are_compiled_for_its_folder_of_libraries(tmp_path):
    modules = tmp_path / "site" / "flashinfer" / "jit" / "attention" / "modules.py"
    modules.parent.mkdir(parents=True)
    modules.write_text(FLASHINFER_JIT)
    out = tmp_path / "aot"
    command = [sys.executable, str(ENGINES / "compile_flashinfer.py"), str(out), "--include", "/include"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, check=True)
    assert len(list(out.iterdir())) == 3
    for folder in out.iterdir():
        assert (folder / f"{folder.name}.so").read_text() == "-I/include"
