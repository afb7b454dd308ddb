"""Tests of add, new and watch, as a newcomer types them, with mistakes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fib_bench import make_inputs
from fib_schema import TraceSet, validate

from .samples import GOOD

CPP = """#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  dobule(x);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""


@pytest.fixture
def root(make_data_set, monkeypatch):
    """A data set without solutions; the current folder is another one."""
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("LOGNAME", "ada")
    return make_data_set(sizes=(2, 3))


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(GOOD)
    return path


class TestAdd:
    def test_prints_what_it_inferred_the_file_and_the_next_command(self, run, root, kernel):
        code, out, err = run("add", kernel, "--definition", "double", "--dataset", root)
        file = root / "solutions/ada/elementwise/double/kernel.json"
        assert (code, err) == (0, "")
        assert out == (
            "added kernel to double\n"
            f"  file         {file}\n"
            "  language     python  (--language overrides)\n"
            "  entry point  kernel.py::run  (--entry overrides)\n"
            "  style        return  (--style overrides)\n"
            "  hardware     cpu, cuda  (--hardware overrides)\n"
            f"next: fib-bench run {root} --solutions kernel --quick\n"
        )
        assert file.is_file()
        assert validate(root).is_ok

    def test_a_record_of_a_solution_states_all_but_the_name_that_the_command_gives(self, run, root, kernel, tmp_path):
        run("add", kernel, "--definition", "double", "--dataset", root, "--author", "bob")
        record = json.loads((root / "solutions/bob/elementwise/double/kernel.json").read_text())
        record["sources"][0]["content"] += "# packed\n"
        packed = tmp_path / "solution.json"
        packed.write_text(json.dumps(record))
        code, out, err = run("add", packed, "--dataset", root, "--name", "packed")
        assert (code, err, out.splitlines()[0]) == (0, "", "added packed to double")
        (found,) = [one for one in TraceSet.from_path(root).solutions["double"] if one.name == "packed"]
        assert (found.author, found.sources[0].content) == ("bob", GOOD + "# packed\n")
        code, _, err = run("add", packed, "--dataset", root, "--style", "return")
        assert (code, "states its language, entry point, style and hardware" in err) == (2, True)

    def test_the_configuration_of_the_starter_kit_states_a_solution(self, run, root, tmp_path):
        kit = tmp_path / "kit"
        (kit / "solution/python").mkdir(parents=True)
        (kit / "solution/python/kernel.py").write_text("def helper(x):\n    return x\n\ndef fast(x):\n  return x * 2\n")
        build = '[build]\nlanguage = "python"\nentry_point = "kernel.py::fast"\n'
        (kit / "config.toml").write_text(
            '[solution]\nname = "doubled"\ndefinition = "double"\nauthor = "The Team"\n' + build
        )
        code, _, err = run("add", kit / "config.toml", "--dataset", root)
        assert (code, err) == (0, "")
        found = TraceSet.from_path(root).get_solution("doubled")
        assert (found.author, found.spec.entry_point) == ("The Team", "kernel.py::fast")
        assert not found.spec.destination_passing_style

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("config.toml", "[solution]\nname = 'a'\n", "is no config.toml with [solution] and [build]"),
            ("solution.json", "{}", "name"),
            ("gone.toml", None, "there is no such file"),
            ("kernel.py", GOOD, "does not name its definition; say it with --definition NAME"),
        ],
    )
    def test_a_file_that_states_no_solution_is_explained(self, run, root, tmp_path, name, text, said):
        if text is not None:
            (tmp_path / name).write_text(text)
        code, _, err = run("add", tmp_path / name, "--dataset", root)
        assert (code, said in err) == (2, True), err

    def test_changed_code_is_a_new_version_and_identical_code_is_told(self, run, root, kernel):
        words = ("add", kernel, "--definition", "double", "--dataset", root)
        run(*words)
        code, out, _ = run(*words)
        assert (code, out.splitlines()[0]) == (0, "nothing added: kernel of double has the same code and settings")
        kernel.write_text(GOOD.replace("2", "2.0"))
        assert "added kernel_v2 to double" in run(*words)[1]
        kernel.write_text(GOOD.replace("x * 2", "x + x"))
        assert "added kernel_v3 to double" in run(*words)[1]
        kernel.write_text(GOOD)
        assert "nothing added: kernel of double" in run(*words)[1]
        assert TraceSet.from_path(root).solution_names() == ("kernel", "kernel_v2", "kernel_v3")

    def test_the_data_set_is_the_current_folder_or_that_of_the_variable(self, run, root, kernel, monkeypatch, tmp_path):
        monkeypatch.setenv("FIB_DATASET_PATH", str(root))
        monkeypatch.chdir(tmp_path)
        assert run("add", kernel, "--definition", "double")[0] == 0
        monkeypatch.delenv("FIB_DATASET_PATH")
        monkeypatch.chdir(root)
        assert "nothing added" in run("add", kernel, "--definition", "double")[1]

    def test_without_a_data_set_the_option_that_names_one_is_told(self, run, kernel, tmp_path, monkeypatch):
        monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "nowhere"))
        monkeypatch.chdir(kernel.parent)
        code, _, err = run("add", kernel, "--definition", "double")
        assert (code, "no data set at" in err, "--dataset DIR" in err) == (2, True, True)

    def test_options_override(self, run, root, kernel):
        words = ("--language", "triton", "--style", "destination", "--hardware", "H100", "--name", "mine")
        code, _, _ = run("add", kernel, "--definition", "double", "--dataset", root, *words, "--author", "bob")
        (solution,) = TraceSet.from_path(root).solutions["double"]
        assert (code, solution.name, solution.author, solution.spec.language) == (0, "mine", "bob", "triton")
        assert solution.spec.target_hardware == ("H100",)

    def test_a_folder_is_taken_with_its_texts_and_what_is_left_out_is_told(self, run, root):
        folder = root.parent / "folder"
        folder.mkdir()
        for name, content in (("kernel.py", GOOD), ("tiles.json", "{}"), ("weights.bin", "x"), (".hidden", "x")):
            (folder / name).write_text(content)
        code, _, err = run("add", folder, "--definition", "double", "--dataset", root)
        assert (code, err) == (0, "left out, as no source and no text that kernels read: weights.bin")
        (solution,) = TraceSet.from_path(root).solutions["double"]
        assert [source.path for source in solution.sources] == ["kernel.py", "tiles.json"]

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"--definition": "duoble"}, "no definition is named 'duoble'; did you mean 'double'?"),
            ({"file": "kernels"}, "kernels: does not exist; write a file that ends in .py, .cu or .cpp, or a folder"),
            ({"file": "broken.py"}, "broken.py:1: does not parse: '(' was never closed 1 | def run(x:"),
            ({"--entry": "go"}, "--entry go: there is no such function; the functions are: kernel.py::run"),
            ({"--hardware": "H1000"}, "no hardware is named 'H1000'; did you mean 'H100'"),
            ({"--language": "pyton"}, "argument --language: invalid choice: 'pyton'; did you mean python?"),
            ({"--name": "a/b"}, "Solution 'a/b'.name"),
            ({"--dataset": "nowhere"}, "no data set at 'nowhere': there is no such directory"),
        ],
    )
    def test_a_mistake_has_a_message_with_a_remedy_and_adds_nothing(self, run, root, kernel, monkeypatch, change, said):
        monkeypatch.chdir(kernel.parent)
        Path("broken.py").write_text("def run(x:\n")
        options = {"--definition": "double", "--dataset": str(root), **change}
        file = options.pop("file", "kernel.py")
        code, out, err = run("add", file, *(word for option in options.items() for word in option))
        assert (code, out) == (2, "")
        assert said in err
        assert TraceSet.from_path(root).solution_names() == ()

    @pytest.mark.usefixtures("shared_server")
    def test_quick_evaluates_at_once_and_shows_the_first_compiler_error(self, run, root, kernel, tmp_path):
        words = ("--definition", "double", "--dataset", root, "--quick")
        code, out, _ = run("add", kernel, *words)
        assert code == 0
        assert out.count("kernel: PASSED") == out.count("\n  speedup: ") == out.count(" over the reference\n") == 2
        kernel.write_text(GOOD + "# once more\n")
        _, out, _ = run("add", kernel, *words)
        assert out.count("kernel_v2: PASSED") == out.count(" over the last save\n") == 2
        kernel.write_text(GOOD)
        broken = tmp_path / "broken.cpp"
        broken.write_text(CPP)
        code, out, _ = run("add", broken, *words)
        assert code == 0
        assert out.count("\n    5 |   dobule(x);\n      |   ^\n") == 1
        assert "broken.cpp:5:3: 'dobule' was not declared in this scope" in out
        assert "COMPILE_ERROR, untrusted output: broken.cpp:5:3: error: " in out
        assert "tvm_ffi" not in out


