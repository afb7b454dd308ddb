"""Command line of ``fib-schema``: parser and entry point. Commands import what they need when they run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from .command import run_command
from .command_parser import CommandParser

_DESCRIPTION = """\
Sign data sets, verify their signatures, and print the JSON Schemas of records."""

_KEYGEN = """\
Make a pair of Ed25519 keys in OpenSSH's format: FILE, the private key with mode 0600, and FILE.pub. An
existing key of that type, such as ~/.ssh/id_ed25519, serves as well. Exit codes: 0, 2 on errors."""

_SIGN = """\
Sign all files below definitions, solutions, workloads, traces and blob, hidden ones excepted. Lists how the
files differ from those that the key signed last: read it, because engines that require the signature execute
solutions of this list. The signature is written to DIR/signatures. Exit codes: 0, 2 on errors."""

_SIGN_EXAMPLES = """\
examples:
  fib-schema sign DIR --key owner --dry-run        what would be signed for the first time
  fib-schema sign DIR --key owner"""

_VERIFY = """\
Compare every file with the signed list. Prints each file that is changed, missing, grown (lines were appended
after the signed part) or added, then a summary. Of several signers, the first one that has signed the set
counts. Exit codes: 0 if all files are as signed; 1 if some are not; 2 if there is no valid signature, or the
command is invalid."""

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
    _add_keygen(commands)
    _add_sign(commands)
    _add_verify(commands)
    _add_json_schema(commands)
    return parser


# -- signatures --------------------------------------------------------------------------------------


def _add_keygen(commands: _Commands) -> None:
    command = commands.add_parser("keygen", help="make a key pair", description=_KEYGEN, formatter_class=_Form)
    command.add_argument("file", type=Path, metavar="FILE", help="the private key to write")
    command.add_argument("--passphrase", action="store_true", help="ask for a passphrase that encrypts the private key")
    _add_passphrase_file(command)
    command.add_argument("--comment", default="", help="words after the public key, such as its owner's name")
    command.set_defaults(run=_keygen)


def _add_sign(commands: _Commands) -> None:
    command = commands.add_parser(
        "sign", help="sign a data set", description=_SIGN, epilog=_SIGN_EXAMPLES, formatter_class=_Form
    )
    command.add_argument("dataset", type=Path, metavar="DIR", help="the folder of the data set")
    command.add_argument("--key", type=Path, required=True, metavar="FILE", help="the private key")
    _add_passphrase_file(command)
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


def _add_passphrase_file(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--passphrase-file", type=Path, metavar="FILE", help="a file whose first line is the passphrase"
    )


def _keygen(options: argparse.Namespace) -> int:
    from .signing import commands

    passphrase = commands.read_passphrase(options.passphrase_file)
    if passphrase is None and options.passphrase:
        passphrase = commands.ask_new_passphrase()
    return commands.keygen(options.file, passphrase, options.comment)


def _sign(options: argparse.Namespace) -> int:
    from .signing import commands

    passphrase = commands.read_passphrase(options.passphrase_file)
    return commands.sign_set(options.dataset, options.key, passphrase, options.serial, writes=not options.dry_run)


def _verify(options: argparse.Namespace) -> int:
    from .signing import commands

    return commands.verify_set(
        options.dataset, options.signer, allows_appended=options.allow_appended, min_serial=options.min_serial
    )


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
