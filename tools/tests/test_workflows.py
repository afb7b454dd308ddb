"""Rules for the workflows: commands that also run here, least permissions, pinned actions."""

import re

import pytest
import yaml
from devtools.repository import ROOT, find_packages

PACKAGES = find_packages(ROOT)
SESSIONS = set(re.findall(r"^@nox\.session.*\ndef (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
WORKFLOWS = {path.name: path for path in sorted((ROOT / ".github/workflows").iterdir())}
RUN = re.compile(r"python tools/dev\.py (?P<command>[a-z]+)[^;&|<>`()\n]*")
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
every_workflow = pytest.mark.parametrize("name", WORKFLOWS)


def load(name):
    return yaml.safe_load(WORKFLOWS[name].read_text())


def jobs(name):
    return load(name)["jobs"].items()


def steps(name):
    return [step for _, job in jobs(name) for step in job["steps"]]


def runs(name):
    return [step["run"] for step in steps(name) if "run" in step]


def needed(job):
    needs = job.get("needs", [])
    return {needs} if isinstance(needs, str) else set(needs)


@every_workflow
def test_jobs_have_no_permission_but_to_read_and_one_to_publish(name):
    assert load(name)["permissions"] == {}
    special = {"publish": {"id-token": "write"}, "gate": {}}
    for job_name, job in jobs(name):
        assert job["permissions"] == special.get(job_name, {"contents": "read"}), job_name


@every_workflow
def test_actions_are_pinned_by_hash_with_the_version_beside_it(name):
    uses = [line for line in WORKFLOWS[name].read_text().splitlines() if "uses:" in line]
    assert len(uses) == sum("uses" in step for step in steps(name))
    for line in uses:
        assert re.fullmatch(rf"\s*- uses: {PINNED.pattern} # v\d+\.\d+\.\d+", line), line


@every_workflow
def test_every_step_runs_one_command_that_exists(name):
    for command in runs(name):
        found = RUN.fullmatch(command)
        assert command == "exit 1" or found["command"] in SESSIONS, command


@every_workflow
def test_no_value_from_outside_is_pasted_into_a_command(name):
    assert not [command for command in runs(name) if "${{" in command]


@every_workflow
def test_variables_of_a_command_are_set_by_its_step_or_by_the_runner(name):
    for step in steps(name):
        used = set(re.findall(r"\$(\w+)", step.get("run", "")))
        assert used == set(step.get("env", {})), step


@every_workflow
def test_jobs_end_in_time_and_keep_no_credentials(name):
    assert all(0 < job["timeout-minutes"] <= 60 for _, job in jobs(name))
    checkouts = [step for step in steps(name) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@every_workflow
def test_the_pythons_are_the_oldest_and_the_newest_that_every_package_promises(name):
    matrices = [job["strategy"]["matrix"] for _, job in jobs(name) if "strategy" in job]
    tested = {tuple(matrix["python-version"]) for matrix in matrices if "python-version" in matrix}
    assert tested == {promised_pythons(package) for package in PACKAGES}


def promised_pythons(package):
    classifiers = package.manifest["project"]["classifiers"]
    versions = [text.rpartition(" ")[2] for text in classifiers if re.search(r":: 3\.\d+$", text)]
    ordered = sorted(versions, key=lambda version: int(version.partition(".")[2]))
    return ordered[0], ordered[-1]


def test_the_gate_needs_every_other_job_and_runs_whatever_became_of_them():
    found = dict(jobs("ci.yml"))
    gate = found.pop("gate")
    assert needed(gate) == set(found)
    assert gate["if"] == "always()"
    (step,) = gate["steps"]
    assert step["run"] == "exit 1"
    for result in ("failure", "cancelled", "skipped"):
        assert f"contains(needs.*.result, '{result}')" in step["if"]


def test_what_is_published_was_built_and_tested_in_other_jobs():
    found = dict(jobs("release.yml"))
    assert needed(found["publish"]) == {"build", "test"}
    assert needed(found["test"]) == {"build"}
    assert found["publish"]["environment"] == "release"
    actions = [step.get("uses", "").partition("@")[0] for step in found["publish"]["steps"]]
    assert actions == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
