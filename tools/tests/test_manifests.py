"""What every package's manifest has to say; a package that comes to life is checked from its first day."""

import re
from pathlib import Path

import pytest
from workshop.checkout import Checkout

ROOT = Checkout(Path(__file__).parents[2])
FRAGMENT = re.compile(r"(\d+|\+[a-z0-9-]+)\.(breaking|added|changed|fixed)(\.\d+)?\.md")
every_package = pytest.mark.parametrize("package", ROOT.packages, ids=lambda package: package.name)


def import_name(package):
    """That of the distribution, except of fib-compat, which offers another's."""
    return "flashinfer_bench" if package.name == "fib-compat" else package.name.replace("-", "_")


@every_package
def test_a_package_is_laid_out_like_its_siblings(package):
    expected = ["README.md", "CHANGELOG.md", "LICENSE", "changes", "tests", f"src/{import_name(package)}/py.typed"]
    assert [path for path in expected if not (package.folder / path).exists()] == []
    assert package.folder.name == package.name


@every_package
def test_a_package_declares_the_same_ground_as_its_siblings(package):
    project = package.manifest["project"]
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert "Typing :: Typed" in project["classifiers"]
    assert (package.folder / "LICENSE").read_text() == (ROOT.root / "LICENSE").read_text()


@every_package
def test_every_dependency_has_a_lower_bound_and_a_reason_beside_it(package):
    project = package.manifest["project"]
    groups = [project["dependencies"], *project.get("optional-dependencies", {}).values(), package.test_requirements]
    lines = (package.folder / "pyproject.toml").read_text().splitlines()
    for requirement in (requirement for group in groups for requirement in group):
        assert ">=" in requirement, requirement
        (line, *_) = [line for line in lines if f'"{requirement}"' in line]
        assert re.search(r",\s+# \S", line), f"no reason beside {requirement}"


@every_package
def test_a_package_is_in_the_environment_and_under_the_import_contracts(package):
    hatch = ROOT.manifest["tool"]["hatch"]["envs"]["default"]
    members = {member["path"] for member in hatch["workspace"]["members"]}
    assert f"packages/{package.name}" in members
    assert import_name(package) in ROOT.manifest["tool"]["importlinter"]["root_packages"]


@every_package
def test_changelog_fragments_have_names_that_the_changelog_understands(package):
    names = [path.name for path in (package.folder / "changes").iterdir() if path.name != ".gitignore"]
    assert [name for name in names if not FRAGMENT.fullmatch(name)] == []


def test_torch_is_pinned_to_one_version_for_development():
    assert re.search(r"^torch==[\d.]+$", ROOT.constraints.read_text(), re.MULTILINE)
