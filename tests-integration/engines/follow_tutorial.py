"""Follows the last section of the tutorial on engines literally: its files, then its commands, one after another.

usage, where vLLM, a GPU and the commands of FIB are: follow_tutorial.py FOLDER DEFINITIONS

FOLDER is made anew, and gets the result, followed.json; DEFINITIONS is the folder of that name in the public data set.
Exit code 1 if a command fails, or if the engine that the tutorial ends with has routed nothing.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from arm_turns import write_whole

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "tutorials" / "put-the-winner-into-an-engine.md"
_HEADING = "## 5. vLLM, in ten lines"
_BLOCK = re.compile(r"^```\{code-block\} \w+\n:caption: (?P<name>\S+)\n\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = "winner.sh"


def files_of_section(page):
    """The files that the section shows, by name."""
    _, heading, section = page.partition(f"{_HEADING}\n")
    assert heading, f"there is no section {_HEADING!r}"
    return {match["name"]: match["text"] for match in _BLOCK.finditer(section.partition("\n## ")[0])}


def main(folder, definitions):
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in files_of_section(_PAGE.read_text("utf-8")).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "flashinfer-trace").symlink_to(definitions.parent.resolve())
    files = ("gqa_paged_decode_triton.py", "shared/kernels.py")  # a reader of the tutorial has one file
    own, shared = ((_ROOT / "tests-integration" / "solutions" / file).read_text("utf-8") for file in files)
    (folder / "paged_decode.py").write_text(re.sub(r"from \.shared\.kernels import .*", lambda _: shared, own))
    print(f"$ bash -ex {_COMMANDS}", flush=True)
    ended = subprocess.run(["bash", "-ex", _COMMANDS], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    print(ended.stdout)
    last = ended.stdout.rpartition("tokens/s")[2].strip()
    problems = [f"status {ended.returncode}"] if ended.returncode else []
    if not re.search(r"gqa_paged_decode\S*: [1-9]\d* calls routed", last):
        problems.append("the last engine has routed no decode")
    write_whole(folder / "followed.json", json.dumps({"value": last.replace("\n", "; "), "problems": problems}))
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
