"""Command line of ``fib-schema``: parser and entry point. Commands import what they need when they run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from .command import CommandParser, run_command
from .errors import DataSetNotFound

_DESCRIPTION = """\
Sign data sets, verify their signatures, and print the JSON Schemas of records."""

_SIGN = """\
Sign all files below definitions, solutions, workloads, traces and blob, hidden ones excepted, with ssh-keygen, which
asks for a passphrase. Lists how the files differ from those that the key signed last: read it, because engines that
require the signature execute solutions of this list. The list and its signature are written to DIR/signatures. Make a
key with 'ssh-keygen -t ed25519 -f FILE'. Exit codes: 0, 2 on errors."""

_SIGN_EXAMPLES = """\
examples:
  fib-schema sign DIR --key owner --dry-run        what would be signed for the first time
  fib-schema sign DIR --key owner"""

_VERIFY = """\
Compare every file with the signed list. Prints each file that is changed, missing, grown (lines were appended
after the signed part) or added, then a summary. Of several signers, one must have signed the set. Exit codes:
0 if all files are as signed; 1 if some are not; 2 if there is no valid signature, or the command is invalid."""

_VERIFY_EXAMPLES = """\
examples:
  fib-schema verify DIR --signer owner.pub
  fib-schema verify DIR --signer owner.pub --allow-appended    new files and appended lines are accepted
  fib-schema verify DIR --signer owner.pub --min-serial 7      not an older state than the seventh"""

_JSON_SCHEMA = """\
Print the JSON Schema of a kind of record, or write those of all kinds. Editors complete and check definitions and
solutions with them. Lines of workloads and traces are both of the kind 'trace'; 'workload' is the object inside
them. Validation of a data set ('fib-bench validate') checks more. Exit codes: 0, 2 on errors."""

_JSON_SCHEMA_EXAMPLES = """\
examples:
  fib-schema json-schema solution
  fib-schema json-schema --out .vscode/schemas     all of them, as definition.schema.json and so on"""

_Form = argparse.RawDescriptionHelpFormatter
_Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"  # noqa: SLF001 - argparse has no public name for it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""

    def run() -> int:
        options = _parser().parse_args(arguments)
        code: int = options.run(options)
        return code

    return run_command("fib-schema", run)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="fib-schema", description=_DESCRIPTION, formatter_class=_Form)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_sign(commands)
    _add_verify(commands)
    _add_json_schema(commands)
    return parser


# -- signatures --------------------------------------------------------------------------------------


def _add_sign(commands: _Commands) -> None:
    command = commands.add_parser(
        "sign", help="sign a data set", description=_SIGN, epilog=_SIGN_EXAMPLES, formatter_class=_Form
    )
    command.add_argument("dataset", type=Path, metavar="DIR", help="the folder of the data set")
    help_of_key = "the private key, or the public one of an agent"
    command.add_argument("--key", type=Path, required=True, metavar="FILE", help=help_of_key)
    command.add_argument("--serial", type=int, help="number of the signed state (default: the last one plus 1)")
    command.add_argument("--dry-run", action="store_true", help="list the differences, and sign nothing")
    command.set_defaults(run=_sign)


def _add_verify(commands: _Commands) -> None:
    command = commands.add_parser(
        "verify",
        help="compare a data set with its signature",
        description=_VERIFY,
        epilog=_VERIFY_EXAMPLES,
        formatter_class=_Form,
    )
    command.add_argument("dataset", type=Path, metavar="DIR", help="the folder of the data set")
    command.add_argument(
        "--signer",
        action="append",
        required=True,
        metavar="KEY",
        help="a file with public keys, or the text of one; may be repeated",
    )
    command.add_argument("--allow-appended", action="store_true", help="exit 0 if files are only grown or added")
    command.add_argument("--min-serial", type=int, default=1, metavar="N", help="the oldest state that is accepted")
    command.set_defaults(run=_verify)


def _sign(options: argparse.Namespace) -> int:
    from .display import counted
    from .signing import sign

    _check_root(options.dataset)
    done = sign(options.dataset, options.key, serial=options.serial, writes=not options.dry_run)
    for report in done.differences:
        print(report)
    state = f"serial {done.manifest.serial}, {counted(len(done.manifest.files), 'file')}, by {done.signer.fingerprint}"
    print(f"not signed (--dry-run): {state}" if options.dry_run else f"signed: {state}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from .signing import read_public_keys, verify

    _check_root(options.dataset)
    found = verify(options.dataset, [key for given in options.signer for key in read_public_keys(given)])
    for report in found.differences:
        print(report)
    print(found.summary)
    serial = found.manifest.serial
    if serial < options.min_serial:
        print(f"serial {serial} is older than {options.min_serial}, the oldest one that is accepted")
        return 1
    return 0 if found.is_ok(allows_appended=options.allow_appended) else 1


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise DataSetNotFound(str(root))


# -- JSON Schemas ------------------------------------------------------------------------------------


def _add_json_schema(commands: _Commands) -> None:
    command = commands.add_parser(
        "json-schema",
        help="print or write the JSON Schemas of records",
        description=_JSON_SCHEMA,
        epilog=_JSON_SCHEMA_EXAMPLES,
        formatter_class=_Form,
    )
    choice = command.add_mutually_exclusive_group(required=True)
    choice.add_argument(
        "kind", nargs="?", choices=["definition", "solution", "workload", "trace"], help="what to print"
    )
    choice.add_argument("--out", type=Path, metavar="DIR", help="write all schemas into this folder")
    command.set_defaults(run=_json_schema)


def _json_schema(options: argparse.Namespace) -> int:
    from .json_schema import RECORD_KINDS, format_schema, write_schemas

    if options.out is None:
        print(format_schema(RECORD_KINDS[options.kind]), end="")
        return 0
    for file in write_schemas(options.out):
        print(file)
    return 0
