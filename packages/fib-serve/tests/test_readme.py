import re
from pathlib import Path

import pytest
from fib_serve import ServiceError
from fib_serve.cli.main import main

from .samples import make_solution

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_examples_run(example, address, token):
    namespace = {}
    exec(compile(example, "README.md", "exec"), namespace)
    with pytest.raises(ServiceError, match="Definition not found"):
        namespace["evaluate"](address, token("alice"), make_solution(definition="nope"))


def test_every_command_of_the_readme_exists(capsys):
    commands = dict.fromkeys(re.findall(r"^fib-serve ([a-z]+)", README, re.MULTILINE))
    assert set(commands) >= {"run", "submit", "token"}
    for command in commands:
        with pytest.raises(SystemExit) as exit_:
            main([command, "--help"])
        assert exit_.value.code == 0, command
    capsys.readouterr()
