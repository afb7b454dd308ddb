"""Put bad data sets through every command that takes one: ``python tests-integration/bad_data_sets.py --help``.

A case is a kind of damage to a small healthy set (`support/bad_sets/kinds_*.py`) and a command (`commands.py`). It
is wrong if the command shows a traceback, hangs, does not name the damaged file, leaves the healthy rest of the set
undone, ends with an undocumented exit code, prints raw control characters, or floods the terminal.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
from bad_sets.commands import COMMANDS
from bad_sets.runner import KINDS, cpu_count, print_table, run_cases, selected


def _parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS", help="kinds whose names contain one of these")
    parser.add_argument("--commands", nargs="+", default=[], metavar="WORDS", help="commands, likewise")
    parser.add_argument("--light", action="store_true", help="only commands that do not import torch")
    parser.add_argument("--heavy", action="store_true", help="only the others")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="only every Nth of the kinds")
    parser.add_argument("--list", action="store_true", help="list kinds and commands")
    parser.add_argument("--show", action="store_true", help="print the output of every case")
    parser.add_argument("-j", type=int, default=cpu_count(), metavar="N", help="cases at once (default: all cores)")
    return parser


def main():
    arguments = _parser().parse_args()
    names = selected(arguments.only, (kind.name for kind in KINDS))
    kinds = [kind for kind in KINDS if kind.name in names]
    kinds = kinds[:: arguments.sample]
    names = selected(arguments.commands, (command.name for command in COMMANDS))
    commands = [command for command in COMMANDS if command.name in names]
    if arguments.light or arguments.heavy:
        commands = [command for command in commands if command.has_torch == arguments.heavy]
    if arguments.list:
        print("\n".join([*(kind.name for kind in kinds), "", *(command.name for command in commands)]))
        return 0
    results = []
    print(f"{len(kinds)} kinds, {len(commands)} commands", file=sys.stderr)
    for result in run_cases(kinds, commands, at_once=arguments.j):
        results.append(result)
        if arguments.show:
            print(f"--- {result.kind} | {result.command} | {result.code} | {result.seconds:.1f} s\n{result.output}")
        if sys.stderr.isatty():
            print(f"\r{len(results)} of {len(kinds) * len(commands)} cases", end="", file=sys.stderr)
    print_table(results)
    return int(any(result.problems for result in results))


if __name__ == "__main__":
    sys.exit(main())
