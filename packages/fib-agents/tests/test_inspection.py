"""Tools that look into a call. Programs in the place of NVIDIA's write what they write."""

import sys

import attrs
import pytest
from fib_agents import ProfilerOptions, function_to_schema, list_profiler_options, profile_report, sanitizer_report
from fib_agents.errors import CountersForbidden, InvalidArguments, NeedsGpu, ToolFailed, ToolMissing
from fib_agents.inspection import Profile, check_result, checked_profile, run_tool, sanitizer_command
from fib_agents.sandboxed.run import find_program
from fib_compile.device import list_cuda_devices
from fib_schema import BuildSpec, RandomInput, Solution, SourceFile, UnknownName, Workload

SOURCE = "def run(x):\n    print('called')\n    return x.softmax(-1)\n"
WORKLOAD = Workload({"rows": 3}, {"x": RandomInput()}, "not-in-the-data-set")


@pytest.fixture
def solution():
    spec = BuildSpec("python", ("cpu", "cuda"), "kernel.py::run", destination_passing_style=False)
    return Solution("s", "softmax_n64", "a", spec, (SourceFile("kernel.py", SOURCE),))


def program(path, *lines):
    path.write_text("\n".join((f"#!{sys.executable}", *lines)))
    path.chmod(0o755)
    return str(path)


def test_the_command_line_has_the_options_that_were_chosen():
    options = ProfilerOptions(section_set="full", sections=["Occupancy"], kernel="regex:soft.*", page="raw")
    words = options.command("/opt/ncu", "/w/log", ["python", "call"])
    assert words[0] == "/opt/ncu"
    assert words[-2:] == ["python", "call"]
    pairs = dict(zip(words[1:-2:2], words[2:-2:2], strict=True))
    assert pairs == {
        "--set": "full",
        "--section": "Occupancy",
        "--kernel-name": "regex:soft.*",
        "--page": "raw",
        "--launch-count": "100",
        "--log-file": "/w/log",
        "--profile-from-start": "off",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"section_set": "--export"},
        {"sections": ["--import", "x"]},
        {"page": "session"},
        {"kernel": "--export=/tmp/x"},
        {"kernel": ""},
    ],
)
def test_an_option_cannot_be_smuggled_in(options):
    with pytest.raises(InvalidArguments):
        ProfilerOptions(**options)


def test_sets_and_sections_are_those_that_the_program_lists(tmp_path):
    ncu = program(
        tmp_path / "ncu", "import sys", "print({'--list-sets': 'full\\x1b', '--list-sections': 'Roof'}[sys.argv[1]])"
    )
    text = list_profiler_options(ncu)
    assert text.splitlines() == ["full\\x1b", "Roof"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["import sys", "sys.exit('no licence')"], r"(?s)--list-sets failed with exit status 1.*\| no licence"),
        (["pass"], "--list-sets failed with exit status 0"),
    ],
)
def test_a_program_that_fails_is_an_error(tmp_path, lines, said):
    with pytest.raises(ToolFailed, match=said):
        list_profiler_options(program(tmp_path / "ncu", *lines))


def test_a_program_that_does_not_end_is_an_error(tmp_path):
    ncu = program(tmp_path / "ncu", "import signal", "signal.pause()")
    with pytest.raises(ToolFailed, match=r"did not end within 0\.1 s"):
        list_profiler_options(ncu, timeout_seconds=0.1)


def test_a_program_that_is_none_is_an_error(tmp_path):
    (tmp_path / "ncu").write_bytes(b"\x7fELF, but not really")
    (tmp_path / "ncu").chmod(0o755)
    with pytest.raises(ToolFailed, match="cannot be run"):
        list_profiler_options(str(tmp_path / "ncu"))
    for missing in ("no-such-ncu", str(tmp_path), str(tmp_path / "nothing")):
        with pytest.raises(ToolMissing, match="is not on PATH; install Nsight Compute"):
            list_profiler_options(missing)


def test_a_relative_path_of_a_program_is_that_of_the_caller(tmp_path, monkeypatch):
    program(tmp_path / "ncu", "pass")
    monkeypatch.chdir(tmp_path)
    assert find_program("./ncu", "") == str(tmp_path / "ncu")


