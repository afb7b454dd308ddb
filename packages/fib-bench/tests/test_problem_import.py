"""Import of problems of other formats: they become definitions whose solutions are judged as any others."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
import torch
import yaml
from fib_bench import BenchmarkConfig, make_inputs
from fib_bench.cli.main import main
from fib_bench.problem_import import add_problem, read_gpumode, read_kernelbench
from fib_compile import BuilderRegistry
from fib_schema import AxisConst, AxisVar, DuplicateName, RandomInput, SafetensorsInput, ScalarInput, TraceSet, validate

LINEAR = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.BatchNorm1d(out_features)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * torch.relu(self.norm(self.linear(x)))


batch_size = 64
in_features = 96
out_features = 32


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
"""
LINEAR_NEW = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.BatchNorm1d(out_features)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        y = x @ self.linear.weight.T + self.linear.bias
        mean, var = y.mean(0), y.var(0, unbiased=False)
        return FACTOR * ((y - mean) * torch.rsqrt(var + 1e-5) * self.norm.weight + self.norm.bias).clamp(min=0)
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def judged(folder: Path, device: str = "cpu") -> dict[str, str]:
    """Run all solutions of a data set with one definition: the status and the log of each, by its name."""
    assert main(["run", str(folder), "--quick", "--device", device]) == 0
    ((_, traces),) = TraceSet.from_path(folder).traces.items()
    return {str(t.solution): f"{t.evaluation.status} {t.evaluation.log}" for t in traces if t.evaluation}


def statuses(folder: Path, device: str = "cpu") -> dict[str, str]:
    return {name: said.partition(" ")[0] for name, said in judged(folder, device).items()}


