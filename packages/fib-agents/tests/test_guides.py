"""Guides: every example compiles, and runs where a CPU can run it."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
from fib_agents import check_source, disassemble, evaluate, read_guide
from fib_agents.errors import ToolMissing
from fib_agents.guides import GUIDES
from fib_schema import UnknownName

EXAMPLES = [
    (name, language, code)
    for name in GUIDES
    for language, code in re.findall(r"```(\w+)\n(.*?)```", read_guide(name), re.S)
]
FILES = {"python": "kernel.py", "cpp": "kernel.cpp", "cuda": "kernel.cu"}


def test_each_guide_has_a_version_and_an_example():
    for name in GUIDES:
        assert re.match(rf"<!-- guide {name}, version \d+ -->\n# ", read_guide(name))
        assert any(guide == name for guide, _, _ in EXAMPLES)
    with pytest.raises(UnknownName, match="judging"):
        read_guide("../errors.py")


@pytest.mark.parametrize(("guide", "language", "code"), EXAMPLES)
def test_each_example_is_a_solution_without_suspicious_constructs(workspace, guide, language, code):
    result = check_source(workspace, "softmax_n64", {FILES[language]: code})
    assert result.is_callable, result.problems
    assert not result.findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guide", "language", "code"), [one for one in EXAMPLES if one[0] != "tilelang" and one[1] != "cuda"]
)
def test_examples_for_the_cpu_are_right(workspace, guide, language, code):
    if guide == "triton" and find_spec("triton") is None:
        pytest.skip("triton is not installed")
    result = evaluate(workspace, "softmax_n64", {FILES[language]: code}, workloads=["rows-4"])
    assert result.is_passed, result.to_text()


@pytest.mark.slow
def test_the_example_in_cuda_compiles(workspace):
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    (code,) = [code for _, language, code in EXAMPLES if language == "cuda"]
    try:
        result = disassemble(workspace, "softmax_n64", {"kernel.cu": code}, architecture="9.0a")
    except ToolMissing as error:
        pytest.skip(str(error))
    assert "sm_90a" in result.code
    assert "SoftmaxRow" in result.resources
    assert "REG:" in result.resources


@pytest.mark.slow
def test_the_example_in_tilelang_traces(tmp_path):
    if find_spec("tilelang") is None:
        pytest.skip("tilelang is not installed")
    (code,) = [code for guide, _, code in EXAMPLES if guide == "tilelang"]
    (tmp_path / "kernel.py").write_text(f"{code}\n\nassert compiled.get_tir(4, 64) is not None\n")
    subprocess.run([sys.executable, str(tmp_path / "kernel.py")], check=True, cwd=tmp_path)
