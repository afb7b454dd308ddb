"""Tests of spaces of configurations, of the choice among them, and of `fib-bench tune`."""

import ast
import json

import attrs
import pytest
from fib_bench.tuning.files import read_configurations
from fib_bench.tuning.search import Cost, choose, loss_of
from fib_bench.tuning.space import SpaceError, make_space
from fib_schema import AxisConst, BuildSpec, InvalidField, Solution, SourceFile, Trace, TraceSet
from fib_schema.settings import InvalidConfigFile

from .samples import DOUBLE, make_workload

TRITON = """
import itertools
import triton
import triton.language as tl
from triton import Config

SIZES = [16, 32, 64]

def configs():
    "All of them."
    return [Config({"BLOCK": size}, num_warps=warps) for size, warps in itertools.product(SIZES, (4, 8)) if size > 16]

@triton.autotune(%s, key=["n"])
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    pass

def run(x, y):
    kernel[(1,)](x, y, x.numel())
"""
KERNEL = """
import os
import torch

MODE: int = 1

def run(x, y):
    if MODE == 2:
        y.zero_()
    elif MODE == 3:
        os._exit(3)
    else:
        for _ in range(MODE):
            torch.mul(x, 2, out=y)
"""


def _solution(**sources):
    files = tuple(SourceFile(name.replace("_", "."), content) for name, content in sources.items())
    language = "python" if files[0].path.endswith(".py") else "cpp"
    return Solution("mine", "double", "me", BuildSpec(language, ("cpu",), f"{files[0].path}::run"), files)


def _space(tmp_path, content, **sources):
    (tmp_path / "space.yaml").write_text(content)
    return make_space(_solution(**sources), tmp_path / "space.yaml")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('[triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16}, num_stages=2)]', [(8,), (16, 2)]),
        ("configs=configs()", [(32, 4), (32, 8), (64, 4), (64, 8)]),
        (
            "configs=[Config({'BLOCK': 2 * s}, num_warps=4 if s < 32 else 8) for s in SIZES]",
            [(32, 4), (64, 8), (128, 8)],
        ),
        ("[Config({'BLOCK': 16}, num_warps=w, num_ctas=None) for w in range(1, 4)]", [(16, 1), (16, 2), (16, 3)]),
    ],
)
def test_configurations_of_autotuned_kernels_are_read_without_running_them(given, expected):
    space = make_space(_solution(main_py=TRITON % given), None)
    assert [tuple(each.values()) for each in space.configurations] == expected
    for parameters in [*space.configurations, {"BLOCK": 7, "num_stages": 5}]:
        (source,) = space.solution_of(parameters).sources
        (kernel,) = [node for node in ast.parse(source.content).body if getattr(node, "name", "") == "kernel"]
        (config,) = next(n for n in ast.walk(kernel.decorator_list[0]) if isinstance(n, ast.List)).elts
        options = {word.arg: ast.literal_eval(word.value) for word in config.keywords}
        assert {**ast.literal_eval(config.args[0]), **options} == parameters
        assert ast.dump(ast.parse(source.content).body[-1]) == ast.dump(ast.parse(TRITON % given).body[-1])


@pytest.mark.parametrize(
    "given", ["configs=load()", "[Config({'BLOCK': 2**99}, num_warps=8)]", "[]", "[1 % 0]", "SIZES * 2", "[unknown]"]
)
def test_what_cannot_be_read_needs_a_file(given):
    with pytest.raises(SpaceError, match=r"main.py:\d+: cannot read .* \(--space\)"):
        make_space(_solution(main_py=TRITON % given), None)
    with pytest.raises(SpaceError, match="0 autotuned kernels"):
        make_space(_solution(main_py=KERNEL), None)
    twice = (TRITON % "configs()").replace("def run", "@triton.autotune(configs())\ndef other(): pass\n\ndef run")
    with pytest.raises(SpaceError, match="2 autotuned kernels"):
        make_space(_solution(main_py=twice), None)