class TestKernelBench:
    @pytest.mark.slow
    def test_a_problem_and_its_solutions_become_records_that_are_judged(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        problem = write(tmp_path / "level1/7_Linear.py", LINEAR)
        right = write(tmp_path / "right.py", LINEAR_NEW.replace("FACTOR", "2.0"))
        wrong = write(tmp_path / "wrong.py", LINEAR_NEW.replace("FACTOR", "2.2"))
        words = ["import", "kernelbench", str(problem), "--dataset", str(tmp_path / "set"), "--author", "me", "--json"]
        assert main([*words, "--solution", str(right), "--solution", str(wrong)]) == 0
        said = json.loads(capsys.readouterr().out)
        name = "kernelbench_level1_7_linear"
        assert (said["definition"], said["workloads"]) == (name, [f"{name}-given"])
        assert said["solutions"] == [f"{name}_right", f"{name}_wrong"]
        assert validate(tmp_path / "set").problems == ()
        assert statuses(tmp_path / "set") == {f"{name}_right": "PASSED", f"{name}_wrong": "INCORRECT_NUMERICAL"}

    def test_parameters_are_inputs_with_their_values(self, tmp_path: Path) -> None:
        found = read_kernelbench(write(tmp_path / "linear.py", LINEAR))
        imported = add_problem(make(tmp_path / "set"), found.problem)
        definition = imported.definition
        assert list(definition.inputs) == [
            *("x", "linear_weight", "linear_bias", "norm_weight", "norm_bias", "norm_running_mean", "norm_running_var")
        ]
        assert definition.inputs["linear_weight"].shape == ("out_features", "in_features")
        assert definition.const_axes == {"batch_size": 64, "in_features": 96, "out_features": 32}
        (workload,) = imported.workloads
        assert isinstance(workload.inputs["x"], RandomInput)
        assert all(isinstance(workload.inputs[name], SafetensorsInput) for name in list(definition.inputs)[1:])

    def test_the_reference_is_the_model_with_the_given_parameters(self, tmp_path: Path) -> None:
        problem = read_kernelbench(write(tmp_path / "linear.py", LINEAR)).problem
        reference = BuilderRegistry.get_instance().build_reference(problem.to_definition())
        values = dict(problem.calls[0].inputs)
        x, weight = values["x"], values["linear_weight"]
        assert isinstance(x, torch.Tensor)
        assert isinstance(weight, torch.Tensor)
        values["linear_weight"] = weight * 3
        before = {name: value.clone() for name, value in values.items() if isinstance(value, torch.Tensor)}
        y = torch.nn.functional.linear(x, weight * 3, before["linear_bias"])
        expected = 2 * torch.relu(torch.nn.functional.batch_norm(y, None, None, training=True))
        for _ in range(2):
            assert torch.allclose(reference(*values.values()), expected, atol=1e-5)
        assert all(torch.equal(values[name], value) for name, value in before.items())  # type: ignore[arg-type]

    def test_arguments_may_have_the_names_that_the_adapter_uses(self, tmp_path: Path) -> None:
        source = """
        import torch
        class Model(torch.nn.Module):
            def forward(self, _state, inputs, value, _torch):
                return _state + 2 * inputs + 3 * value + 4 * _torch
        def get_inputs():
            return [torch.ones(2) for _ in range(4)]
        """
        definition = read_kernelbench(write(tmp_path / "names.py", source)).problem.to_definition()
        reference = BuilderRegistry.get_instance().build_reference(definition)
        assert torch.equal(reference(*(torch.full((2,), float(10**i)) for i in range(4))), torch.full((2,), 4321.0))

    def test_numbers_are_scalars_and_tuples_are_several_outputs(self, tmp_path: Path) -> None:
        source = """
        import torch
        class Model(torch.nn.Module):
            def forward(self, values, dim: int, factor):
                return torch.sort(values * factor, dim=dim)
        def get_inputs():
            return [torch.randn(32, 64), 1, 0.5]
        """
        imported = add_problem(make(tmp_path / "set"), read_kernelbench(write(tmp_path / "sort.py", source)).problem)
        assert [str(spec.dtype) for spec in imported.definition.outputs.values()] == ["float32", "int64"]
        assert imported.workloads[0].inputs["dim"] == ScalarInput(1)
        assert imported.workloads[0].inputs["factor"] == ScalarInput(0.5)

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("def get_inputs():\n    return [1]\n", "defines no 'Model'; the format needs it"),
            ("import torch\nclass Model(torch.nn.Module): pass\n", "defines no 'get_inputs'"),
            ("raise RuntimeError('no GPU')\n", "kernelbench_problem.py raised RuntimeError: no GPU"),
            ("import sys\nsys.exit(3)\n", "raised SystemExit: 3"),
            ("def (\n", "raised SyntaxError"),
            (
                "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x[0]\n"
                "def get_inputs(): return [[1]]\n",
                "get_inputs returned list; only tensors and numbers can be inputs",
            ),
            (
                "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return {'y': x}\n"
                "def get_inputs(): return [torch.ones(2)]\n",
                "the reference returned dict; a definition has tensors",
            ),
            (
                "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x.sum(5)\n"
                "def get_inputs(): return [torch.ones(2)]\n",
                "Model.forward raised IndexError",
            ),
            (
                "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x.double()\n"
                "def get_inputs(): return [torch.ones(2)]\n",
                "'output' has dtype float64; a definition knows float32",
            ),
            (
                "class Model:\n    pass\ndef get_inputs(): return []\n",
                "'Model' is not a subclass of torch.nn.Module",
            ),
        ],
    )
    def test_a_file_of_another_form_is_explained_and_nothing_is_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, said: str
    ) -> None:
        problem = write(tmp_path / "problem.py", source)
        assert main(["import", "kernelbench", str(problem), "--dataset", str(tmp_path / "set")]) == 2
        assert said in capsys.readouterr().err
        assert not list((tmp_path / "set").rglob("*.json"))

    def test_a_failed_import_leaves_nothing_and_missing_workloads_are_added(self, tmp_path: Path) -> None:
        problem = write(tmp_path / "level1" / f"107_{'transposed_' * 14}convolution.py", LINEAR)
        name = "n" * 120
        assert main(["import", "kernelbench", str(problem), "--dataset", str(tmp_path / "set"), "--name", name]) == 2
        assert not list((tmp_path / "set").rglob("*.json"))
        root = make(tmp_path / "other")
        problem_of = read_kernelbench(problem).problem
        TraceSet.from_path(root).add_definitions([problem_of.to_definition()])
        assert len(problem_of.name) <= 80
        assert [workload.uuid for workload in add_problem(root, problem_of).workloads] == [f"{problem_of.name}-given"]

    @pytest.mark.parametrize(
        ("values", "bounds"),
        [
            ("torch.rand(64, 96)", (0, 1)),
            ("torch.rand(64, 96) * 4 - 2", (-2, 2)),
            ("torch.rand(64, 96) ** 2", None),
            ("torch.rand(64)", None),
        ],
    )
    def test_uniform_values_are_described_and_drawn_anew(
        self, tmp_path: Path, values: str, bounds: tuple[float, float] | None
    ) -> None:
        source = (
            "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x.sqrt()\n"
            f"def get_inputs():\n    return [{values}]\n"
        )
        root = make(tmp_path / "set")
        imported = add_problem(root, read_kernelbench(write(tmp_path / "root.py", source)).problem)
        (workload,) = imported.workloads
        if bounds is None:
            assert isinstance(workload.inputs["x"], SafetensorsInput)
            return
        assert imported.recorded_bytes == 0
        assert imported.definition.inputs["x"].description == f"uniform values from {bounds[0]} to {bounds[1]}"
        x = make_inputs(imported.definition, workload, seed=0)["x"]
        assert isinstance(x, torch.Tensor)
        assert bounds[0] <= float(x.min()) < float(x.max()) <= bounds[1]

    def test_parameters_may_stay_fixed_and_then_be_rearranged(self, tmp_path: Path) -> None:
        path = write(tmp_path / "linear.py", LINEAR)
        (note,) = read_kernelbench(path).problem.notes
        assert "--fixed-parameters" in note
        problem = read_kernelbench(path, fixed_parameters=True).problem
        assert (list(problem.to_definition().inputs), problem.notes) == (["x"], ())
        reference = BuilderRegistry.get_instance().build_reference(problem.to_definition())
        x = torch.randn(64, 96)
        assert torch.equal(reference(x), reference(x))

    def test_the_same_problem_again_adds_nothing_and_another_of_its_name_is_refused(self, tmp_path: Path) -> None:
        root = make(tmp_path / "set")
        problem = read_kernelbench(write(tmp_path / "linear.py", LINEAR)).problem
        first = add_problem(root, problem)
        again = add_problem(root, problem)
        assert (again.workloads, len(again.notes)) == (first.workloads, 1)
        other = read_kernelbench(write(tmp_path / "linear.py", LINEAR.replace("96", "48"))).problem
        with pytest.raises(DuplicateName):
            add_problem(root, other)


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