class TestNewDefinition:
    REFERENCE = (
        "import torch\n\n"
        'def run(x: "float32[rows, width=16]", w: "float32[width]", is_up: "bool") -> "y: float32[rows, width]":\n'
        "    return x * w if is_up else x / w\n"
    )

    def test_writes_a_definition_that_validate_accepts(self, run, tmp_path):
        reference = tmp_path / "scale.py"
        reference.write_text(self.REFERENCE)
        root = tmp_path / "new"
        words = ("--reference", reference, "--dataset", root, "--workload", "rows=2", "--workload", "rows=4")
        code, out, err = run("new", "definition", "scale_w16", *words)
        assert (code, err) == (0, "")
        assert f"file         {root / 'definitions/scale/scale_w16.json'}" in out
        assert f"next: fib-bench add FILE --definition scale_w16 --dataset {root}" in out
        definition = TraceSet.from_path(root).definitions["scale_w16"]
        assert (definition.const_axes, definition.var_axes) == ({"width": 16}, ["rows"])
        assert [t.workload.axes for t in TraceSet.from_path(root).workloads["scale_w16"]] == [{"rows": 2}, {"rows": 4}]
        assert validate(root).is_ok
        assert run("new", "definition", "scale_w16", *words)[0] == 2

    def test_options_give_the_types_of_a_reference_without_annotations(self, run, tmp_path):
        reference, root = tmp_path / "sum.py", tmp_path / "new"
        reference.write_text("def run(x):\n    return helper(x * x).sum(-1)\n")
        words = ("new", "definition", "sum_w256", "--reference", reference, "--dataset", root, "--axis", "width=256")
        types = ("--input", "x: float32[rows, width]", "--output", "y: float32[rows]", "--workload", "rows=4")
        assert run(*words, *types)[::2] == (0, "warning: run uses helper, which nothing in the file defines")
        definition = TraceSet.from_path(root).definitions["sum_w256"]
        assert (definition.const_axes, definition.outputs["y"].shape) == ({"width": 256}, ("rows",))
        bounded = ("--input", "x: int16[rows, width] -7..99", "--output", "y: int64[rows]", "--workload", "rows=0")
        assert run("new", "definition", "bounded", *words[3:], *bounded, "--workload", "rows=64")[0] == 0
        trace_set = TraceSet.from_path(root)
        _, workload = (trace.workload for trace in trace_set.workloads["bounded"])
        values = make_inputs(trace_set.definitions["bounded"], workload, seed=0)["x"]
        assert (values.shape, values.dtype, int(values.min()), int(values.max())) == ((64, 256), torch.int16, -7, 99)
        code, _, err = run(*words, "--input", "z: float32[rows]", "--output", "y: float32[rows]")
        assert (code, "run has no parameter 'z'" in err) == (2, True)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("def go(x): pass", "has no function 'run'; write the reference as def run(x:"),
            ("def run(x): pass", "ref.py:1: parameter 'x' has no type; annotate it"),
            ('def run(x: "float32[n]"): pass', "run has no outputs; annotate what it returns"),
            ('def run(x: "float32[n]") -> "float32[n]": pass', "inputs and outputs need names"),
            ('def run(x: "flaot32[n]") -> "y: float32[n]": pass', "x: no dtype is named 'flaot32'; did you mean"),
            ('def run(x: "float32[4]") -> "y: float32[n]": pass', "x: '4' is not an axis; write a name, or name=size"),
            ('def run(x: "float32[n=4]") -> "y: float32[n=5]": pass', "axis 'n' has two sizes: 4 and 5"),
            ('def run(x: "float32[n") -> "y: float32[n]": pass', "x: 'float32[n' is not a type"),
            ('def run(*x) -> "y: float32[n]": pass', "run has * parameters; name each input"),
        ],
    )
    def test_a_mistake_is_told_and_nothing_is_written(self, run, tmp_path, text, said):
        reference = tmp_path / "ref.py"
        reference.write_text(text)
        code, _, err = run("new", "definition", "d", "--reference", reference, "--dataset", tmp_path / "new")
        assert code == 2
        assert said in err
        assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_watch_evaluates_again_survives_a_broken_and_missing_file_and_ends_with_130_by_sigterm(root, kernel, tmp_path):
    log = tmp_path / "out"
    words = ["watch", str(kernel), "--definition", "double", "--dataset", str(root)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fib_bench.cli.main", *words], stdout=out, stderr=out, env={**os.environ}
        )

    def wait_for(text, count=1):
        deadline = time.monotonic() + 300
        while log.read_text().count(text) < count:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    try:
        wait_for("kernel: PASSED", 2)
        assert f"To keep a version: fib-bench add {kernel} --definition double --dataset {root}\n" in log.read_text()
        kernel.write_text("def run(x:\n")
        wait_for("does not parse")
        kernel.unlink()
        wait_for("there is no such file")
        other = kernel.with_name("other.py")
        other.write_text("def run(x):\n    return x * 3\n")
        other.replace(kernel)
        wait_for("kernel: INCORRECT_NUMERICAL", 2)
        kernel.write_text(GOOD)
        wait_for("kernel: PASSED", 4)
        wait_for(" over the last save", 2)
        process.terminate()
        assert process.wait() == 130
        assert "stopped" in log.read_text()
    finally:
        process.kill()
        process.wait()
    assert TraceSet.from_path(root).solution_names() == ()
