"""Import of problems of other formats: they become definitions whose solutions are judged as any others."""

import json
import textwrap

import pytest
import torch
import yaml
from fib_bench import BenchmarkConfig, make_inputs
from fib_bench.cli.main import main
from fib_bench.problem_import import add_problem, read_gpumode, read_kernelbench
from fib_compile import BuilderRegistry, reference_solution
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    DuplicateName,
    RandomInput,
    ScalarInput,
    Solution,
    TraceSet,
    validate,
)

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


def model(result, inputs):
    return (
        f"import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return {result}\n"
        f"def get_inputs(): return {inputs}\n"
    )


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request):
    """The data of a problem is made on the device that its files name."""
    if request.param != "cpu" and torch.cuda.device_count() == 0:
        pytest.skip("needs a CUDA device")
    return request.param


def statuses(folder, device):
    """Run all solutions of a data set with one definition: the status of each, by its name."""
    assert main(["run", str(folder), "--quick", "--device", device]) == 0
    ((_, traces),) = TraceSet.from_path(folder).traces.items()
    return {str(t.solution): str(t.evaluation.status) for t in traces if t.evaluation}


class TestKernelBench:
    @pytest.mark.slow
    def test_a_problem_and_its_solutions_become_records_that_are_judged(self, tmp_path, capsys, device):
        problem = write(tmp_path / "level1/7_Linear.py", LINEAR)
        right = write(tmp_path / "right.py", LINEAR_NEW.replace("FACTOR", "2.0"))
        wrong = write(tmp_path / "wrong.py", LINEAR_NEW.replace("FACTOR", "2.2"))
        words = ["import", "kernelbench", str(problem), "--dataset", str(tmp_path / "set"), "--author", "me"]
        assert main([*words, "--solution", str(right), "--solution", str(wrong)]) == 0
        name = "kernelbench_level1_7_linear"
        said = capsys.readouterr().out
        assert f"imported {name}\n" in said
        assert f"{name}_right, {name}_wrong\n" in said
        assert validate(tmp_path / "set").problems == ()
        assert statuses(tmp_path / "set", device) == {f"{name}_right": "PASSED", f"{name}_wrong": "INCORRECT_NUMERICAL"}

    def test_parameters_are_inputs_that_the_file_makes(self, tmp_path):
        found = read_kernelbench(write(tmp_path / "linear.py", LINEAR))
        imported = add_problem(make(tmp_path / "set"), found.problem)
        definition = imported.definition
        assert list(definition.inputs) == [
            *("x", "linear_weight", "linear_bias", "norm_weight", "norm_bias", "norm_running_mean", "norm_running_var")
        ]
        assert definition.inputs["linear_weight"].shape == ("out_features", "in_features")
        assert definition.const_axes == {"batch_size": 64, "in_features": 96, "out_features": 32}
        assert [dict.fromkeys(definition.inputs, RandomInput())] == [dict(each.inputs) for each in imported.workloads]
        parameters = list(definition.inputs)[1:]
        generator = {"function": "_generate_inputs", "inputs": parameters, "parameters": parameters}
        assert definition.extra["input_generator"] == generator

    def test_the_reference_is_the_model_with_the_given_parameters(self, tmp_path):
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
        assert all(torch.equal(values[name], value) for name, value in before.items())

    def test_arguments_may_have_the_names_that_the_adapter_uses(self, tmp_path):
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

    def test_numbers_are_scalars_and_tuples_are_several_outputs(self, tmp_path):
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
            ("raise RuntimeError('no GPU')\n", "importing problem.py raised RuntimeError: no GPU"),
            ("import sys\nsys.exit(3)\n", "raised SystemExit: 3"),
            ("def (\n", "raised SyntaxError: invalid syntax (problem.py, line 1)"),
            (model("x[0]", "[[1]]"), "get_inputs returned list; only tensors and numbers can be inputs"),
            (model("{'y': x}", "[torch.ones(2)]"), "the reference returned dict; a definition has tensors"),
            (model("x.sum(5)", "[torch.ones(2)]"), "Model.forward raised IndexError"),
            (model("x + 1j", "[torch.ones(2)]"), "'output' has dtype complex64; a definition knows float64"),
            ("class Model:\n    pass\ndef get_inputs(): return []\n", "'Model' is not a subclass of torch.nn.Module"),
        ],
    )
    def test_a_file_of_another_form_is_explained_and_nothing_is_written(self, tmp_path, capsys, source, said):
        problem = write(tmp_path / "problem.py", source)
        assert main(["import", "kernelbench", str(problem), "--dataset", str(tmp_path / "set")]) == 2
        assert said in capsys.readouterr().err
        assert main(["import", "kernelbench", str(tmp_path), "--dataset", str(tmp_path / "set")]) == 2
        assert "is not a problem of KernelBench: a .py file" in capsys.readouterr().err
        assert main(["import", "gpumode", str(problem), "--dataset", str(tmp_path / "set")]) == 2
        assert "has no task.yml; name the folder of one problem" in capsys.readouterr().err
        assert not list((tmp_path / "set").rglob("*.json"))

    def test_missing_workloads_of_a_problem_with_a_long_name_are_added(self, tmp_path):
        problem = write(tmp_path / "level1" / f"107_{'transposed_' * 14}convolution.py", LINEAR)
        root = make(tmp_path / "set")
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
    def test_uniform_values_are_described_and_drawn_anew(self, tmp_path, values, bounds):
        source = model("x.sqrt()", f"[{values}]")
        root = make(tmp_path / "set")
        imported = add_problem(root, read_kernelbench(write(tmp_path / "root.py", source)).problem)
        (workload,) = imported.workloads
        assert ("input_generator" in imported.definition.extra) == (bounds is None)
        if bounds is None:
            return
        assert imported.definition.inputs["x"].description == f"uniform values from {bounds[0]} to {bounds[1]}"
        x = make_inputs(imported.definition, workload, seed=0)["x"]
        assert bounds[0] <= float(x.min()) < float(x.max()) <= bounds[1]

    def test_parameters_may_stay_fixed_and_then_be_rearranged(self, tmp_path):
        path = write(tmp_path / "linear.py", LINEAR)
        (note,) = read_kernelbench(path).problem.notes
        assert "--fixed-parameters" in note
        problem = read_kernelbench(path, fixed_parameters=True).problem
        assert (list(problem.to_definition().inputs), problem.notes) == (["x"], ())
        reference = BuilderRegistry.get_instance().build_reference(problem.to_definition())
        x = torch.randn(64, 96)
        assert torch.equal(reference(x), reference(x))

    def test_a_solution_is_told_which_parameters_it_lacks_and_which_it_keeps(self, tmp_path, capsys):
        found = read_kernelbench(write(tmp_path / "linear.py", LINEAR))
        definition = found.problem.to_definition()
        inputs = [torch.rand(shape) for shape in definition.get_input_shapes({})]
        spec = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
        kept = LINEAR_NEW.replace("FACTOR", "2.0").replace(
            "    def forward", "        self.packed = nn.Buffer(self.linear.weight.detach().T)\n\n    def forward"
        )
        for name, text in (("kept", kept), ("lacked", kept.replace("self.norm = ", "self.rows = "))):
            sources = found.solution(write(tmp_path / f"{name}.py", text))
            run = BuilderRegistry.get_instance().build(definition, Solution(name, definition.name, "me", spec, sources))
            if name == "kept":
                run(*inputs)
                assert "ModelNew keeps packed, while the parameters" in capsys.readouterr().out
            else:
                with pytest.raises(ValueError, match=r"--fixed-parameters, or give ModelNew the parameters norm.bias"):
                    run(*inputs)

    def test_a_device_that_the_file_names_is_the_cpu_where_there_is_no_gpu(self, tmp_path):
        source = """
        import torch
        DEVICE = torch.device("cuda:0")
        TABLE = torch.arange(8.0, device="cuda")
        class Model(torch.nn.Module):
            def forward(self, x):
                return x.to('cuda') + TABLE.cuda()
        def get_inputs():
            return [torch.ones(8, device=DEVICE)]
        """
        definition = read_kernelbench(write(tmp_path / "table.py", source)).problem.to_definition()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        run = BuilderRegistry.get_instance().build_reference(definition)
        assert run(torch.ones(8, device=device)).tolist() == [float(1 + index) for index in range(8)]

    def test_each_configuration_of_inputs_is_a_workload_and_each_of_the_model_a_definition(self, tmp_path):
        source = """
        import torch
        class Model(torch.nn.Module):
            def __init__(self, width, factor=1.0):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(width))
                self.factor = factor
            def forward(self, x, fn=torch.mul):
                return fn(x, self.weight) * self.factor
        def get_inputs(rows=4, width=8):
            return [torch.randn(rows, width).sort().values]
        """
        path = write(tmp_path / "level_2/scale/func_forward.py", source)
        lists = {"input": [{"rows": 16}, {"rows": 32}], "init": [{"factor": 2.0}, {}], "shared": [{"width": 64}]}
        single = {f"single_{kind}_configs": [{}] for kind in lists}
        several = {f"multi_{kind}_configs": configurations for kind, configurations in lists.items()}
        write(path.parent / "config_forward.json", json.dumps(single | several))
        root = make(tmp_path / "set")
        imported = add_problem(root, read_kernelbench(path).problem)
        assert imported.definition.name == "kernelbench_level_2_scale_c0"
        assert "configuration 0 of 2, {'factor': 2.0, 'width': 64}" in imported.notes[0]
        assert [workload.axes for workload in imported.workloads] == [{"rows": 16}, {"rows": 32}]
        run = BuilderRegistry.get_instance().build_reference(imported.definition)
        assert run(torch.ones(3, 64), torch.full((64,), 5.0)).unique().tolist() == [10.0]
        generate = {"case": {"rows": 16, "width": 64}, "inputs": ["x", "weight"]}
        namespace = {}
        exec(imported.definition.reference, namespace)
        made = namespace["_generate_inputs"](generate, "cpu")
        assert (made["x"].shape, made["weight"].shape) == ((16, 64), (64,))
        assert read_kernelbench(path, configuration=1).problem.name == "kernelbench_level_2_scale_c1"
        with pytest.raises(ValueError, match=r"has 2 configurations, counted from 0; 2 is none"):
            read_kernelbench(path, configuration=2)

    @pytest.mark.parametrize("name", ["ModelNew", "Model"])
    def test_a_module_is_added_in_place_of_that_of_the_reference(self, tmp_path, capsys, name):
        root = make(tmp_path / "set")
        definition = add_problem(root, read_kernelbench(write(tmp_path / "linear.py", LINEAR)).problem).definition
        helper = "\n\ndef helper(" + ", ".join(definition.inputs) + "):\n    return x\n"
        file = write(tmp_path / "fast.py", LINEAR_NEW.replace("FACTOR", "2.0").replace("ModelNew", name) + helper)
        assert main(["add", str(file), "--definition", definition.name, "--dataset", str(root)]) == 0
        solution = TraceSet.from_path(root).get_solution("fast")
        assert (solution.spec.entry_point, solution.spec.destination_passing_style) == ("model_entry.py::run", False)
        builders = BuilderRegistry.get_instance()
        run = builders.build(definition, solution)
        inputs = [torch.rand(shape) for shape in definition.get_input_shapes({})]
        assert torch.allclose(run(*inputs), builders.build_reference(definition)(*inputs), atol=1e-4)

    def test_the_same_problem_again_adds_nothing_and_another_of_its_name_is_refused(self, tmp_path):
        root = make(tmp_path / "set")
        problem = read_kernelbench(write(tmp_path / "linear.py", LINEAR)).problem
        first = add_problem(root, problem)
        again = add_problem(root, problem)
        assert (again.workloads, len(again.notes)) == (first.workloads, 1)
        other = read_kernelbench(write(tmp_path / "linear.py", LINEAR.replace("96", "48"))).problem
        with pytest.raises(DuplicateName):
            add_problem(root, other)