@pytest.mark.parametrize(
    ("sources", "changed"),
    [
        ({"main_py": "# ü\nBLOCK, = 1,\nBLOCK = 7 + 1\n"}, "# ü\nBLOCK, = 1,\nBLOCK = 32\n"),
        ({"main_py": "BLOCK: int = 8  # ü\n"}, "BLOCK: int = 32  # ü\n"),
        ({"main_cpp": "  #define BLOCK 8\n#define BLOCKS BLOCK\n"}, "  #define BLOCK 32\n#define BLOCKS BLOCK\n"),
        ({"main_cpp": "static constexpr int BLOCK = 4 * 2;"}, "static constexpr int BLOCK = 32;"),
        ({"main_cpp": "constexpr auto BLOCK{8};"}, "constexpr auto BLOCK{32};"),
    ],
)
def test_a_constant_is_replaced_where_it_is_assigned(tmp_path, sources, changed):
    space = _space(tmp_path, "parameters: {BLOCK: [16, 32]}\nconstraints: ['BLOCK > 16']", **sources)
    assert space.configurations == ({"BLOCK": 32},)
    made = space.solution_of({"BLOCK": 32})
    assert made.sources[0].content == changed
    assert made.name == f"mine_BLOCK=32_{made.hash()[:8]}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("parameters: {BLOCK: [16], OTHER: [1]}", "OTHER is assigned 0 times"),
        ("parameters: {TWICE: [16]}", "TWICE is assigned 2 times"),
        ("parameters: {BLOCK: [16]}\nconstraints: ['BLOCK > 16']", "0 configurations are left"),
        (f"parameters: {{BLOCK: {list(range(2001))}}}", "2001 configurations are left"),
        (f"parameters: {{BLOCK: {list(range(2000))}, LONG: {list(range(2000))}}}", "over 1000000 combinations"),
    ],
)
def test_spaces_that_cannot_be_searched(tmp_path, content, message):
    with pytest.raises(SpaceError, match=message):
        _space(tmp_path, content, main_py="BLOCK = 1\nLONG = 1\nTWICE = 1\nTWICE = 2\n")


@pytest.mark.parametrize("content", ["parameters: {BLOCK: [a]}", "parameters: {BLOCK: []}", "parameter: {}", "- 1"])
def test_files_that_are_no_space(tmp_path, content):
    with pytest.raises(InvalidConfigFile, match=r"space\.yaml"):
        _space(tmp_path, content, main_py="BLOCK = 1\n")


def _cost(ms, half=0.0, kind="device", is_quick=False):
    return Cost(ms - half, ms, ms + half, kind, is_quick)


def _chosen(costs):
    return {key: choice.chosen for choice in choose(costs, {}) for key in [choice.key]}


A, B, C = ((("n", n),) for n in (1, 2, 3))


def test_equal_configurations_are_chosen_by_how_many_sizes_they_serve_and_then_by_name():
    costs = {
        A: {"a": _cost(1.0), "x": _cost(1.0), "y": _cost(1.004), "z": _cost(1.2)},
        B: {"y": _cost(2.0, 0.2), "z": _cost(2.3, 0.2), "x": _cost(3.0)},
        C: {"x": _cost(0.01), "y": _cost(0.0102), "z": _cost(0.01009)},
    }
    assert _chosen(costs) == {A: "x", B: "y", C: "x"}
    assert _chosen(dict(reversed(costs.items()))) == _chosen(costs)
    (first, *_) = choose(costs, {A: 7.0})
    assert (first.calls, first.equals, first.runner_up) == (7.0, ("a", "x", "y"), "a")
    assert first.gain == (1.0, 1.0)


def test_quick_costs_choose_nothing_and_kinds_are_not_compared():
    costs = {A: {"x": _cost(1.0, is_quick=True)}, B: {"x": _cost(1.0, kind="call"), "y": _cost(9.0)}, C: {}}
    assert _chosen(costs) == {B: "y"}
    assert loss_of(costs[A], "x") is None
    assert loss_of({"x": _cost(2.0, 0.1), "y": _cost(1.0)}, "x") == pytest.approx((1.9, 2.0, 2.1))


