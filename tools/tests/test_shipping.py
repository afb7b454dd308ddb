"""Releases from the tag to the files, with git, towncrier and the build back end that development uses."""

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from workshop import wheels
from workshop.archives import sdist_objections, wheel_objections
from workshop.checkout import Checkout
from workshop.environment import Environment
from workshop.errors import Usage
from workshop.history import tracked_files
from workshop.process import Console
from workshop.shipping import artifacts, release
from workshop.workbench import Workbench

FOLDER = "packages/fib-ship"
MANIFEST = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"
[project]
name = "fib-ship"
version = "0.1.0"
description = "A package to release"
readme = "README.md"
requires-python = ">=3.11"
license = "Apache-2.0"
dependencies = ["fib-low[Fast_one]>=0.1,<0.2", "attrs>=23.2"]
[project.optional-dependencies]
extra = ["numpy>=1.26"]
[tool.hatch.build.targets.wheel]
packages = ["src/fib_ship"]
[tool.hatch.build.targets.sdist]
include = ["src", "tests", "CHANGELOG.md"]
"""
FILES = {
    "pyproject.toml": MANIFEST,
    "README.md": "# fib-ship\n",
    "LICENSE": "a licence\n",
    "CHANGELOG.md": "# Changelog of fib-ship\n\n<!-- towncrier release notes start -->\n",
    "changes/7.added.md": "The first thing.\n",
    "src/fib_ship/__init__.py": "",
    "src/fib_ship/data/table.json": "{}",
    "src/fib_ship/py.typed": "",
    "tests/test_a.py": "",
}


@pytest.fixture
def history(history, repository, monkeypatch):
    """A repository with `fib-ship` in it, in which the tools of this one's development environment are used."""
    hatch = Environment(repository.work / "hatch")
    if not Path(hatch.python).exists():
        pytest.skip("no build back end: `python tools/dev.py setup` installs it")
    monkeypatch.setattr(wheels, "prepare_hatch", lambda *_: hatch)
    monkeypatch.setattr(Workbench, "environment", lambda _: Environment(Path(sys.prefix)))
    for path, text in FILES.items():
        history.write(f"{FOLDER}/{path}", text)
    history.write(".gitignore", "/dist/\n/.dev/\n")
    shutil.copy(repository.root / "tools/towncrier.toml", history.root / "tools")
    history.commit()
    return history


def workbench(history):
    return Workbench(Checkout(history.root), Console())


def run(history, verb, *arguments):
    return verb(workbench(history), list(arguments))


def test_a_dry_run_shows_everything_builds_and_changes_nothing(history, capfd):
    assert run(history, release, "ship", "--dry-run") == 0
    shown = capfd.readouterr().out
    assert "fib-ship 0.1.0, tag fib-ship-v0.1.0, its first release" in shown
    assert "- The first thing. (#7)" in shown
    assert "nothing is in the way" in shown
    built = {path.name for path in (history.root / "dist/fib-ship-v0.1.0").iterdir()}
    assert built == {"fib_ship-0.1.0.tar.gz", "fib_ship-0.1.0-py3-none-any.whl"}
    assert history.git("status", "--porcelain") == ""


def test_a_release_folds_the_changelog_and_says_which_tag_comes_next(history, capfd):
    assert run(history, release, "ship") == 0
    assert "git tag fib-ship-v0.1.0 && git push origin fib-ship-v0.1.0" in capfd.readouterr().out
    folder = history.root / FOLDER
    assert "## 0.1.0 (" in (folder / "CHANGELOG.md").read_text()
    assert not list((folder / "changes").glob("*.md"))


def test_with_something_in_the_way_nothing_is_folded(history, capfd):
    history.git("tag", "fib-ship-v0.1.0")
    assert run(history, release, "ship") == 1
    assert "in the way: 0.1.0 is released already" in capfd.readouterr().out
    assert history.git("status", "--porcelain") == ""


def test_what_was_folded_committed_and_tagged_is_built_from_the_tag(history, tmp_path):
    run(history, release, "ship")
    history.commit()
    history.git("tag", "fib-ship-v0.1.0")
    shutil.rmtree(history.root / "dist")
    outputs = tmp_path / "outputs"
    assert run(history, artifacts, "fib-ship-v0.1.0", "--output", str(outputs)) == 0
    assert outputs.read_text() == "package=fib-ship\n"
    with tarfile.open(history.root / "dist/fib-ship-v0.1.0/fib_ship-0.1.0.tar.gz") as archive:
        changelog = archive.extractfile("fib_ship-0.1.0/CHANGELOG.md").read().decode()
    assert "The first thing" in changelog