def make(folder):
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
    output[...] = first + second.cuda()
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


def gpumode_problem(folder, reference=ADD, task=TASK):
    write(folder / "utils.py", UTILS)
    write(folder / "add_py/task.py", TYPES)
    write(folder / "add_py/task.yml", task)
    write(folder / "add_py/reference.py", reference)
    return folder / "add_py"


SOL = {
    "name": "pick",
    "axes": {
        "rows": {"type": "var"},
        "width": {"type": "const", "value": 4},
        "half": {"type": "expr", "expression": "rows // 2"},
    },
    "inputs": {"x": {"shape": ["rows", "width"], "dtype": "float64"}, "rows_of": {"shape": ["half"], "dtype": "uint8"}},
    "outputs": {"y": {"shape": ["half", "width"], "dtype": "float64"}},
    "custom_inputs_entrypoint": "rows_of",
    "reference": textwrap.dedent("""
        import torch

        def rows_of(axes_and_scalars, device):
            rows, half = axes_and_scalars["rows"], axes_and_scalars["half"]
            return {"rows_of": torch.randint(0, rows, (half,), device=device, dtype=torch.uint8)}

        def run(x, rows_of):
            return x[rows_of.long()]
    """),
}


def sol_problem(folder, **changed):
    folder.mkdir()
    (folder / "definition.json").write_text(json.dumps(SOL | changed))
    inputs = {"x": {"type": "random"}, "rows_of": {"type": "custom"}}
    bounds = ({"max_atol": 1e-3, "max_rtol": 1e-2}, {"max_atol": 1e-4, "max_rtol": 1e-2})
    lines = [
        {"uuid": f"w{rows}", "axes": {"rows": rows}, "inputs": inputs, "tolerance": tolerance}
        for rows, tolerance in zip((16, 64), bounds, strict=True)
    ]
    (folder / "workload.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


class TestSolExecBench:
    @pytest.mark.slow
    def test_expressions_custom_inputs_and_tolerances_are_taken_and_the_reference_passes(self, tmp_path, capsys):
        root = tmp_path / "set"
        assert main(["import", "solexecbench", str(sol_problem(tmp_path / "p")), "--dataset", str(root)]) == 0
        assert "the workloads state different tolerances" in capsys.readouterr().err
        trace_set = TraceSet.from_path(root)
        definition = trace_set.get_definition("pick")
        assert (definition.op_type, definition.constraints) == ("sol", ("half == rows // 2",))
        assert [trace.workload.axes["half"] for trace in trace_set.workloads["pick"]] == [8, 32]
        assert validate(root).problems == ()
        tolerance = BenchmarkConfig().for_data_set(trace_set).resolve_eval_config(definition).tolerance("float64")
        assert (tolerance.rtol, tolerance.atol) == (1e-2, 1e-4)
        trace_set.add_solutions([reference_solution(definition)])
        assert statuses(root, "cpu") == {"reference": "PASSED"}

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"axes": SOL["axes"] | {"half": {"type": "expr", "expression": "rows.__class__"}}}, "is not allowed"),
            ({"reference": "def other(): pass"}, "defines no top-level function 'run'"),
            ({"axes": {"rows": {"type": "var"}}}, "axis 'width' is not among the axes"),
        ],
    )
    def test_a_problem_that_no_definition_describes_is_explained_and_not_written(self, tmp_path, capsys, changed, said):
        folder = sol_problem(tmp_path / "p", **changed)
        assert main(["import", "solexecbench", str(folder), "--dataset", str(tmp_path / "set")]) == 2
        assert said in capsys.readouterr().err
        assert not list((tmp_path / "set").rglob("*.json"))