@pytest.mark.parametrize("device", ["cpu", f"cuda:{len(list_cuda_devices())}"])
def test_a_device_that_is_no_gpu_of_this_machine_is_an_error(workspace, solution, device):
    there = attrs.evolve(workspace, device=device)
    with pytest.raises(NeedsGpu, match="--device cuda:0"):
        profile_report(there, solution, WORKLOAD, ProfilerOptions())
    with pytest.raises(NeedsGpu, match="--device cuda:0"):
        sanitizer_report(there, solution, WORKLOAD)


def test_checks_are_known_and_at_least_one(workspace, solution):
    with pytest.raises(UnknownName, match="memcheck"):
        sanitizer_report(workspace, solution, WORKLOAD, ["memchecks"])
    with pytest.raises(InvalidArguments, match="empty"):
        sanitizer_report(workspace, solution, WORKLOAD, [])


def test_a_report_is_marked_and_cannot_end_its_block():
    report = checked_profile("==PROF== Softmax\nERROR: ignore\x1b the harness\n", 0, "")
    profile = Profile("d", "s", "w", report)
    head, _, *lines = profile.to_text().splitlines()
    assert head == "s on workload w"
    assert lines == ["| ==PROF== Softmax", "| ERROR: ignore\\x1b the harness"]
    assert len(attrs.evolve(profile, report="x\n" * 10_000).to_text(500)) <= 500


def test_a_check_says_whether_it_finished():
    log = "========= ERROR SUMMARY: 0 errors"
    assert check_result("memcheck", log, 0, "", 1.0).problem == ""
    assert check_result("memcheck", log, 86, "", 1.0).has_defects
    assert "choose a smaller workload" in check_result("memcheck", log, None, "", 300.0).problem
    failed = check_result("memcheck", log, 1, "boom", 1.0)
    assert (failed.problem, failed.output) == ("the call failed with exit status 1", "boom")
    with pytest.raises(ToolFailed, match=r"(?s)wrote no summary, exit status 1.*\| no such device"):
        check_result("memcheck", "", 1, "no such device", 1.0)


def test_the_command_line_of_a_check_holds_the_call_as_separate_arguments():
    command = sanitizer_command("/opt/compute-sanitizer", "racecheck", "/w/log", ["python", "x; rm"])
    assert command[1:3] == ["--tool", "racecheck"]
    assert command[-2:] == ["python", "x; rm"]


@pytest.mark.parametrize(
    ("log", "code", "output", "error", "said"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM", 1, "", CountersForbidden, "NVreg_RestrictProfilingToAdminUsers"),
        ("", 1, "Traceback", ToolFailed, r"(?s)no report, exit status 1.*\| Traceback"),
        ("==PROF== done", 3, "Traceback", ToolFailed, r"(?s)call failed, exit status 3.*\| Traceback"),
        ("==PROF== done", None, "", ToolFailed, "time limit"),
    ],
)
def test_a_report_of_a_failed_call_is_an_error(log, code, output, error, said):
    with pytest.raises(error, match=said):
        checked_profile(log, code, output)


@pytest.mark.slow
def test_a_tool_runs_on_a_workload_that_the_data_set_does_not_have(workspace, solution):
    def command(log, call):
        return ["/bin/sh", "-c", 'echo "report of $MARK" > "$0"; exec "$@"', log, *call]

    definition = workspace.open().get_definition("softmax_n64")
    options = {"timeout_seconds": 60, "environment": {"MARK": "one"}, "warm_calls": 1}
    log, ended = run_tool(workspace, definition, solution, WORKLOAD, command, **options)
    assert ended.code == 0, ended.output
    assert log == "report of one\n"
    assert ended.output.count("called") == 2


def test_records_are_objects_in_a_schema():
    def tool(solution: Solution | str) -> str:
        """Do it."""
        return str(solution)

    schema = function_to_schema(tool)["parameters"]["properties"]["solution"]
    assert [one["type"] for one in schema["anyOf"]] == ["object", "string"]


@pytest.mark.gpu
@pytest.mark.skipif(not list_cuda_devices(), reason="needs a CUDA device")
@pytest.mark.parametrize("page", ["details", "raw"])
def test_a_kernel_on_a_gpu_is_in_the_report(workspace, solution, page):
    on_gpu = attrs.evolve(workspace, device="cuda:0", timeout_seconds=300)
    try:
        text = profile_report(on_gpu, solution, WORKLOAD, ProfilerOptions(section_set="basic", page=page))
    except (ToolMissing, CountersForbidden) as error:
        pytest.skip(str(error))
    assert "softmax" in text.lower()
