import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evidence import claim_problem

SCRIPT = Path(__file__).parents[1] / "evidence.py"
SECTIONS = """
[short]
seconds = 1
command = "python -c 'import pathlib; print(41 + 1); pathlib.Path(\\"{out}/table.md\\").write_text(\\"a table\\")'"

[failing]
seconds = 1
command = "python -c 'raise SystemExit(1)'"

[broken]
seconds = 1
command = "python -c 'raise SystemExit(7)'"

[long]
seconds = 1000
command = "python -c 'print(\\"{device}\\")'"

[two]
seconds = 1
needs = 2
command = "python -c ''"
"""


@pytest.fixture
def evidence(tmp_path):
    (tmp_path / "sections.toml").write_text(SECTIONS)

    def call(command, *words):
        line = [sys.executable, str(SCRIPT), "--sections", str(tmp_path / "sections.toml"), command]
        return subprocess.run(
            [*line, str(tmp_path / "evidence.jsonl"), *words], capture_output=True, text=True, check=False
        )

    return call


def test_sittings_add_up_to_one_page(evidence, tmp_path):
    first = evidence("run", "--seconds", "500")
    assert first.returncode == 3, first.stderr
    assert first.stdout.splitlines()[-1] == "left: broken, long, two"
    second = evidence("run", "--set", "device=cpu", "dataset=none")
    assert second.stdout.splitlines()[-1] == "left: broken, two"
    assert "short" not in second.stdout
    assert evidence("left").stdout.split() == ["broken", "two"]
    page = evidence("page").stdout
    assert "a table" in page
    assert "3 of 5 sections" in page
    assert "| failing | with failures |" in page
    records = [json.loads(line) for line in (tmp_path / "evidence.jsonl").read_text().splitlines()]
    assert [record["section"] for record in records] == ["short", "failing", "broken", "broken", "long"]
    assert records[0]["printed"] == "42\n"


def test_results_of_other_sources_do_not_count(evidence, tmp_path):
    assert evidence("run", "--only", "short").returncode == 0
    file = tmp_path / "evidence.jsonl"
    record = json.loads(file.read_text())
    record["key"]["sources"] = "other"
    file.write_text(json.dumps(record) + '\n{"section": "sho')  # and a line of a sitting that was killed
    again = evidence("run", "--only", "short")
    assert "short: finished" in again.stdout
    assert "left out a line that is no JSON" in again.stderr
    assert len(file.read_text().splitlines()) == 3
    assert json.loads(file.read_text().splitlines()[-1])["section"] == "short"


def test_words_that_name_nothing_are_refused(evidence):
    unknown = evidence("run", "--only", "shrot")
    assert (unknown.returncode, "no section has 'shrot' in its name" in unknown.stderr) == (1, True)
    wrong = evidence("run", "--set", "device")
    assert (wrong.returncode, "'device' is not NAME=VALUE" in wrong.stderr) == (2, True)


def test_a_sitting_that_is_killed_loses_the_section_that_runs(evidence, tmp_path):
    text = SECTIONS.replace('print(\\"{device}\\")', "import time; time.sleep(600)")
    (tmp_path / "sections.toml").write_text(text)
    line = [sys.executable, str(SCRIPT), "--sections", str(tmp_path / "sections.toml"), "run"]
    with subprocess.Popen([*line, str(tmp_path / "evidence.jsonl"), "--only", "short", "long"], stdout=-1) as process:
        while not process.stdout.readline().startswith(b"long"):
            time.sleep(0)
        process.kill()
    assert evidence("left").stdout.split() == ["failing", "broken", "long", "two"]


@pytest.mark.parametrize(
    ("before", "words", "problem"),
    [
        ("median **0.9996**", "all", ""),
        ("within 83.3 %", "all", ""),
        ("198 of 228", "long", "198 of 228 is in no line of same with 'long': | long | 199 of 228 |"),
        ("median 0.999", "all", "0.999 is in no line of same"),
        ("median 0.9996", "long", "0.9996 is in no line of same with 'long'"),
        ("nearly all", "all", "no number stands before the claim of same"),
    ],
)
def test_a_claim_has_a_result_with_its_number(before, words, problem):
    result = {"printed": "", "files": {"same.md": "| all | 0.9996 | 83.3% |\n| long | 199 of 228 |\n"}}
    found = claim_problem({"same": result}, before, "same", words)
    assert found.startswith(problem) if problem else found == ""
    assert claim_problem({"same": result}, before, "cupti", words).startswith("no ")


def test_the_claims_of_the_repository_have_results():
    files = map(str, (SCRIPT.parents[1] / "docs/measured").glob("*.jsonl"))
    done = subprocess.run([sys.executable, str(SCRIPT), "claims", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
