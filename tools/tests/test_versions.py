"""Versions, ranges and platforms of the manifests, compared with CONTRIBUTING.md, section "Versions"."""

import ast
import collections
import itertools
import re
import subprocess
import sys

import pytest
from devtools.repository import ROOT, find_packages
from packaging.requirements import Requirement
from packaging.version import Version

PACKAGES = find_packages(ROOT)
every_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)


@every_package
def test_a_package_states_its_platforms_and_addresses(package):
    project = package.manifest["project"]
    systems = {name for name in project["classifiers"] if name.startswith("Operating System")}
    assert systems == {f"Operating System :: {'POSIX' if package.name == 'fib-schema' else 'POSIX :: Linux'}"}
    minors = [name.rpartition("3.")[2] for name in project["classifiers"] if "Python :: 3." in name]
    assert minors == ["11", "12", "13", "14"]
    assert project["authors"] == [{"name": "The FIB contributors"}]
    assert project["keywords"] == sorted(project["keywords"])
    assert set(project["urls"]) == {"Source", "Documentation", "Changelog", "Issues", "Security"}


@every_package
def test_a_package_for_linux_refuses_to_be_imported_elsewhere(package):
    code = f"import sys\nsys.platform = 'darwin'\nimport {package.sources.name}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "Operating System :: POSIX" in package.manifest["project"]["classifiers"]:
        assert done.returncode == 0, done.stderr
    else:
        assert done.stderr.splitlines()[-1].startswith(
            f"ImportError: {package.name} supports Linux only, and this system is 'darwin'"
        )


@every_package
def test_a_pure_wheel_holds_no_compiled_file(package):
    """`py3-none-any` would be wrong otherwise."""
    compiled = {".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".cubin", ".fatbin"}
    assert [path for path in (package.folder / "src").rglob("*") if path.suffix in compiled] == []


@every_package
def test_the_version_is_static_and_read_from_the_metadata(package):
    assert re.fullmatch(r"\d+\.\d+\.\d+", package.manifest["project"]["version"])
    assert "dynamic" not in package.manifest["project"]
    sources = (package.folder / "src").rglob("*.py")
    assert [path for path in sources if re.search(r"^__version__ *=", path.read_text("utf-8"), re.MULTILINE)] == []


@every_package
def test_ranges_of_siblings_follow_from_what_is_imported(package):
    imported = imported_names(package)
    versions = {sibling.name: Version(sibling.version) for sibling in PACKAGES}
    for requirement in sibling_requirements(package):
        uses_internals = not all(map(is_public, imported[requirement.name]))
        bounds = {clause.operator: Version(clause.version) for clause in requirement.specifier}
        current, oldest = versions[requirement.name], bounds[">="]
        assert bounds.keys() == {">=", "<"}, requirement
        assert current in requirement.specifier, requirement
        expected = upper_bounds(current, oldest, uses_internals=uses_internals)
        internal = sorted(
            f"{module}.{name}" for module, name in imported[requirement.name] if not is_public((module, name))
        )
        assert str(bounds["<"]) in expected, f"{requirement}: expected <{expected[0]}; internal names: {internal}"


def upper_bounds(current, oldest, *, uses_internals):
    """The upper bounds that the policy allows, the one for a new requirement first.

    A range that admits the current minor release already need not be widened for the sake of it.
    """
    major, minor = current.release[:2]
    if uses_internals:
        return [f"{major}.{minor + 1}"]
    if major:
        return [f"{major + 1}"]
    return [f"0.{minor + 2}"] + ([f"0.{minor + 1}"] if oldest.release[:2] < (0, minor) else [])


def sibling_requirements(package):
    """Requirements of a package that are siblings. An extra may name one that is not in the repository yet."""
    project = package.manifest["project"]
    required = [found for found in map(Requirement, project["dependencies"]) if found.name.startswith("fib-")]
    optional = map(Requirement, itertools.chain(*project.get("optional-dependencies", {}).values()))
    return required + [found for found in optional if found.name in {sibling.name for sibling in PACKAGES}]


def imported_names(package):
    """The names that a package imports from each of its siblings, as pairs of module and name.

    A string such as ``fib_apply.config: ApplyConfig OnMiss`` counts too: tables of names are imported by their text.
    """
    found = collections.defaultdict(set)
    for path in (package.folder / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.ImportFrom(module=str(module), level=0):
                    pairs = [(module, alias.name) for alias in node.names]
                case ast.Import():
                    pairs = [(alias.name, "*") for alias in node.names]
                case ast.Constant(value=str(text)) if re.fullmatch(r"fib_\w+(\.\w+)*: ?\w[\w ]*", text):
                    module, _, names = text.partition(":")
                    pairs = [(module, name) for name in names.split()]
                case _:
                    continue
            for module, name in pairs:
                sibling = module.partition(".")[0].replace("_", "-")
                if sibling.startswith("fib-") and sibling != package.name:
                    found[sibling].add((module, name))
    return found


def is_public(imported):
    """Whether the policy counts a name as public: see CONTRIBUTING.md, section "Versions"."""
    module, _ = imported
    is_foundation = module.partition(".")[0] in ("fib_schema", "fib_compile")
    return module in DOCUMENTED_MODULES or (is_foundation and not re.search(r"(^|\.)_", module))


def documented_modules():
    """The modules of the API reference, as its build lists them."""
    for node in ast.parse((ROOT / "docs" / "public_names.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODULES":
            return frozenset(ast.literal_eval(node.value))
    raise AssertionError("docs/public_names.py has no MODULES")


DOCUMENTED_MODULES = documented_modules()
