"""PythonBuilder imports a solution as a package of its own and checks its entry point."""

import sys
from pathlib import Path

import pytest
import torch
from compile_samples import ADD_ONE, SUBTRACT, make_solution
from fib_compile import BuildError, PythonBuilder

X = torch.zeros(2, 4)
A, B = torch.tensor([5.0]), torch.tensor([3.0])
BUILD_LOG = "Error building extension 'k': [1/2] c++ -c /a/k.cpp\nFAILED: k.o\n/a/k.cpp:3:8: error: no gg\n  3 | gg"


def failure(solution):
    with pytest.raises(BuildError) as caught:
        PythonBuilder().build(ADD_ONE, solution)
    return caught.value


def test_a_solution_is_imported_and_run():
    runnable = PythonBuilder().build(ADD_ONE, make_solution("def run(x):\n    return x + 1\n"))
    assert torch.equal(runnable(X), X + 1)
    assert (runnable.metadata.build_type, runnable.metadata.solution_name) == ("python", "solution")
    assert runnable.setup is None


def test_sources_are_written_below_the_build_folder_only(cache_path):
    files = {"k.py": "from .sub.part import f as run\n", "sub/part.py": "def f(x):\n    return x\n"}
    runnable = PythonBuilder().build(ADD_ONE, make_solution(files))
    folder = Path(runnable.metadata.misc["folder"])
    assert folder.is_relative_to(cache_path)
    assert (folder / "sub" / "part.py").read_text() == files["sub/part.py"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    "statement",
    [
        "from .helper import f",
        "from . import helper; f = helper.f",
        "from helper import f",
        "import helper; f = helper.f",
        "import helper as h; f = h.f",
        "import gadgets.deep as d; f = d.f",
        "import gadgets.deep; f = gadgets.deep.f",
        "from gadgets import deep; f = deep.f",
        "from gadgets.deep import f",
    ],
)
def test_own_files_are_importable(statement):
    files = {
        "k.py": f"{statement}\ndef run(x):\n    return f(x)\n",
        "helper.py": "def f(x):\n    return x + 1\n",
        "gadgets/deep.py": "from helper import f\n",
    }
    runnable = PythonBuilder().build(ADD_ONE, make_solution(files))
    assert torch.equal(runnable(X), X + 1)
    assert not {"helper", "gadgets"} & sys.modules.keys()


def test_own_files_have_priority_over_installed_modules():
    files = {"k.py": "import json\ndef run(x):\n    return json.f(x)\n", "json.py": "def f(x):\n    return x + 7\n"}
    assert torch.equal(PythonBuilder().build(ADD_ONE, make_solution(files))(X), X + 7)
    assert "f" not in vars(sys.modules["json"])


def test_a_file_does_not_import_itself_by_its_own_name():
    files = {"torch.py": "import torch\ndef run(x):\n    return torch.add(x, 1)\n"}
    assert torch.equal(PythonBuilder().build(ADD_ONE, make_solution(files))(X), X + 1)


def test_cleanup_removes_the_modules():
    before, finders = set(sys.modules), list(sys.meta_path)
    files = {"k.py": "import helper\ndef run(x):\n    return x\n", "helper.py": ""}
    runnable = PythonBuilder().build(ADD_ONE, make_solution(files))
    assert set(sys.modules) - before
    runnable.cleanup()
    assert (set(sys.modules) - before, sys.meta_path) == (set(), finders)


def test_cleanup_of_one_build_keeps_a_later_one():
    solution = make_solution("def run(x):\n    return x\n")
    first, second = (PythonBuilder().build(ADD_ONE, solution) for _ in range(2))
    package = second.metadata.misc["package"]
    first.cleanup()
    assert package in sys.modules
    second.cleanup()
    assert package not in sys.modules


def test_a_missing_entry_point_lists_the_exports():
    error = failure(make_solution("def main(x): ...\ndef other(): ...\n_private = print\n"))
    assert error.problem == "'kernel.py' has no 'run'; it exports main, other"


def test_a_failing_import_shows_the_solutions_own_lines():
    files = {"k.py": "from .part import f\n", "part.py": "import json\nf = json.loads('{')\n"}
    error = failure(make_solution(files))
    assert error.problem.startswith("importing 'k.py' failed with JSONDecodeError: ")
    places = [line for line in error.details if " File " in line]
    assert places == ['  File "k.py", line 1, in <module>', '  File "part.py", line 2, in <module>']


def test_a_failed_import_is_a_build_error_whose_first_line_has_the_cause():
    assert "called exit with code 3" in str(failure(make_solution("raise SystemExit(3)\n")))
    error = failure(make_solution(f"raise RuntimeError({BUILD_LOG!r})\n"))
    assert error.problem.endswith("failed with RuntimeError: k.cpp:3:8: error: no gg\n  3 | gg")


def test_a_failed_import_leaves_nothing_behind():
    before = set(sys.modules), list(sys.meta_path)
    failure(make_solution({"k.py": "import part\nraise OSError\n", "part.py": ""}))
    failure(make_solution("def run(): ...\n"))
    assert (set(sys.modules), sys.meta_path) == before


@pytest.mark.parametrize(("dps", "expected"), [(False, "false: expected (x)"), (True, "true: expected (x, y)")])
@pytest.mark.parametrize("signature", ["", "x, y, z", "*, y"])
def test_a_wrong_number_of_parameters_shows_both_signatures_and_the_setting(signature, dps, expected):
    error = failure(make_solution(f"def run({signature}): ...\n", dps=dps))
    assert f"destination_passing_style={expected}, found run({signature})" in str(error)
    assert ("set it to false" in str(error)) == dps


@pytest.mark.parametrize(
    "text",
    [
        "def run(a, b):\n    return a - b\n",
        "def run(b, a):\n    return a - b\n",
        "def run(first, second):\n    return first - second\n",
        "def run(*args):\n    return args[0] - args[1]\n",
        "def run(a, b=None, extra=0):\n    return a - b\n",
        "def run(*, b, a):\n    return a - b\n",
        "def run(b, /, a):\n    return a - b\n",
        "import functools, operator\nrun = operator.sub\n",
        "class K:\n    def __call__(self, b, a):\n        return a - b\nrun = K()\n",
    ],
)
def test_arguments_go_by_name_where_the_names_are_the_definitions(text):
    runnable = PythonBuilder().build(SUBTRACT, make_solution(text))
    assert runnable(A, B).item() == 2
    assert runnable.call_kwargs(b=B, a=A).item() == 2


@pytest.mark.parametrize(
    "parameters", ["a, b, factor", "b, a, factor", "a, b, *, factor", "a, b, **factor", "x, y, factor"]
)
def test_setup_prepares_extra_arguments(parameters):
    a, b = ("x", "y") if "x" in parameters else ("a", "b")
    text = (
        "def setup(b, a):\n    return {'factor': a.shape[0] + 1}\n"
        f"def run({parameters}):\n"
        "    factor = factor['factor'] if isinstance(factor, dict) else factor\n"
        f"    return ({a} - {b}) * factor\n"
    )
    runnable = PythonBuilder().build(SUBTRACT, make_solution(text))

    assert runnable.setup is not None
    assert runnable.plan(A, B)(A, B).item() == 4


def test_an_entry_point_named_setup_is_not_a_setup_function():
    solution = make_solution("def setup(x):\n    return x + 1\n", entry="kernel.py::setup")
    assert PythonBuilder().build(ADD_ONE, solution).setup is None
