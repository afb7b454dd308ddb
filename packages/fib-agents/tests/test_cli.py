"""The command: exit codes, JSON, files and names as code."""

import json
import re
from pathlib import Path

import pytest
from fib_agents import extract_solution_to_files, read_guide
from fib_agents.cli import main
from fib_schema import TraceSet

NAME = "softmax_n64"
GOOD = "import torch\n\ndef run(x, y):\n    torch.softmax(x, -1, out=y)\n"


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(GOOD)
    return str(path)


def test_definitions_are_listed_as_text_and_json(root, capsys):
    assert main(["list", "--dataset", str(root), "--device", "cpu"]) == 0
    assert NAME in capsys.readouterr().out
    assert main(["list", "--dataset", str(root), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["definitions"][0]["workloads"] == 4


def test_a_solution_goes_from_a_file_into_the_data_set_and_back(root, kernel, tmp_path, capsys):
    where = ["--dataset", str(root), "--device", "cpu"]
    assert main(["check", NAME, kernel, *where]) == 0
    assert main(["submit", NAME, kernel, *where, "--name", "mine"]) == 0
    assert main(["check", NAME, "mine", *where]) == 0
    capsys.readouterr()
    solution = TraceSet.from_path(root).get_solution("mine")
    folder = extract_solution_to_files(solution, tmp_path)
    assert (Path(folder) / "kernel.py").read_text() == GOOD
    assert main(["check", NAME, folder, *where]) == 0


@pytest.mark.slow
def test_a_wrong_solution_ends_with_exit_code_1(root, kernel, capsys):
    where = ["--dataset", str(root), "--device", "cpu"]
    assert main(["evaluate", NAME, kernel, *where, "--workloads", "rows-4"]) == 0
    Path(kernel).write_text(GOOD.replace("-1, out=y", "0, out=y"))
    assert main(["evaluate", NAME, kernel, *where, "--workloads", "rows-4"]) == 1
    assert "INCORRECT_NUMERICAL" in capsys.readouterr().out


def test_a_source_that_is_no_kernel_is_one_json_object(root, kernel, capsys):
    """A loop in another language reads it like the results of other kernels that fail."""
    Path(kernel).write_text("def run(x, y:\n")
    words = ["evaluate", NAME, kernel, "--dataset", str(root), "--device", "cpu"]
    assert main([*words, "--json"]) == 1
    assert "does not parse" in json.loads(capsys.readouterr().out)["error"]
    assert main(words) != 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["describe", "nothing"], NAME),
        (["check", NAME, "missing.py"], "missing.py"),
        (["check", NAME, "nobody"], "nobody"),
        (["profile", NAME, "KERNEL"], "needs a CUDA device"),
    ],
)
def test_errors_end_with_exit_code_2(root, kernel, capsys, words, said):
    chosen = [kernel if word == "KERNEL" else word for word in words]
    assert main([*chosen, "--dataset", str(root), "--device", "cpu"]) == 2
    assert said in capsys.readouterr().err


def test_schemas_and_guides_are_printed(capsys):
    assert main(["schemas"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "list_definitions"
    assert main(["guide", "triton"]) == 0
    assert capsys.readouterr().out == read_guide("triton")
    assert main(["guide"]) == 0
    assert re.search(r"^tvm-ffi: ", capsys.readouterr().out, re.M)


def test_a_server_of_a_missing_data_set_is_an_error(root, capsys):
    pytest.importorskip("mcp")
    assert main(["mcp", str(root / "nowhere"), "--device", "cpu"]) == 2
    assert "nowhere" in capsys.readouterr().err