TASK = """
files:
  - {name: submission.py, source: "@SUBMISSION@"}
  - {name: task.py, source: task.py}
  - {name: utils.py, source: ../utils.py}
  - {name: reference.py, source: reference.py}
lang: py
description: |
  Add two matrices.
tests:
  - {rows: 8, width: 64, seed: 1}
  - {rows: 16, width: 64, seed: 2}
benchmarks:
  - {rows: 32, width: 64, seed: 3}
"""
UTILS = """
import torch

def make_match_reference(reference, **kwargs):
    return lambda data, output: torch.allclose(output, reference(data), **kwargs)
"""
ADD = """
from utils import make_match_reference
from task import input_t, output_t
import torch

def generate_input(rows: int, width: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    a = torch.randn(rows, width, device="cuda", generator=gen)
    b = torch.randn(rows, width, device="cuda", generator=gen).cuda()
    return (a, b, torch.empty(rows, width, device="cuda").contiguous())

def ref_kernel(data: input_t) -> output_t:
    first, second, output = data
    output[...] = first + second
    return output

check_implementation = make_match_reference(ref_kernel, rtol=1e-4, atol=2e-4)
"""
TYPES = "import torch\ninput_t = tuple[torch.Tensor, torch.Tensor, torch.Tensor]\noutput_t = torch.Tensor\n"
SUBMISSION = """
from task import input_t, output_t
import torch

def custom_kernel(data: input_t) -> output_t:
    a, b, c = data
    torch.add(a, b, alpha=FACTOR, out=c)
    return c
"""


FACTORS = {"right": "1", "wrong": "1.01"}


def gpumode_problem(folder: Path, reference: str = ADD, task: str = TASK) -> Path:
    write(folder / "utils.py", UTILS)
    write(folder / "add_py/task.py", TYPES)
    write(folder / "add_py/task.yml", task)
    write(folder / "add_py/reference.py", reference)
    return folder / "add_py"


