"""Command ``fib-bench fetch``: data sets of a hub."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fib_schema.display import counted
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

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
    folder: Path = arguments.dir or Path(arguments.name.rpartition("/")[2] or arguments.name)
    selection = hub.Selection(
        op_types=tuple(arguments.op_types), definitions=tuple(arguments.definitions), blobs=arguments.blobs
    )
    with _progress(errors) as observe:
        fetched = hub.fetch(
            arguments.name,
            folder,
            revision=arguments.revision,
            endpoint=arguments.endpoint,
            selection=selection,
            observe=observe,
        )
    following = f"fib-bench validate {shlex.quote(str(folder))}"
    if arguments.json:
        print_json(_plain(fetched) | {"next": following})
        return 0
    console = output_console()
    size = f"{counted(fetched.files, 'file')}, {counted(fetched.size_bytes, 'byte')}"
    text = f"{fetched.repository} at {fetched.revision[:12]}: {size}"
    console.print(safe_text(f"{text} in {folder}; {fetched.downloaded_files} were missing", "green"), soft_wrap=True)
    console.print(safe_text(f"next: {following}"), soft_wrap=True)
    return 0


def _plain(fetched: hub.Fetched) -> dict[str, object]:
    return {
        "repository": fetched.repository,
        "revision": fetched.revision,
        "folder": str(fetched.folder),
        "files": fetched.files,
        "size_bytes": fetched.size_bytes,
        "downloaded_files": fetched.downloaded_files,
    }


@contextmanager
def _progress(errors: Console) -> Iterator[hub.Observer]:
    """A bar of bytes on a terminal; elsewhere nothing, because the result says it all."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("files")

        def observe(progress: hub.Progress) -> None:
            text = f"{progress.files} of {counted(progress.all_files, 'file')}"
            bar.update(task, description=text, completed=progress.size_bytes, total=progress.all_bytes)

        yield observe
