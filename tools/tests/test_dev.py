import ast
import sys
from pathlib import Path

import dev
import pytest

TOOLS = Path(__file__).parents[1]


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 1), (4, 0, 0)])
def test_a_supported_python_is_not_refused(version):
    assert dev.explain_old_python(version) is None


def test_an_old_python_is_told_what_was_found_what_is_wanted_and_what_to_do():
    message = dev.explain_old_python((3, 8, 18, "final", 0))
    assert "this is Python 3.8.18" in message
    assert "Python 3.11 or newer" in message
    assert "`python3.11 tools/dev.py help`" in message


def test_the_script_parses_under_pythons_that_it_refuses():
    ast.parse((TOOLS / "dev.py").read_text(), feature_version=(3, 8))


def test_a_script_that_was_copied_out_of_the_repository_says_so(tmp_path):
    assert "clone the repository" in dev.explain_lonely_script(tmp_path)
    assert dev.explain_lonely_script(TOOLS) is None


def test_the_tools_need_nothing_but_the_standard_library():
    names = set()
    for path in [TOOLS / "dev.py", *(TOOLS / "workshop").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").partition(".")[0])
    assert names - {"workshop"} <= sys.stdlib_module_names
