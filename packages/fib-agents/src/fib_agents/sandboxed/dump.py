"""Machine code of a solution, dumped inside the sandbox: the parsers of binaries get files that strangers have made.

Started with the path of a job and the paths of the programs as JSON. A solution of a compiled language is built; any
other is called once, so that its kernels are compiled. The texts go to files beside the job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import call

RESOURCES, CODE, PTX = "resources.txt", "code.txt", "ptx.txt"
MAX_BYTES = 8 << 20
"""Limit of each text; the rest is left out."""
_SECONDS = 60


def main() -> None:
    """Build and dump."""
    path, programs = Path(sys.argv[1]), json.loads(sys.argv[2])
    job = call.Job(**json.loads(path.read_bytes()))
    if not call.compile_solution(job):
        call.main()
    cache = Path(os.environ["FIB_CACHE_PATH"])
    libraries = sorted(cache.rglob("*.so"))
    cubins = sorted(cache.rglob("*.cubin"))
    texts: dict[str, list[str]] = {RESOURCES: [], CODE: [], PTX: []}
    for file in cubins or libraries:
        if "cuobjdump" in programs:
            texts[RESOURCES].append(_output([programs["cuobjdump"], "--dump-resource-usage", str(file)]))
        if file.suffix == ".cubin" and "nvdisasm" in programs:
            texts[CODE].append(_output([programs["nvdisasm"], str(file)]))
        elif "cuobjdump" in programs:
            texts[CODE].append(_output([programs["cuobjdump"], "--dump-sass", str(file)]))
            texts[PTX].append(_output([programs["cuobjdump"], "--dump-ptx", str(file)]))
        if "objdump" in programs:
            options = ["--disassemble", "--no-show-raw-insn", "--demangle", "-M", "intel", "--section=.text"]
            texts[CODE].append(_output([programs["objdump"], *options, str(file)]))
    texts[PTX] += [file.read_text("utf-8", "replace") for file in sorted(cache.rglob("*.ptx"))]
    for name, parts in texts.items():
        path.with_name(name).write_bytes("\n".join(parts).encode()[:MAX_BYTES])


def _output(command: list[str]) -> str:
    return "".join(_lines(command))


def _lines(command: list[str]) -> Iterator[str]:
    ended = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    yield ended.stdout[:MAX_BYTES].decode("utf-8", "replace")
    if ended.returncode:
        yield f"\n{command[0]}: exit status {ended.returncode}: {ended.stderr[:500].decode('utf-8', 'replace')}\n"


if __name__ == "__main__":
    main()
