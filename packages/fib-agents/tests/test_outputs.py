"""Parsers of the tools' outputs: formats of several versions, and text that is made to mislead them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import attrs
import pytest
from fib_agents.disassembler_output import architecture_of, own_native_code, parse_functions, parse_native
from fib_agents.errors import CountersForbidden, ToolFailed
from fib_agents.occupancy import occupancy
from fib_agents.profiler_output import Kernel, parse_profile
from fib_agents.profiling import Profile, checked_table, profiler_command
from fib_agents.sandboxed.run import find_program
from fib_agents.sanitizer_output import Place, parse_sanitizer
from fib_agents.sanitizing import check_result, sanitizer_command
from hypothesis import given
from hypothesis import strategies as st

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at Kernel(float *, int)+0x90 in /tmp/x/kernel.cu:12
=========     by thread (96,0,0) in block (3,0,0)
=========     Access to 0x7f2b5a000600 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2b5a000400 of size 512 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: [0x2dbb3f] in libcuda.so.1
=========         Host Frame: run at kernel.cu:30 [0xb0c1] in library.so
=========
========= Invalid __global__ write of size 4 bytes
=========     at Kernel(float *, int)+0x90 in /tmp/x/kernel.cu:12
=========     by thread (97,0,0) in block (3,0,0)
=========     Access to 0x7f2b5a000604 is out of bounds
=========
========= ERROR SUMMARY: 2 errors
"""
OLD_MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 2 bytes
=========     at 0x160 in /home/x/kernel.cu:6:Kernel(void)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x401 is misaligned
=========
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at Kernel(int *)+0x90 in kernel.cu:12
=========     and Read access at Kernel(int *)+0xd0 in kernel.cu:15 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at _add_kernel+0x70
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f0000000000
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at Kernel(float *)+0x40 in kernel.cu:9
=========     by thread (0,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
COLUMNS = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "launch__registers_per_thread",
    "launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic", "launch__block_size",
    "launch__grid_size", "launch__occupancy_limit_registers", "launch__occupancy_limit_warps",
    _STALL.format("long_scoreboard"), _STALL.format("barrier"), _STALL.format("long_scoreboard_not_issued"),
)  # fmt: skip
UNITS = ("",) * 11 + ("nsecond", "%", "%", "register/thread", "byte/block", "byte/block", "", "", "block", "block")
ROW = (
    "0", "1", "python", "host", "Softmax, \"x\"(float*)", "1", "7", "(256,1,1)", "(64,1,1)", "0", "9.0",
    "3,456", "12.5", "81.25", "40", "128", "1,024", "256", "64", "6", "8", "14.5", "2.25", "13",
)  # fmt: skip


def table(*rows: tuple[str, ...], units: tuple[str, ...] = UNITS) -> str:
    padded = (*units, *[""] * (len(COLUMNS) - len(units)))
    lines = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in (COLUMNS, padded, *rows)]
    return "==PROF== Connected to process 1 (/usr/bin/python)\n==PROF== Profiling\n" + "\n".join(lines) + "\n"


def test_equal_defects_are_counted_with_file_line_and_thread() -> None:
    (defect,), summary = parse_sanitizer(MEMCHECK)
    assert (defect.kind, defect.count) == ("Invalid __global__ write of size 4 bytes", 2)
    assert defect.places == (Place("Kernel(float *, int)", "/tmp/x/kernel.cu", 12),)
    assert defect.detail.startswith("thread (96,0,0) of block (3,0,0); Access to 0x7f2b5a000600 is out of bounds")
    assert summary == "ERROR SUMMARY: 2 errors"