class TestGpuMode:
    @pytest.mark.slow
    def test_a_problem_and_its_solutions_become_records_that_are_judged(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        problem = gpumode_problem(tmp_path)
        right = write(tmp_path / "right.py", SUBMISSION.replace("FACTOR", "1"))
        new = write(tmp_path / "returns.py", SUBMISSION.replace("torch.add(a, b, alpha=FACTOR, out=c)", "c = a + b"))
        wrong = write(tmp_path / "wrong.py", SUBMISSION.replace("FACTOR", "1.01"))
        words = ["import", "gpumode", str(problem), "--dataset", str(tmp_path / "set"), "--author", "me", "--json"]
        words += [word for file in (right, new, wrong) for word in ("--solution", str(file))]
        assert main(words) == 0
        said = json.loads(capsys.readouterr().out)
        name = "gpumode_add_py"
        assert said["workloads"] == [f"{name}-{case}" for case in ("test-0", "test-1", "benchmark-0")]
        assert validate(tmp_path / "set").problems == ()
        right_ones = {f"{name}_right": "PASSED", f"{name}_returns": "PASSED"}
        assert statuses(tmp_path / "set") == {**right_ones, f"{name}_wrong": "INCORRECT_NUMERICAL"}

    def test_a_part_that_the_reference_fills_is_an_output(self, tmp_path: Path) -> None:
        found = read_gpumode(gpumode_problem(tmp_path))
        definition = found.problem.to_definition()
        assert found.is_destination_passing
        assert (list(definition.inputs), list(definition.outputs)) == (["first", "second"], ["output"])
        assert definition.axes == {"rows": AxisVar(), "width": AxisConst(64)}
        assert definition.description == "Add two matrices.\n"

    def test_the_reference_needs_no_other_file_and_leaves_names_of_modules_alone(self, tmp_path: Path) -> None:
        definition = read_gpumode(gpumode_problem(tmp_path)).problem.to_definition()
        reference = BuilderRegistry.get_instance().build_reference(definition)
        a, b = torch.randn(5, 64), torch.randn(5, 64)
        assert torch.equal(reference(a, b), a + b)
        with pytest.raises(ImportError):
            __import__("task")

    def test_the_tolerances_of_the_task_are_settings_of_the_data_set(self, tmp_path: Path) -> None:
        root = make(tmp_path / "set")
        imported = add_problem(root, read_gpumode(gpumode_problem(tmp_path)).problem)
        assert imported.notes == ()
        config = BenchmarkConfig().for_data_set(TraceSet.from_path(root))
        tolerance = config.resolve_eval_config(imported.definition).tolerance("float32")
        assert (tolerance.rtol, tolerance.atol) == (1e-4, 2e-4)

    def test_settings_that_exist_are_not_rewritten(self, tmp_path: Path) -> None:
        root = make(tmp_path / "set")
        (root / "fib-bench.yaml").write_text("defaults: {num_trials: 2}  # mine\n")
        (note,) = add_problem(root, read_gpumode(gpumode_problem(tmp_path)).problem).notes
        assert "add to it:" in note
        assert yaml.safe_load(note.partition("add to it:\n")[2]) == {
            "definition_config": {"gpumode_add_py": {"atol": 2e-4, "rtol": 1e-4}}
        }
        assert (root / "fib-bench.yaml").read_text() == "defaults: {num_trials: 2}  # mine\n"

    def test_a_buffer_that_the_reference_leaves_alone_is_an_output(self, tmp_path: Path) -> None:
        source = ADD.replace("output[...] = first + second", "output = first + second")
        found = read_gpumode(gpumode_problem(tmp_path, source))
        assert found.is_destination_passing
        assert list(found.problem.to_definition().outputs) == ["output"]
        read = ADD.replace("output[...] = first + second", "output = first + second + output")
        other = read_gpumode(gpumode_problem(tmp_path / "read", read.replace("torch.empty", "torch.zeros")))
        assert list(other.problem.to_definition().inputs) == ["first", "second", "output"]

    def test_a_size_of_an_output_may_be_an_expression(self, tmp_path: Path) -> None:
        source = """
        import torch
        def generate_input(size, width, seed):
            return torch.randn(4, size), torch.randn(width)
        def ref_kernel(data):
            x, weights = data
            return x.unfold(1, weights.numel(), 1) @ weights
        """
        task = "tests: [{size: 32, width: 3, seed: 1}, {size: 40, width: 5, seed: 1}]\n"
        imported = add_problem(make(tmp_path / "set"), read_gpumode(gpumode_problem(tmp_path, source, task)).problem)
        assert imported.definition.constraints == ("output_1 == size - width + 1",)
        assert [workload.axes["output_1"] for workload in imported.workloads] == [30, 36]
        assert validate(tmp_path / "set").is_ok

    def test_a_check_of_the_task_is_told_to_be_left_out(self, tmp_path: Path) -> None:
        source = ADD.replace("check_implementation = ", "def check_implementation(data, output): return True\nmatch = ")
        (note,) = read_gpumode(gpumode_problem(tmp_path, source)).problem.notes
        assert "check_implementation" in note

    def test_data_that_the_reference_changes_in_place_is_an_input_and_stays(self, tmp_path: Path) -> None:
        source = """
        import torch
        def generate_input(size: int, seed: int):
            torch.manual_seed(seed)
            return torch.randn(size, device="cuda:0")
        def ref_kernel(data):
            data.mul_(2)
            return data
        """
        task = "tests: [{size: 64, seed: 1}, {size: 128, seed: 2}]\n"
        found = read_gpumode(gpumode_problem(tmp_path, source, task))
        definition = found.problem.to_definition()
        assert (list(definition.inputs), list(definition.outputs)) == (["data"], ["output"])
        assert not found.is_destination_passing
        reference = BuilderRegistry.get_instance().build_reference(definition)
        x = torch.ones(3)
        assert torch.equal(reference(x), torch.full((3,), 2.0))
        assert torch.equal(x, torch.ones(3))

    @pytest.mark.parametrize(
        ("reference", "task", "said"),
        [
            (ADD, "", "must be a mapping with 'tests' and 'benchmarks'"),
            (ADD, "tests: []\n", "task.yml has no tests and no benchmarks"),
            (ADD, "tests: [3]\n", "'tests' of task.yml must be a list of mappings"),
            (ADD, "tests: [\n", "is not YAML"),
            (
                ADD,
                TASK.replace("{rows: 8, width: 64, seed: 1}", "{rows: 8}"),
                "generate_input of test-0 raised TypeError",
            ),
            (ADD.replace("def ref_kernel", "def other"), TASK.replace("utils", "other"), "raised"),
            (
                ADD.replace("return (a, b, torch", "return ({'a': a}, b, torch"),
                TASK,
                "part 'first' of the data is a dict; only tensors and numbers can be inputs",
            ),
            (
                "import torch\ndef generate_input(rows, width, seed): return torch.ones(9)\n"
                "def ref_kernel(data): return torch.ones(COUNT.pop())\nCOUNT = [4, 3, 2]\n",
                TASK,
                "dimension 0 of output 'output' varies and is not a dimension of an input",
            ),
            (
                "import torch\ndef generate_input(rows, width, seed): return torch.ones(3, dtype=torch.uint8)\n"
                "def ref_kernel(data): return data + 1\n",
                TASK,
                "has dtype uint8; a definition knows",
            ),
            (
                "import torch\ndef generate_input(rows, width, seed): return torch.ones([3] * (seed % 2 + 1))\n"
                "def ref_kernel(data): return data + 1\n",
                TASK,
                "call 'test-1' has other inputs, ranks or dtypes than 'test-0'",
            ),
        ],
    )
    def test_a_folder_of_another_form_is_explained_and_nothing_is_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], reference: str, task: str, said: str
    ) -> None:
        problem = gpumode_problem(tmp_path, reference, task)
        assert main(["import", "gpumode", str(problem), "--dataset", str(tmp_path / "set")]) == 2
        assert said in capsys.readouterr().err
        assert not list((tmp_path / "set").rglob("*.json"))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")
class TestOnAGpu:
    """The data of a problem is made on the device that its files name."""

    def test_a_problem_of_gpumode_is_judged(self, tmp_path: Path) -> None:
        problem = gpumode_problem(tmp_path)
        files = [
            write(tmp_path / f"{name}.py", SUBMISSION.replace("FACTOR", factor)) for name, factor in FACTORS.items()
        ]
        words = [word for file in files for word in ("--solution", str(file))]
        assert main(["import", "gpumode", str(problem), "--dataset", str(tmp_path / "set"), *words]) == 0
        expected = {"gpumode_add_py_right": "PASSED", "gpumode_add_py_wrong": "INCORRECT_NUMERICAL"}
        assert statuses(tmp_path / "set", "cuda:0") == expected

    def test_a_problem_of_kernelbench_is_judged(self, tmp_path: Path) -> None:
        problem = write(tmp_path / "linear.py", LINEAR)
        right = write(tmp_path / "right.py", LINEAR_NEW.replace("FACTOR", "2.0"))
        words = ["--dataset", str(tmp_path / "set"), "--solution", str(right)]
        assert main(["import", "kernelbench", str(problem), *words]) == 0
        assert statuses(tmp_path / "set", "cuda:0") == {"kernelbench_linear_right": "PASSED"}