class TestGpuMode:
    @pytest.mark.slow
    def test_a_problem_and_its_solutions_become_records_that_are_judged(self, tmp_path, capsys, device):
        problem = gpumode_problem(tmp_path)
        right = write(tmp_path / "right.py", SUBMISSION.replace("FACTOR", "1"))
        new = write(tmp_path / "returns.py", SUBMISSION.replace("torch.add(a, b, alpha=FACTOR, out=c)", "c = a + b"))
        wrong = write(tmp_path / "wrong.py", SUBMISSION.replace("FACTOR", "1.01"))
        words = ["import", "gpumode", str(problem), "--dataset", str(tmp_path / "set"), "--author", "me"]
        words += [word for file in (right, new, wrong) for word in ("--solution", str(file))]
        assert main(words) == 0
        name = "gpumode_add_py"
        workloads = [trace.workload.uuid for trace in TraceSet.from_path(tmp_path / "set").workloads[name]]
        assert workloads == [f"{name}-{case}" for case in ("test-0", "test-1", "benchmark-0")]
        assert validate(tmp_path / "set").problems == ()
        right_ones = {f"{name}_right": "PASSED", f"{name}_returns": "PASSED"}
        assert statuses(tmp_path / "set", device) == {**right_ones, f"{name}_wrong": "INCORRECT_NUMERICAL"}

    def test_a_part_that_the_reference_fills_is_an_output(self, tmp_path):
        found = read_gpumode(gpumode_problem(tmp_path))
        definition = found.problem.to_definition()
        assert found.is_destination_passing
        assert (list(definition.inputs), list(definition.outputs)) == (["first", "second"], ["output"])
        assert definition.axes == {"rows": AxisVar(), "width": AxisConst(64)}
        assert definition.description == "Add two matrices.\n"

    def test_the_reference_needs_no_other_file_and_leaves_names_of_modules_alone(self, tmp_path):
        definition = read_gpumode(gpumode_problem(tmp_path)).problem.to_definition()
        reference = BuilderRegistry.get_instance().build_reference(definition)
        a, b = torch.randn(5, 64), torch.randn(5, 64)
        assert torch.equal(reference(a, b), a + b)
        with pytest.raises(ImportError):
            __import__("task")

    def test_the_tolerances_of_the_task_are_settings_of_the_data_set(self, tmp_path):
        root, folder = make(tmp_path / "set"), gpumode_problem(tmp_path)
        imported = [add_problem(root, read_gpumode(folder, name=name).problem) for name in ("second", "first")]
        config = BenchmarkConfig().for_data_set(TraceSet.from_path(root))
        for added in imported:
            tolerance = config.resolve_eval_config(added.definition).tolerance("float32")
            assert (added.notes, tolerance.rtol, tolerance.atol) == ((), 1e-4, 2e-4)

    @pytest.mark.parametrize("text", ["definition_config: {add: {rtol: 0.1}}  # mine\n", "- [no\n", ""])
    def test_settings_that_somebody_wrote_are_not_rewritten(self, tmp_path, text):
        root = make(tmp_path / "set")
        (root / "fib-bench.yaml").write_text(text)
        (note,) = add_problem(root, read_gpumode(gpumode_problem(tmp_path)).problem).notes
        assert yaml.safe_load(note.partition("add to it:\n")[2]) == {
            "definition_config": {"gpumode_add_py": {"atol": 2e-4, "rtol": 1e-4}}
        }
        assert (root / "fib-bench.yaml").read_text() == text

    def test_a_buffer_that_the_reference_leaves_alone_is_an_output(self, tmp_path):
        source = ADD.replace("output[...] = first + second", "output = first + second")
        found = read_gpumode(gpumode_problem(tmp_path, source))
        assert found.is_destination_passing
        assert list(found.problem.to_definition().outputs) == ["output"]
        read = ADD.replace("output[...] = first + second", "output = first + second + output")
        other = read_gpumode(gpumode_problem(tmp_path / "read", read.replace("torch.empty", "torch.zeros")))
        assert list(other.problem.to_definition().inputs) == ["first", "second", "output"]

    def test_a_size_of_an_output_may_be_an_expression(self, tmp_path):
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
        source = source.replace("torch.randn(width)", "torch.randn(width), torch.empty(4, size - width + 1)")
        source = source.replace("x, weights = data", "x, weights, output = data")
        filling = read_gpumode(gpumode_problem(tmp_path / "fills", source, task))
        assert filling.is_destination_passing
        reference = BuilderRegistry.get_instance().build_reference(filling.problem.to_definition())
        assert reference(torch.ones(4, 20), torch.ones(5)).tolist() == [[5.0] * 16] * 4
        assert validate(tmp_path / "set").is_ok

    @pytest.mark.slow
    def test_tensors_and_numbers_in_dicts_and_lists_are_inputs(self, tmp_path):
        source = """
        import torch
        def generate_input(size, seed):
            x = torch.randn(size, 8)
            return x, {"w.up": torch.randn(8, 4).sort().values, "kind": "gelu"}, [torch.ones(8), {"factor": 0.5}]
        def ref_kernel(data):
            x, weights, (bias, config) = data
            assert weights["kind"] == "gelu"
            return (x + bias) @ weights["w.up"] * config["factor"]
        """
        task = "tests: [{size: 16, seed: 1}, {size: 32, seed: 1}]\n"
        root = make(tmp_path / "set")
        definition = add_problem(root, read_gpumode(gpumode_problem(tmp_path, source, task)).problem).definition
        assert list(definition.inputs) == ["x", "weights_w_up", "input_2_0", "input_2_1_factor"]
        TraceSet.from_path(root).add_solutions([reference_solution(definition)])
        assert statuses(root, "cpu") == {"reference": "PASSED"}

    def test_cases_with_other_parts_or_dtypes_than_the_first_are_told_to_be_left_out(self, tmp_path):
        source = """
        import torch
        def generate_input(size, kind, seed):
            mask = torch.ones(size) if kind == "float" else torch.ones(size, dtype=torch.int64)
            return torch.ones(size), ({"a": mask, "b": mask} if kind == "two" else {"a": mask})
        def ref_kernel(data):
            x, masks = data
            return x * masks["a"]
        """
        kinds = ("float", "int", "float", "two")
        cases = ", ".join(f"{{size: {8 + index}, kind: {kind}, seed: 1}}" for index, kind in enumerate(kinds))
        problem = read_gpumode(gpumode_problem(tmp_path, source, f"tests: [{cases}]\n")).problem
        assert [call.name for call in problem.calls] == ["test-0", "test-2"]
        (note,) = problem.notes
        assert note == "left out, because their data has other parts or dtypes: test-1, test-3"

    def test_an_object_of_a_class_of_the_problem_is_made_anew_of_its_attributes(self, tmp_path):
        source = """
        import dataclasses
        import torch
        @dataclasses.dataclass
        class Config:
            factor: float
            shape: tuple
            weight: torch.Tensor
        class Cache(torch.nn.Module):
            def __init__(self, values):
                super().__init__()
                self.register_buffer("values", values)
                self.filled = 0
            def forward(self, x):
                self.values[self.filled] = x
                self.filled += 1
                return self.values
        def generate_input(size, seed):
            cache = Cache(torch.zeros(3, size, device="cuda"))
            cache(torch.ones(size, device="cuda"))
            return Config(0.5, (3, size), torch.ones(size, device="cuda")), cache
        def ref_kernel(data):
            config, cache = data
            return cache(config.weight) * config.factor
        """
        found = read_gpumode(gpumode_problem(tmp_path, source, "tests: [{size: 16, seed: 1}, {size: 32, seed: 1}]\n"))
        definition = found.problem.to_definition()
        assert {"config_factor", "config_weight", "cache__buffers_values", "cache_filled"} <= set(definition.inputs)
        values = list(found.problem.calls[0].inputs.values())
        expected = torch.tensor([0.5, 0.5, 0.0])[:, None].expand(3, 16)
        submission = source.replace("def ref_kernel", "def custom_kernel")
        sources = found.solution(write(tmp_path / "same.py", submission))
        spec = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
        builders = BuilderRegistry.get_instance()
        same = builders.build(definition, Solution("same", definition.name, "me", spec, sources))
        for run in (builders.build_reference(definition), same):
            assert torch.equal(run(*values).cpu(), expected)

    def test_a_check_of_the_task_is_told_to_be_left_out(self, tmp_path):
        source = ADD.replace("check_implementation = ", "def check_implementation(data, output): return True\nmatch = ")
        (note,) = read_gpumode(gpumode_problem(tmp_path, source)).problem.notes
        assert "check_implementation" in note

    def test_data_that_the_reference_changes_in_place_is_an_input_and_stays(self, tmp_path):
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
            (ADD, TASK.replace("{rows: 8, width: 64, seed: 1}", "{rows: 8}"), "of test-0 raised TypeError"),
            (ADD.replace("def ref_kernel", "def other"), TASK.replace("utils", "other"), "raised"),
            (
                ADD.replace("return (a, b, torch", "return ({'a': {1}}, b, torch"),
                TASK,
                "part 'first_a' of the data is a set; known are tensors, numbers, lists, dicts and objects of them",
            ),
            (
                "import torch\ndef generate_input(rows, width, seed): return torch.ones(9)\n"
                "def ref_kernel(data): return torch.ones(COUNT.pop())\nCOUNT = [4, 3, 2]\n",
                TASK,
                "dimension 0 of output 'output' varies and is not a dimension of an input",
            ),
            (
                "import torch\ndef generate_input(rows, width, seed): return torch.ones(3).cfloat()\n"
                "def ref_kernel(data): return data + 1\n",
                TASK,
                "has dtype complex64; a definition knows",
            ),
        ],
    )
    def test_a_folder_of_another_form_is_explained_and_nothing_written(self, tmp_path, capsys, reference, task, said):
        problem = gpumode_problem(tmp_path, reference, task)
        assert main(["import", "gpumode", str(problem), "--dataset", str(tmp_path / "set")]) == 2
        assert said in capsys.readouterr().err
        assert not list((tmp_path / "set").rglob("*.json"))
