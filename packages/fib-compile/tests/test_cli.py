"""The command builds ahead of time."""

import pytest
from compile_samples import ADD_ONE, fast_cpp, make_solution
from fib_compile.cli import main
from fib_schema import save_json_file


@pytest.fixture
def dataset(tmp_path):
    """Two C++ solutions, one that does not compile, one in Python."""
    root = tmp_path / "dataset"
    solutions = [
        fast_cpp(1, name="one"),
        fast_cpp(2, name="two"),
        make_solution("syntax error\n", language="cpp", name="broken"),
        make_solution("raise SystemExit('not imported')\n", name="python"),
    ]
    (root / "definitions" / "elementwise").mkdir(parents=True)
    save_json_file(ADD_ONE, root / "definitions" / "elementwise" / "add_one.json")
    for solution in solutions:
        folder = root / "solutions" / "tests" / "elementwise" / "add_one"
        folder.mkdir(parents=True, exist_ok=True)
        save_json_file(solution, folder / f"{solution.name}.json")
    return root


def test_build_compiles_all_solutions_and_summarises_failures(dataset, capsys):
    assert main(["build", str(dataset), "-j", "2"]) == 1
    output = capsys.readouterr()
    assert output.out.startswith("2 built, 1 cached, 1 failed\n")
    assert "solution 'broken' (cpp): does not compile" in output.out
    assert output.err.count("\n") == 4
    assert "[4/4]" in output.err

    assert main(["build", str(dataset)]) == 1
    output = capsys.readouterr()
    assert output.out.startswith("0 built, 3 cached, 1 failed\n")
    assert "known from an earlier build" in output.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--definitions", "add_oen"], "no definition is named 'add_oen'; did you mean 'add_one'?"),
        (["--solutions", "brokn"], "no solution is named 'brokn'; did you mean 'broken'"),
        (["--arch", "sm_90"], "'sm_90' is not an architecture"),
        (["-j", "-1"], "jobs: got -1, expected a number greater than 0"),
        (["--timeout", "nan"], "timeout: got nan, expected a number greater than 0"),
    ],
)
def test_a_name_that_matches_nothing_is_an_error(dataset, capsys, arguments, message):
    assert main(["build", str(dataset), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_command_out_of_time_fails_and_is_tried_again(dataset, capsys):
    assert main(["build", str(dataset), "--solutions", "one", "--timeout", "0.000001"]) == 1
    assert "takes too long to compile" in capsys.readouterr().out
    assert main(["build", str(dataset), "--definitions", "add_one", "--solutions", "one"]) == 0
    assert capsys.readouterr().out == "1 built, 0 cached, 0 failed\n"


@pytest.mark.parametrize(
    ("kind", "text"), [("solutions/tests/elementwise/add_one", b"{}"), ("definitions/elementwise", b"\xff")]
)
def test_a_bad_file_costs_only_itself(dataset, capsys, kind, text):
    (dataset / kind / "bad.json").write_bytes(text)
    assert main(["build", str(dataset), "-j", "2"]) == 1
    output = capsys.readouterr()
    assert output.out.startswith("2 built, 1 cached, 1 failed\n")
    assert "bad.json" in output.out + output.err
    assert main(["build", str(dataset), "--solutions", "one", "two"]) == 0