def test_a_file_of_vllm_states_the_configuration_of_the_nearest_size(tmp_path):
    path = tmp_path / "E=8.json"
    path.write_text(json.dumps({"triton_version": "3", "1": {"BLOCK_SIZE_M": 16}, "64": {"BLOCK_SIZE_M": 64}}))
    found = read_configurations(path, [(("M", 30),), (("M", 40),)])
    assert [each["BLOCK_SIZE_M"] for each in found.values()] == [16, 64]
    with pytest.raises(InvalidField, match="neither"):  # its sizes are those of one axis
        read_configurations(path, [(("M", 30), ("N", 4))])
    path.write_text("[]")
    with pytest.raises(InvalidField, match="neither"):
        read_configurations(path, [A])


@pytest.mark.slow
def test_wrong_and_crashing_configurations_cost_only_themselves(run, make_data_set, tmp_path, monkeypatch):
    root = make_data_set(sizes=(2, 3))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "space.yaml").write_text("parameters: {MODE: [1, 2, 3, 3000]}")
    options = ["--definition", "double", "--dataset", root, "--device", "cpu", "--measure-seconds", "0.05"]
    options += ["--space", "space.yaml", "--cpu-processes", "1", "--json"]
    code, out, err = run("tune", "kernel.py", *options)
    assert code == 0, err
    table = json.loads(out)
    assert [(each["axes"], each["parameters"]) for each in table["keys"]] == [
        ({"n": 2}, {"MODE": 1}),
        ({"n": 3}, {"MODE": 1}),
    ]
    assert json.loads((tmp_path / "tuned-kernel/tuned.json").read_text()) == table
    counted = {str(t.evaluation.status) for t in TraceSet.from_path(tmp_path / "tuned-kernel/search").traces["double"]}
    assert counted == {"PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR"}
    chosen = TraceSet.from_path(tmp_path / "tuned-kernel/chosen")
    assert [trace.solution for trace in chosen.traces["double"]] == [table["keys"][0]["solution"]] * 2

    code, _, err = run("tune", "kernel.py", *options)
    assert (code, "exists; go on with --resume" in err) == (2, True)
    code, out, err = run("tune", "kernel.py", *options, "--resume", "--verify", "tuned-kernel/tuned.json")
    assert (code, "PASSED" in err) == (0, False)  # nothing was evaluated again
    verified = json.loads(out)["verified"]
    assert [each["loss"][1] for each in verified] == [1.0, 1.0]


VLLM = {"BLOCK_SIZE_M": [16, 32], "BLOCK_SIZE_N": [64], "BLOCK_SIZE_K": [64], "GROUP_SIZE_M": [1], "num_warps": [4]}


@pytest.mark.slow
def test_files_that_vllm_loads_have_the_name_that_it_expects(run, make_data_set, tmp_path, monkeypatch):
    sizes = {"num_experts": AxisConst(128), "intermediate_size": AxisConst(768)}
    experts = attrs.evolve(DOUBLE, name="experts", axes={**DOUBLE.axes, **sizes})
    root = make_data_set(definitions=[experts])
    options = ["--definition", "experts", "--dataset", root, "--device", "cpu", "--measure-seconds", "0.05"]
    options += ["--space", "space.yaml", "--cpu-processes", "1", "--export", "vllm-moe=configs"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(json.dumps({"parameters": VLLM}))
    (tmp_path / "moe.py").write_text("\n".join(f"{name} = 0" for name in [*VLLM, "num_stages"]) + KERNEL)
    code, _, err = run("tune", "moe.py", *options)
    assert (code, "experts has no workloads" in err) == (2, True)
    workloads = [make_workload(experts, {"n": size}, f"experts-{size}") for size in (1, 64)]
    TraceSet.from_path(root).add_traces([Trace("experts", workload) for workload in workloads])
    code, _, err = run("tune", "moe.py", *options)
    assert (code, "num_stages missing" in err) == (2, True)
    (tmp_path / "space.yaml").write_text(json.dumps({"parameters": {**VLLM, "num_stages": [2]}}))
    code, _, err = run("tune", "moe.py", *options, "--output", "again")
    assert code == 0, err
    (file,) = (tmp_path / "configs").iterdir()
    assert file.name.startswith("E=128,N=768,device_name=")
    assert " " not in file.name
    found = json.loads(file.read_text())
    assert list(found) == ["1", "64"]
    assert found["64"]["num_stages"] == 2
    assert list(found["1"]) == [*VLLM, "num_stages"]
