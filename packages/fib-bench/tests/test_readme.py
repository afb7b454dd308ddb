import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


@pytest.mark.usefixtures("shared_server")
def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert re.search(r"relu_clamp: PASSED", said)
    assert re.search(r"relu_abs: INCORRECT_NUMERICAL", said)
    assert "; input set 0 (normal)" in said
