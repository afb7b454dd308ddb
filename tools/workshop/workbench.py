"""What every verb of `python tools/dev.py` works with."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workshop.checkout import Checkout
from workshop.environment import Environment, prepare
from workshop.machine import find_compiler
from workshop.process import INTERRUPTED, Console, run_foreground


@dataclass(frozen=True)
class Workbench:
    """What a verb works with."""

    checkout: Checkout
    console: Console

    def environment(self) -> Environment:
        """The development environment, ready to use."""
        return prepare(self.checkout, self.console)

    def variables(self) -> dict[str, str]:
        """The environment variables of what is run, with the C++ compiler named."""
        variables = self.checkout.variables()
        return variables | {"CXX": find_compiler(variables)}

    def foreground(self, commands: Sequence[Sequence[str]], environment: Environment, variables: dict[str, str]) -> int:
        """Run commands on this terminal, all of them, and return the worst exit code."""
        active = environment.variables(variables)
        codes = []
        for command in commands:
            codes.append(run_foreground(command, cwd=self.checkout.root, env=active))
            if codes[-1] == INTERRUPTED:
                break
        return max(codes, key=abs, default=0)


Verb = Callable[[Workbench, list[str]], int]


def verb_parser(name: str, verb: Verb) -> argparse.ArgumentParser:
    """A parser whose `--help` is the verb's docstring."""
    return argparse.ArgumentParser(prog=f"python tools/dev.py {name}", description=verb.__doc__)
