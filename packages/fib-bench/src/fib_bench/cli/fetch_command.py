"""Command ``fib-bench fetch``: data sets of a hub."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import attrs
from fib_schema.display import counted
from rich.console import Console

from .. import hub
from .help_pages import add_help
from .printing import output_console, print_json, safe_text


def add_fetch(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``fetch``."""
    add_help(parser, "fetch")
    parser.add_argument("name", metavar="NAME", help=f"{', '.join(hub.DATA_SETS)}, or a repository OWNER/NAME")
    parser.add_argument("dir", metavar="DIR", nargs="?", type=Path, help="the data set (default: NAME without OWNER)")
    parser.add_argument("--op-types", nargs="+", metavar="NAME", default=[], help="only these op_types")
    parser.add_argument("--definitions", nargs="+", metavar="NAME", default=[], help="only these definitions")
    parser.add_argument("--no-blobs", dest="blobs", action="store_false", help="no stored tensors")
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit (default: the newest)")
    parser.add_argument("--endpoint", metavar="URL", help="the address of the hub (default: that of huggingface_hub)")
    parser.add_argument("--json", action="store_true", help="print what was fetched as JSON")
    parser.set_defaults(command=_fetch)


def _fetch(arguments: argparse.Namespace, errors: Console) -> int:
    del errors
    folder: Path = arguments.dir or Path(arguments.name.rpartition("/")[2] or arguments.name)
    selection = hub.Selection(
        op_types=tuple(arguments.op_types), definitions=tuple(arguments.definitions), blobs=arguments.blobs
    )
    fetched = hub.fetch(
        arguments.name, folder, revision=arguments.revision, endpoint=arguments.endpoint, selection=selection
    )
    following = f"fib-bench validate {shlex.quote(str(folder))}"
    if arguments.json:
        print_json(attrs.asdict(fetched) | {"next": following})
        return 0
    console = output_console()
    text = f"{fetched.repository} at {fetched.revision[:12]}: {counted(fetched.files, 'file')} in {folder}"
    console.print(safe_text(text, "green"), soft_wrap=True)
    console.print(safe_text(f"next: {following}"), soft_wrap=True)
    return 0