def test_a_tag_whose_changelog_was_forgotten_builds_nothing(history, tmp_path, capfd):
    history.git("tag", "fib-ship-v0.1.0")
    assert run(history, artifacts, "fib-ship-v0.1.0", "--output", str(tmp_path / "outputs")) == 1
    assert "in the way: CHANGELOG.md does not hold all of 0.1.0" in capfd.readouterr().out
    assert not (history.root / "dist").exists()
    assert not (tmp_path / "outputs").exists()


def test_a_tag_of_another_version_is_refused(history):
    with pytest.raises(Usage, match=r"the tag says fib-ship '0\.2\.0'"):
        run(history, artifacts, "fib-ship-v0.2.0")


@pytest.mark.parametrize(
    ("settings", "objections"),
    [
        ('exclude = ["*.json"]', ["lacks fib_ship/data/table.json, which git tracks"]),
        ('force-include = { "README.md" = "stray.md" }', ["has stray.md, which git does not track"]),
    ],
)
def test_a_wheel_with_other_files_than_git_tracks_is_in_the_way(history, capfd, settings, objections):
    path = "[tool.hatch.build.targets.wheel]\n"
    history.write(f"{FOLDER}/pyproject.toml", MANIFEST.replace(path, f"{path}{settings}\n"))
    assert run(history, release, "ship", "--dry-run") == 1
    shown = capfd.readouterr().out
    assert all(f"in the way: fib_ship-0.1.0-py3-none-any.whl {objection}" in shown for objection in objections)


def test_a_file_that_git_does_not_track_does_not_slip_into_a_release(history, capfd):
    history.write(f"{FOLDER}/src/fib_ship/scratch.py")
    assert run(history, release, "ship", "--dry-run") == 1
    shown = capfd.readouterr().out
    assert "fib_ship-0.1.0.tar.gz has src/fib_ship/scratch.py, which git does not track" in shown
    assert "fib_ship-0.1.0-py3-none-any.whl has fib_ship/scratch.py, which git does not track" in shown


@pytest.fixture
def built(history):
    """The package, its two files, and what git tracks of it."""
    run(history, release, "ship", "--dry-run")
    (package,) = Checkout(history.root).named(["ship"])
    folder = history.root / "dist" / package.tag
    return package, folder, tracked_files(package.folder)


@pytest.mark.parametrize(
    ("old", "new", "objection"),
    [
        ('description = "A package', 'description = "The package', "says Summary: A package to release"),
        ("attrs>=23.2", "attrs>=24", "requires attrs>=23.2, fib-low[fast-one]>=0.1,<0.2, and the manifest attrs>=24"),
        ('extra = ["numpy', 'other = ["numpy', "offers the extras extra, and the manifest other"),
        (">=3.11", ">=3.12", "says Requires-Python: >=3.11, and the manifest >=3.12"),
    ],
)
def test_metadata_that_differ_from_the_manifest_are_found_in_both_files(history, built, old, new, objection):
    _, folder, tracked = built
    history.write(f"{FOLDER}/pyproject.toml", MANIFEST.replace(old, new))
    (package,) = Checkout(history.root).named(["ship"])
    (in_wheel,) = wheel_objections(package, folder / package.wheel_name, tracked)
    (in_sdist,) = sdist_objections(package, folder / package.sdist_name, tracked)
    assert objection in in_wheel
    assert objection in in_sdist


def test_files_that_are_no_distribution_of_the_package_are_found(built, tmp_path):
    package, _, tracked = built
    wheel, sdist = tmp_path / package.wheel_name, tmp_path / package.sdist_name
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("fib_ship/__init__.py", "")
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(__file__, "elsewhere/a.py")
    assert wheel_objections(package, wheel, tracked) == [
        f"{package.wheel_name} lacks fib_ship-0.1.0.dist-info/{name}" for name in ("METADATA", "licenses/LICENSE")
    ]
    assert sdist_objections(package, sdist, tracked) == [
        f"{package.sdist_name} lacks fib_ship-0.1.0/PKG-INFO",
        f"{package.sdist_name} has elsewhere/a.py, which is beside the folder fib_ship-0.1.0",
    ]
