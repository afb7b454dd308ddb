#!/usr/bin/env python3
"""Evidence: the sections of `evidence.toml`, run on a device in as many sittings as it takes.

Every claim about speed or verdicts rests on a section. A sitting runs those that are left and fit into its time. Each
section that has ended is a line of ``evidence.jsonl``, written when it ends: a sitting that is killed loses at most the
section that runs, and the file is all that the next sitting needs. Results count together if the sources, the device,
its driver and the versions of torch, Triton and CUDA are the same; others stay in the file and are left out.

usage: python tools/evidence.py run FILE [--seconds N] [--only WORD ...] [--again] [--set NAME=VALUE ...]
       python tools/evidence.py left FILE
       python tools/evidence.py page FILE
       python tools/evidence.py claims FILE ...

In Markdown, ``262 of 277<!-- result same: all -->`` claims that the newest result of the section *same* has a line with
the word *all* and that number. `claims` finds those of the repository that no result has.

`run` needs an environment in which the packages are installed. `--set` gives values to names in commands, such as
``dataset``, ``device`` and ``others``. The exit code of `run` and `left` is 0 if nothing is left, and 3 otherwise.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ("packages/*/src", "packages/*/benchmarks", "packages/fib-bench/selftest", "tests-integration")
"""Folders whose files decide what a result is of; measured pages and texts do not."""
SUFFIXES = {".py", ".h", ".cu", ".cpp", ".cuh", ".toml", ".sh"}
TAIL_CHARS = 20_000
FILE_CHARS = 2_000_000
GRACE_SECONDS = 15.0
LEFT = 3
CLAIM = re.compile(r"<!-- result ([a-z-]+): (.+?) -->")
NUMBER = re.compile(r"[0-9][0-9,.]*(?: ?%|x| of [0-9][0-9,]*)?$")
Record = dict[str, Any]


def sections_of(path: Path) -> dict[str, Record]:
    """The sections by name: ``command``, expected ``seconds``, and ``needs``, the devices that it takes."""
    return tomllib.loads(path.read_text("utf-8"))


def content_of(root: Path) -> str:
    """A hash of the sources that are measured."""
    digest = hashlib.sha256()
    folders = [folder for pattern in MEASURED for folder in root.glob(pattern)]
    for file in sorted({file for folder in folders for file in folder.rglob("*") if file.suffix in SUFFIXES}):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def machine() -> dict[str, str]:
    """The device, its driver, and the versions that latencies depend on."""
    script = (
        "import json, torch\n"
        "try:\n    import triton\n    version = triton.__version__\nexcept ImportError:\n    version = 'none'\n"
        "name = torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu'\n"
        "count = torch.cuda.device_count() if torch.cuda.is_available() else 0\n"
        "print(json.dumps({'device': name, 'count': str(count), 'torch': torch.__version__, 'triton': version,"
        " 'cuda': str(torch.version.cuda)}))"
    )
    found: dict[str, str] = json.loads(subprocess.run([sys.executable, "-c", script], stdout=-1, check=True).stdout)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        driver = subprocess.run(query, stdout=-1, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        driver = "none"
    return {**found, "driver": driver}


def read(path: Path) -> Iterator[Record]:
    """The results in a file; a line that a killed sitting did not finish is left out."""
    if not path.exists():
        return
    for line in path.read_text("utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            print(f"{path}: left out a line that is no JSON: {line[:60]}", file=sys.stderr)


def results(records: Sequence[Record], key: Mapping[str, str]) -> dict[str, Record]:
    """The newest finished result of each section among those of the same sources and the same machine."""
    same = {name: value for name, value in key.items() if name != "count"}
    return {
        record["section"]: record
        for record in records
        if record["is_finished"] and same.items() <= record["key"].items()
    }


def append(path: Path, record: Record) -> None:
    """Append a result and wait until it is on disk."""
    with path.open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # of a sitting that was killed
                file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def run_section(name: str, section: Record, values: Mapping[str, str], limit: float) -> Record:
    """Run a section's command, at most for a time, and take what it printed and wrote."""
    with tempfile.TemporaryDirectory(prefix="fib-evidence-") as folder:
        words = [word.format_map({**values, "out": folder}) for word in shlex.split(section["command"])]
        line = [sys.executable if word == "python" else word for word in words]
        begin, log = time.monotonic(), Path(folder) / "printed.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                line,
                cwd=ROOT,
                stdout=output,
                stderr=-2,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 this script has no other thread
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                stop(process)
        text = log.read_text("utf-8", "replace")
        log.unlink()
        files = {
            str(file.relative_to(folder)): file.read_text("utf-8", "replace")
            for file in sorted(Path(folder).rglob("*"))
            if file.suffix in {".md", ".json", ".txt", ".csv"} and file.stat().st_size <= FILE_CHARS
        }
    return {
        "section": name,
        "command": section["command"],
        "is_finished": code in section.get("codes", [0, 1]),
        "code": code,
        "seconds": round(time.monotonic() - begin, 1),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "printed": text[-TAIL_CHARS:],
        "files": files,
    }


