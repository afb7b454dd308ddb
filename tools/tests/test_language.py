"""The names that LANGUAGE.md replaced must not come back; `old_names.toml` lists them for each package."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from devtools.repository import ROOT

OLD_NAMES = tomllib.loads(Path(__file__).with_name("old_names.toml").read_text())
PENDING: set[str] = set()  # packages that are not renamed yet
# Sources of solutions are data: exploits may use any name.
DATA = re.compile(r"/(fib_bench/demo/\w+|fib-bench/selftest|programs|solutions)/")
CLAUSE = re.compile(r'\s*r?"""(What|How|Why|When|Where|Which|Who)\b')


def words_of(name):
    """The words of an identifier: `_RayCrew2` has `ray` and `crew`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def identifiers(tree):
    """All names of a module: of classes, functions, parameters, variables, attributes and imports."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield node.lineno, name
            case ast.ImportFrom(module=str(name)) | ast.alias(name=name, asname=None):
                yield from ((node.lineno, part) for part in name.split("."))
            case ast.alias(name=name, asname=str(alias)):
                yield from ((node.lineno, part) for part in [*name.split("."), alias])


def definitions(tree, module):
    """The qualified names of all classes, functions and variables that a module or its classes define."""
    for node in tree.body:
        match node:
            case ast.ClassDef():
                yield f"{module}.{node.name}"
                yield from definitions(node, f"{module}.{node.name}")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield f"{module}.{node.name}"
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield f"{module}.{name}"


def old_names_in(text, path, old):
    """The old names of a package that a file with this text and path uses."""
    tree, parts = ast.parse(text), path.with_suffix("").parts
    module = ".".join(parts[parts.index("src") + 1 :] if "src" in parts else parts).removesuffix(".__init__")
    wanted = [word.split("_") for word in old["words"]]
    for line, name in [(1, path.stem), (1, path.parent.name), *identifiers(tree)]:
        words = words_of(name)
        sequences = [words[begin:end] for begin in range(len(words)) for end in range(begin + 1, len(words) + 1)]
        if name in old["names"] or any(word in sequences for word in wanted):
            yield f"{path}:{line}: {name}"
    defined = {module, module.rpartition(".")[0], *definitions(tree, module)}
    yield from (f"{path}: {name}" for name in defined & set(old["qualified"]))


def clauses(text):
    """Lines of docstrings that begin with a clause, as "What a function returns"."""
    return [line.strip() for line in text.splitlines() if CLAUSE.match(line)]


def folders(package):
    return [ROOT / "tools"] if package == "tools" else [ROOT / "packages" / package / name for name in ("src", "tests")]


@pytest.mark.parametrize("package", OLD_NAMES)
def test_no_package_uses_an_old_name(package):
    paths = [path for folder in folders(package) for path in folder.rglob("*.py") if not DATA.search(path.as_posix())]
    found = {
        use for path in paths for use in old_names_in(path.read_text(), path.relative_to(ROOT), OLD_NAMES[package])
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class RayCrew: ...", ["RayCrew"]),
        ("crews = 1", []),
        ("def f(a, *, own_crew): return a.crew_size", ["own_crew", "crew_size"]),
        ("f(my_stand_in=1)", ["my_stand_in"]),
        ("stand, inside = 1, 2", []),
        ("from a.crew import b as Way", ["crew", "Way"]),
        ("way = one_way", []),
        ("class Site:\n    def point(self): ...", ["fib_a.b.Site.point"]),
        ("class Other:\n    def point(self): ...", []),
    ],
)
def test_old_names_are_found_in_all_roles(text, found):
    old = {"words": ["crew", "stand_in"], "names": ["Way"], "qualified": ["fib_a.b.Site.point"]}
    uses = old_names_in(text, Path("packages/fib-a/src/fib_a/b.py"), old)
    assert [use.rpartition(": ")[2] for use in uses] == found


def test_docstrings_begin_with_the_thing_they_describe():
    roots = [*(ROOT / name for name in ("docs", "packages", "tests-integration", "tools")), *ROOT.glob("*.py")]
    paths = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))]
    found = {f"{path.relative_to(ROOT)}: {line}" for path in paths for line in clauses(path.read_text())}
    assert sorted(found) == []


def test_clauses_are_found():
    text = 'def f():\n    """What it returns."""\n    """Whether it runs."""\n    """Result of f."""\n'
    assert clauses(text) == ['"""What it returns."""']
