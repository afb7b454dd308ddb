"""Declarations that the manifest of every package must have."""

import re
import tomllib

import pytest
from devtools.repository import ROOT, find_packages
from packaging.requirements import Requirement

PACKAGES = find_packages(ROOT)
every_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)


@every_package
def test_all_packages_have_the_same_layout(package):
    expected = ["README.md", "CHANGELOG.md", "LICENSE", "tests/test_readme.py"]
    assert [path for path in expected if not (package.folder / path).exists()] == []
    assert (package.sources / "py.typed").exists()
    assert package.folder.name == package.name


@every_package
def test_all_packages_declare_the_same_license_and_python(package):
    project = package.manifest["project"]
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert "Typing :: Typed" in project["classifiers"]
    assert (package.folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


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
def test_a_package_is_in_the_development_environment_and_under_the_import_contracts(package):
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert package.name in {Requirement(text).name for text in root["dependency-groups"]["packages"]}
    assert package.sources.name in root["tool"]["importlinter"]["root_packages"]


ENGINE_PINS = {  # by the metadata of vLLM 0.26.0, and a resolution with SGLang 0.5.17
    "torch": ["2.11.0"],
    "apache-tvm-ffi": ["0.1.10", "0.1.11"],
    "filelock": ["4.3.1"],
    "msgspec": ["0.22.0"],
    "attrs": ["26.1.0"],
}
IN_ENGINES = {"fib-schema", "fib-compile", "fib-apply", "fib-tracer", "fib-integrations"}


def test_packages_can_be_installed_beside_engines():
    """Engines pin versions, and a package that excludes one of them cannot be installed with the engine."""
    packages = [package for package in PACKAGES if package.name in IN_ENGINES]
    assert len(packages) == len(IN_ENGINES)
    for package in packages:
        for requirement in map(Requirement, package.manifest["project"]["dependencies"]):
            for version in ENGINE_PINS.get(requirement.name, []):
                assert version in requirement.specifier, f"{package.name} excludes {requirement.name} {version}"


def listed_in_bundle(*files):
    """Names of the projects that a bundle brings, and of those that the machine has."""
    text = "\n".join((ROOT / "tools" / file).read_text() for file in files)
    lines = [line.partition("#")[0].strip() for line in text.splitlines() if not line.startswith("--requirement")]
    (present,) = re.findall("^# present: (.+)$", (ROOT / "tools/bundle.txt").read_text(), re.MULTILINE)
    return {Requirement(line).name.lower() for line in lines if line} | set(present.split())


def test_the_bundle_has_every_dependency_that_a_gpu_machine_lacks():
    available = listed_in_bundle("bundle.txt", "bundle-serve.txt")
    assert "--requirement bundle-serve.txt" in (ROOT / "tools/bundle.txt").read_text().splitlines()
    for package in PACKAGES:
        project = package.manifest["project"]
        needed = {Requirement(text).name.lower() for text in (*project["dependencies"], *package.test_requirements)}
        assert needed <= available | {other.name for other in PACKAGES}, package.name


@pytest.mark.parametrize("names", [["low"], ["fib-low", "top"]])
def test_the_prefix_of_a_package_name_may_be_left_out(repository, names):
    assert [package.name for package in find_packages(repository.root, names)] == [
        name if name.startswith("fib-") else f"fib-{name}" for name in names
    ]


def test_an_unknown_package_is_named_with_those_that_exist(repository):
    with pytest.raises(ValueError, match="unknown packages fib-high; there are fib-low, fib-other, fib-top"):
        find_packages(repository.root, ["low", "high"])


@pytest.mark.parametrize(("version", "lowest"), [("0.1", True), ("0.1.0", True), ("0.1.1", False)])
def test_a_sibling_here_is_the_lowest_if_its_version_is_the_one_declared(repository, version, lowest):
    repository.write_package("fib-low", version=version)
    low, other, top = find_packages(repository.root)
    assert low.is_lowest_for(top) is lowest
    assert low.is_lowest_for(other)
