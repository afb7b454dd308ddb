"""Command line of ``fib-schema``: parser and entry point. Commands import what they need when they run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .command import CommandParser, run_command
from .errors import DataSetNotFound

_DESCRIPTION = "Sign data sets and verify their signatures."

_SIGN = """\
Sign all files below definitions, solutions, workloads, traces and blob, hidden ones excepted, with ssh-keygen, which
asks for a passphrase. The list and its signature are written to DIR/signatures. Read first how the files differ from
those that were signed last (fib-schema verify): engines that require the signature execute solutions of this list.
Make a key with 'ssh-keygen -t ed25519 -f FILE'. Exit codes: 0, 2 on errors."""

_VERIFY = """\
Compare every file with the signed list. Prints each file that is changed, missing, grown (lines were appended
after the signed part) or added, then a summary. Of several signers, one must have signed the set. Exit codes:
0 if all files are as signed; 1 if some are not; 2 if there is no valid signature, or the command is invalid."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""

    def run() -> int:
        options = _parser().parse_args(arguments)
        if not options.dataset.is_dir():
            raise DataSetNotFound(str(options.dataset))
        return _sign(options) if options.command == "sign" else _verify(options)

    return run_command("fib-schema", run)


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = CommandParser(prog="fib-schema", description=_DESCRIPTION, formatter_class=form)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    signing = commands.add_parser("sign", help="sign a data set", description=_SIGN, formatter_class=form)
    text = "compare a data set with its signature"
    verifying = commands.add_parser("verify", help=text, description=_VERIFY, formatter_class=form)
    for command in (signing, verifying):
        command.add_argument("dataset", type=Path, metavar="DIR", help="the folder of the data set")
    text = "the private key, or the public one of an agent"
    signing.add_argument("--key", type=Path, required=True, metavar="FILE", help=text)
    text = "a file with public keys, or the text of one; may be repeated"
    verifying.add_argument("--signer", action="append", required=True, metavar="KEY", help=text)
    return parser


def _sign(options: argparse.Namespace) -> int:
    from .display import counted
    from .signing import sign

    done = sign(options.dataset, options.key)
    print(f"signed: {counted(len(done.files), 'file')}, by {done.signer.fingerprint}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from .signing import read_public_keys, verify

    found = verify(options.dataset, [key for given in options.signer for key in read_public_keys(given)])
    for report in found.differences:
        print(report)
    print(found.summary)
    return 1 if found.differences else 0