@pytest.mark.parametrize(
    ("text", "kind", "places"),
    [
        (OLD_MEMCHECK, "Invalid __shared__ read of size 2 bytes", [Place("Kernel(void)", "/home/x/kernel.cu", 6)]),
        (
            RACECHECK,
            "Race reported between Write access",
            [Place("Kernel(int *)", "kernel.cu", 12), Place("Kernel(int *)", "kernel.cu", 15)],
        ),
        (INITCHECK, "Uninitialized __global__ memory read of size 4 bytes", [Place("_add_kernel", None, None)]),
        (SYNCCHECK, "Barrier error detected. Divergent thread(s) in block", [Place("Kernel(float *)", "kernel.cu", 9)]),
    ],
)
def test_defects_of_each_tool_and_version_are_read(text: str, kind: str, places: list[Place]) -> None:
    (defect,), _ = parse_sanitizer(text)
    assert defect.kind == kind
    assert list(defect.places) == places


def test_a_check_says_whether_it_finished() -> None:
    assert check_result("memcheck", CLEAN, 0, "", 1.0).problem == ""
    assert check_result("memcheck", MEMCHECK, 86, "", 1.0).defects
    assert "choose a smaller workload" in check_result("memcheck", CLEAN, None, "", 300.0).problem
    failed = check_result("memcheck", CLEAN, 1, "boom", 1.0)
    assert (failed.problem, failed.output) == ("the call failed with exit status 1", "boom")
    with pytest.raises(ToolFailed, match=r"(?s)wrote no summary, exit status 1.*\| no such device"):
        check_result("memcheck", "", 1, "no such device", 1.0)


def test_metrics_of_each_kernel_are_read_with_their_units() -> None:
    found = parse_profile(table(ROW, (*ROW[:4], "Second", *ROW[5:])))
    assert [kernel.name for kernel in found.kernels] == ['Softmax, "x"(float*)', "Second"]
    kernel = found.kernels[0]
    assert kernel.duration_us == pytest.approx(3.456)
    assert kernel.percent == {"compute": 12.5, "memory": 81.25}
    assert kernel.launch == {"registers": 40.0, "block_threads": 256.0, "grid_blocks": 64.0}
    assert (kernel.shared_bytes, kernel.limiter) == (1152.0, "registers")
    assert kernel.stalls == (("long scoreboard", 14.5), ("barrier", 2.25))


def test_durations_in_other_units_are_converted() -> None:
    units = tuple("usecond" if unit == "nsecond" else unit for unit in UNITS)
    assert parse_profile(table(ROW, units=units)).kernels[0].duration_us == pytest.approx(3456.0)
    unknown = tuple("fortnight" if unit == "nsecond" else unit for unit in UNITS)
    assert parse_profile(table(ROW, units=unknown)).kernels[0].duration_us is None


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e999", "-nan"])
def test_metrics_that_are_no_quantities_are_left_out(value: str) -> None:
    kernel = parse_profile(table((*ROW[:5], *[value] * len(ROW[5:])))).kernels[0]
    assert (kernel.duration_us, kernel.percent, kernel.launch, kernel.stalls) == (None, {}, {}, ())


def test_a_kernel_with_an_endless_name_is_left_out() -> None:
    found = parse_profile(table((*ROW[:4], "k" * 200_000, *ROW[5:]), ROW))
    assert [kernel.name for kernel in found.kernels] == ['Softmax, "x"(float*)']


def test_a_profile_shows_the_roofline_and_keeps_to_its_length() -> None:
    kernels = tuple(Kernel(f"kernel_{number}" * 9, duration_us=0.25) for number in range(400))
    profile = Profile("d", "s", "w", kernels, total_us=100.0, floor_us=25.0, isolation_level=2, seconds=1.0)
    text = profile.to_text()
    assert "roofline: at least 25.00 us; the kernels reach 25% of it" in text
    assert len(text) <= 2000
    assert "roofline" not in attrs.evolve(profile, floor_us=None).to_text()


