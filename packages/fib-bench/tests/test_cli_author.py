"""Tests of add, new and watch, as a newcomer types them, with mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_bench.cli.main import main
from fib_schema import TraceSet, validate

MakeDataSet = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]
GOOD = "def run(x):\n    return x * 2\n"
CPP = """#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  dobule(x);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process; returns the exit code, stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in words])
        except SystemExit as error:
            code = int(str(error.code))
        captured = capfd.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    return run


@pytest.fixture
def root(make_data_set: MakeDataSet, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set without solutions; the current folder is another one."""
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("LOGNAME", "ada")
    return make_data_set(sizes=(2, 3))


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.py"
    path.write_text(GOOD)
    return path


class TestAdd:
    def test_prints_what_it_inferred_the_file_and_the_next_command(self, run: Run, root: Path, kernel: Path) -> None:
        code, out, err = run("add", kernel, "--definition", "double", "--dataset", root)
        file = root / "solutions/ada/elementwise/double/kernel.json"
        assert (code, err) == (0, "")
        assert out == (
            "added kernel to double\n"
            f"  file         {file}\n"
            "  language     python  (a .py file that imports no kernel language; --language overrides)\n"
            "  entry point  kernel.py::run  (the function named run; --entry overrides)\n"
            "  style        return: it returns its outputs  "
            "(it takes the inputs (x) and returns a value; --style overrides)\n"
            "  hardware     cpu, cuda  (python runs on both; --hardware overrides)\n"
            f"next: fib-bench run {root} --solutions kernel --quick\n"
        )
        assert file.is_file()
        assert validate(root).is_ok

    def test_changed_code_is_a_new_version_and_identical_code_is_told(self, run: Run, root: Path, kernel: Path) -> None:
        words = ("add", kernel, "--definition", "double", "--dataset", root)
        run(*words)
        code, out, _ = run(*words)
        assert (code, out.splitlines()[0]) == (
            0,
            "nothing added: kernel of double has the same code and settings",
        )
        kernel.write_text(GOOD.replace("2", "2.0"))
        assert "added kernel_v2 to double" in run(*words)[1]
        kernel.write_text(GOOD.replace("x * 2", "x + x"))
        assert "added kernel_v3 to double" in run(*words)[1]
        kernel.write_text(GOOD)
        assert "nothing added: kernel of double" in run(*words)[1]
        assert TraceSet.from_path(root).solution_names() == ("kernel", "kernel_v2", "kernel_v3")

    def test_the_data_set_is_the_current_folder_or_that_of_the_variable(
        self, run: Run, root: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("FIB_DATASET_PATH", str(root))
        monkeypatch.chdir(tmp_path)
        assert run("add", kernel, "--definition", "double")[0] == 0
        monkeypatch.delenv("FIB_DATASET_PATH")
        monkeypatch.chdir(root)
        assert "nothing added" in run("add", kernel, "--definition", "double")[1]

    def test_without_a_data_set_the_option_that_names_one_is_told(
        self, run: Run, kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "nowhere"))
        monkeypatch.chdir(kernel.parent)
        code, _, err = run("add", kernel, "--definition", "double")
        assert (code, "no data set was named" in err, "pass --dataset DIR" in err) == (2, True, True)

    def test_options_override(self, run: Run, root: Path, kernel: Path) -> None:
        words = ("--language", "triton", "--style", "destination", "--hardware", "H100", "--name", "mine")
        code, _, _ = run("add", kernel, "--definition", "double", "--dataset", root, *words, "--author", "bob")
        (solution,) = TraceSet.from_path(root).solutions["double"]
        assert (code, solution.name, solution.author, solution.spec.language) == (0, "mine", "bob", "triton")
        assert solution.spec.target_hardware == ("H100",)

    def test_a_folder_is_taken_with_its_texts_and_what_is_left_out_is_told(self, run: Run, root: Path) -> None:
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
            ({"file": "kernle.py"}, "kernle.py: there is no such file"),
            ({"file": "kernels"}, "kernels: does not exist; write a file that ends in .py, .cu or .cpp, or a folder"),
            ({"file": "notes.txt"}, "is not a kernel file; write a file that ends in .py, .cu or .cpp"),
            ({"file": "broken.py"}, "broken.py:1: does not parse: '(' was never closed 1 | def run(x:"),
            ({"file": "two.py"}, "2 functions may be the entry point: two.py::f (line 1), two.py::g (line 2)"),
            ({"--entry": "go"}, "--entry go: there is no such function; the functions are: run"),
            ({"--hardware": "H1000"}, "no hardware is named 'H1000'; did you mean 'H100'"),
            ({"--language": "pyton"}, "argument --language: invalid choice: 'pyton'; did you mean python?"),
            ({"--name": "a/b"}, "Solution 'a/b'.name"),
            ({"--dataset": "nowhere"}, "no data set at 'nowhere': there is no such directory"),
            ({"file": "wrong.py"}, "run takes 3 arguments, and the definition has 1 input (x) and 1 output (y)"),
            ({"file": "plain.cpp"}, "exports no function; end the file with TVM_FFI_DLL_EXPORT_TYPED_FUNC"),
        ],
    )
    def test_a_mistake_has_a_message_with_the_remedy_and_adds_nothing(
        self, run: Run, root: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], said: str
    ) -> None:
        monkeypatch.chdir(kernel.parent)
        for name, text in {
            "notes.txt": "x",
            "broken.py": "def run(x:\n",
            "two.py": "def f(x): return x\ndef g(x): return x\n",
            "wrong.py": "def run(a, b, c): return a\n",
            "plain.cpp": "int f() { return 1; }\n",
        }.items():
            Path(name).write_text(text)
        options = {"--definition": "double", "--dataset": str(root), **change}
        file = options.pop("file", "kernel.py")
        code, out, err = run("add", file, *(word for option in options.items() for word in option))
        assert (code, out) == (2, "")
        assert said in err
        assert TraceSet.from_path(root).solution_names() == ()

    @pytest.mark.usefixtures("shared_server")
    def test_quick_evaluates_at_once_and_shows_the_first_compiler_error(
        self, run: Run, root: Path, kernel: Path, tmp_path: Path
    ) -> None:
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
        assert "(cpp)" in out
        assert "tvm_ffi" not in out
        plain = json.loads(run("add", kernel, *words, "--json")[1])
        assert (plain["is_new"], plain["language"], len(plain["traces"])) == (False, "python", 2)


class TestNewDefinition:
    REFERENCE = (
        "import torch\n\n"
        'def run(x: "float32[rows, width=16]", w: "float32[width]", is_up: "bool") -> "y: float32[rows, width]":\n'
        "    return x * w if is_up else x / w\n"
    )

    def test_writes_a_definition_that_validate_accepts(self, run: Run, tmp_path: Path) -> None:
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

    def test_options_give_the_types_of_a_reference_without_annotations(self, run: Run, tmp_path: Path) -> None:
        reference, root = tmp_path / "sum.py", tmp_path / "new"
        reference.write_text("def run(x):\n    return (x * x).sum(-1)\n")
        words = ("new", "definition", "sum_w256", "--reference", reference, "--dataset", root, "--axis", "width=256")
        types = ("--input", "x: float32[rows, width]", "--output", "y: float32[rows]", "--workload", "rows=4")
        assert run(*words, *types)[0] == 0
        definition = TraceSet.from_path(root).definitions["sum_w256"]
        assert (definition.const_axes, definition.outputs["y"].shape) == ({"width": 256}, ("rows",))
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
    def test_a_mistake_is_told_and_nothing_is_written(self, run: Run, tmp_path: Path, text: str, said: str) -> None:
        reference = tmp_path / "ref.py"
        reference.write_text(text)
        code, _, err = run("new", "definition", "d", "--reference", reference, "--dataset", tmp_path / "new")
        assert code == 2
        assert said in err
        assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_watch_evaluates_again_survives_a_broken_and_a_missing_file_and_ends_with_130_by_sigterm(
    root: Path, kernel: Path, tmp_path: Path
) -> None:
    log = tmp_path / "out"
    words = ["watch", str(kernel), "--definition", "double", "--dataset", str(root)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fib_bench.cli.main", *words], stdout=out, stderr=out, env={**os.environ}
        )

    def wait_for(text: str, count: int = 1) -> None:
        deadline = time.monotonic() + 120
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
        assert process.wait(60) == 130
        assert "stopped" in log.read_text()
    finally:
        process.kill()
        process.wait()
    assert TraceSet.from_path(root).solution_names() == ()