def end_with_parent() -> None:
    """Have the kernel end this process when the sitting is killed."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a command and all processes of its session: first asked, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def run(arguments: argparse.Namespace) -> int:
    """A sitting: run the sections that are left and fit, the first ones first."""
    end = time.monotonic() + arguments.seconds
    key, sections = {"sources": content_of(ROOT), **machine()}, sections_of(arguments.sections)
    if unknown := [word for word in arguments.only or () if not any(word in name for name in sections)]:
        sys.exit(f"no section has {unknown[0]!r} in its name; the sections are {', '.join(sections)}")
    values = {"device": "cuda:0", "dataset": "data", "others": "others", **dict(arguments.set)}
    done = {} if arguments.again else results(list(read(arguments.file)), key)
    left = []
    for name, section in sections.items():
        if name in done or (arguments.only and not any(word in name for word in arguments.only)):
            continue
        rest = end - time.monotonic()
        if section["seconds"] > rest or section.get("needs", 1) > max(int(key["count"]), 1):
            left.append(name)
            continue
        print(f"{name}: about {section['seconds']} s, {rest:.0f} s are left", flush=True)
        record = {"key": key, **run_section(name, section, values, min(rest, 3.0 * section["seconds"]))}
        append(arguments.file, record)
        state = "finished" if record["is_finished"] else "did not end"
        print(f"{name}: {state} with {record['code']} after {record['seconds']} s", flush=True)
        print("\n".join(record["printed"].splitlines()[-arguments.lines :]), flush=True)
        if not record["is_finished"]:
            left.append(name)
    print(f"left: {', '.join(left) or 'nothing'}", flush=True)
    return LEFT if left else 0


def newest_key(records: Sequence[Record]) -> dict[str, str]:
    """The sources and the machine of the newest result."""
    if not records:
        sys.exit("the file has no results: start with `run`")
    key: dict[str, str] = records[-1]["key"]
    return key


def left(arguments: argparse.Namespace) -> int:
    """Print the sections that have no result of the newest sources and machine."""
    records = list(read(arguments.file))
    done = results(records, newest_key(records))
    names = [name for name in sections_of(arguments.sections) if name not in done]
    print("\n".join(names))
    return LEFT if names else 0


def page(arguments: argparse.Namespace) -> int:
    """Print one page: the state of each section, and the tables that the sections wrote."""
    records = list(read(arguments.file))
    key, sections = newest_key(records), sections_of(arguments.sections)
    done = results(records, key)
    print("# Evidence\n\n" + ", ".join(f"{name} {value}" for name, value in key.items()) + ".\n")
    print("| section | state | seconds | ended |\n| --- | --- | --- | --- |")
    for name in sections:
        record = done.get(name)
        state = "left" if record is None else "as expected" if record["code"] == 0 else "with failures"
        print(f"| {name} | {state} | {record['seconds'] if record else ''} | {record['ended'] if record else ''} |")
    print(
        f"\n{len(done)} of {len(sections)} sections, {sum(one['seconds'] for one in done.values()) / 60:.0f} minutes."
    )
    for name in sections:
        if name in done:
            print(f"\n## {name}\n\n`{done[name]['command']}`\n")
            texts = [text.strip() for file, text in done[name]["files"].items() if file.endswith(".md")]
            print("\n\n".join(texts) or "```\n" + "\n".join(done[name]["printed"].splitlines()[-8:]) + "\n```")
    return 0


def claims(arguments: argparse.Namespace) -> int:
    """Print the claims in the repository's Markdown that no result has. A result counts whatever its sources are."""
    newest = {record["section"]: record for file in arguments.file for record in read(file) if record["is_finished"]}
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, stdout=-1, check=True, text=True).stdout.split()
    found, wrong = 0, 0
    for name in listed:
        for place, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1):
            for claim in CLAIM.finditer(line):
                problem = claim_problem(newest, line[: claim.start()], *claim.groups())
                found, wrong = found + 1, wrong + bool(problem)
                print(f"{name}:{place}: {problem}\n" if problem else "", end="")
    print(f"{found - wrong} of {found} claims have a result")
    return int(wrong > 0)


def claim_problem(newest: Mapping[str, Record], before: str, section: str, words: str) -> str:
    """The reason for which a claim is none of a result; empty if it is one."""
    if (number := NUMBER.search(before.rstrip("*` "))) is None:
        return f"no number stands before the claim of {section}: {before[-40:]!r}"
    if (record := newest.get(section)) is None:
        return f"no finished result of {section}; the file has {', '.join(sorted(newest))}"
    texts = [record["printed"], *(text for file, text in record["files"].items() if file.endswith(".md"))]
    lines = [line for text in texts for line in text.splitlines() if words in line]
    wanted = re.compile(rf"(?<![0-9.,]){re.escape(number[0].replace(' %', '%'))}(?![0-9]|[.,][0-9])")
    if any(wanted.search(line.replace(" %", "%")) for line in lines):
        return ""
    return f"{number[0]} is in no line of {section} with {words!r}: {' / '.join(lines)[:200] or 'there is none'}"


def pair(text: str) -> tuple[str, str]:
    """The name and the value of an option ``--set``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", type=Path, default=ROOT / "tools/evidence.toml", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(required=True)
    for command in (run, left, page, claims):
        one = commands.add_parser(command.__name__, help=(command.__doc__ or "").partition(".")[0])
        one.add_argument("file", type=Path, metavar="FILE", nargs="+" if command is claims else None)
        one.set_defaults(call=command)
        if command is run:
            one.add_argument("--seconds", type=float, default=float("inf"), help="time of this sitting")
            one.add_argument("--only", nargs="+", metavar="WORD", help="parts of names of sections")
            one.add_argument("--again", action="store_true", help="also what is finished")
            one.add_argument("--set", nargs="+", type=pair, default=[], metavar="NAME=VALUE", help="names in commands")
            one.add_argument("--lines", type=int, default=3, help="last lines to print of each section")
    arguments = parser.parse_args()
    code: int = arguments.call(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