def test_a_profile_without_kernels_says_why() -> None:
    refused = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    for log, output in ((refused, ""), ("", refused)):
        with pytest.raises(CountersForbidden, match="NVreg_RestrictProfilingToAdminUsers=0"):
            checked_table(log, 1, output)
    with pytest.raises(ToolFailed, match=r"(?s)no kernel was profiled, exit status 1.*\| Traceback"):
        checked_table("==PROF== Connected", 1, "Traceback")
    with pytest.raises(ToolFailed, match="time limit"):
        checked_table("", None, "")


@pytest.mark.parametrize("cut", range(0, 900, 37))
def test_a_truncated_profile_is_read_as_far_as_it_goes(cut: int) -> None:
    text = table(ROW, ROW)
    assert len(parse_profile(text[: len(text) - cut]).kernels) <= 2


@given(st.text())
def test_any_text_is_parsed(text: str) -> None:
    for given_text in (
        text,
        MEMCHECK + text,
        table(ROW) + text,
        f"========= Invalid __global__ {text}\n========= at {text}",
    ):
        parse_sanitizer(given_text)
        parse_profile(given_text)
        parse_functions(given_text, given_text)
        parse_native(own_native_code(given_text))


def test_command_lines_hold_the_call_as_separate_arguments() -> None:
    command = profiler_command("/opt/ncu", ["SpeedOfLight", "Occupancy"], "/w/log", ["python", "-m", "x; rm"])
    assert command[0] == "/opt/ncu"
    assert command[-3:] == ["python", "-m", "x; rm"]
    assert command[command.index("--profile-from-start") + 1] == "off"
    assert [command[i + 1] for i, word in enumerate(command) if word == "--section"] == ["SpeedOfLight", "Occupancy"]
    command = sanitizer_command("/opt/compute-sanitizer", "racecheck", "/w/log", ["python"])
    assert command[1:3] == ["--tool", "racecheck"]
    assert command[-1] == "python"


CUDA = """
__global__ void __launch_bounds__(128) Scale(const float* x, float* y, int n) {
  __shared__ float tile[128];
  const int i = blockIdx.x * 128 + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0.0f;
  __syncthreads();
  if (i < n) y[i] = 2.0f * tile[127 - threadIdx.x];
}
"""


def test_registers_and_opcodes_of_a_real_kernel_are_read(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    try:
        dump, sass = (find_program(name, "") for name in ("cuobjdump", "nvdisasm"))
    except FileNotFoundError:
        pytest.skip("cuobjdump or nvdisasm is not installed")
    source, cubin = tmp_path / "scale.cu", tmp_path / "scale.cubin"
    source.write_text(CUDA)
    subprocess.run([nvcc, "-cubin", "-arch=sm_90", "-o", str(cubin), str(source)], check=True)

    def output(*command: str) -> str:
        return subprocess.run([*command, str(cubin)], check=True, capture_output=True, text=True).stdout

    code = output(sass)
    (function,) = parse_functions(output(dump, "--dump-resource-usage"), code)
    assert "Scale" in function.name
    assert function.registers is not None
    assert 0 < function.registers <= 64
    assert function.shared_bytes is not None
    assert function.shared_bytes >= 512
    assert {"LDG", "STG", "BAR", "EXIT"} <= {op for op, _ in function.opcodes}
    assert function.spills == 0
    assert architecture_of(code) == "sm_90"


@pytest.mark.parametrize(
    ("architecture", "registers", "shared", "threads", "share"),
    [
        ("sm_90a", 32, 0, 256, 1.0),
        ("sm_90", 255, 0, 256, 8 / 64),
        ("sm_90", 64, 0, 256, 32 / 64),
        ("sm_90", 32, 100 * 1024, 128, 8 / 64),
        ("sm_86", 32, 0, 1024, 32 / 48),
        ("sm_90", 200, 0, 1024, 0.0),
        ("sm_35", 32, 0, 256, None),
    ],
)
def test_occupancy_is_bound_by_the_scarcest_resource(
    architecture: str, registers: int, shared: int, threads: int, share: float | None
) -> None:
    assert occupancy(architecture, registers, shared, threads) == share
