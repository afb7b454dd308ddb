import attrs
import pytest
from fib_schema import BuildSpec, CompileOptions, InvalidField, Solution, SourceFile, format_json, parse_json
from hypothesis import given
from hypothesis import strategies as st

SPEC = BuildSpec("triton", ["NVIDIA H200"], "pkg/main.py::run", ["cublas"])
SOLUTION = Solution("s", "d", "a", SPEC, [SourceFile("pkg/main.py", "x"), SourceFile("b.py", "y")])


def test_the_entry_point_is_taken_apart():
    assert SOLUTION.get_entry_path() == "pkg/main.py"
    assert SOLUTION.get_entry_symbol() == "run"
    assert SOLUTION.get_entry_source() == SourceFile("pkg/main.py", "x")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x.py",
        "a/../x.py",
        "a//x.py",
        "./x.py",
        "a/./x.py",
        "a\\x.py",
        "a\0.py",
        "a/",
        "a/" * 500 + "x",
    ],
)
def test_source_paths_stay_below_their_folder(path):
    with pytest.raises(InvalidField, match="sources stay below their folder"):
        SourceFile(path, "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": []}, "at least one source file"),
        ({"sources": [SourceFile("pkg/main.py", "")] * 2}, "occurs twice"),
        ({"sources": [SourceFile("pkg/main.py", ""), SourceFile("PKG/main.py", "")]}, "occurs twice"),
        ({"sources": [SourceFile("pkg", ""), SourceFile("pkg/main.py", "")]}, "is a file and the folder of"),
        ({"sources": [SourceFile("b.py", "")]}, "'pkg/main.py' is not among the sources"),
        ({"author": "../../../evil"}, "path separator"),
        ({"sources": ["x"]}, "expected SourceFile"),
        ({"spec": None}, "expected BuildSpec, got null"),
    ],
)
def test_bad_solutions_are_refused(changes, message):
    with pytest.raises(InvalidField, match=message):
        attrs.evolve(SOLUTION, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"language": "cobol"}, "'cobol' is unknown"),
        ({"binding": "swig"}, "'swig' is unknown"),
        ({"target_hardware": []}, "name at least one device"),
        ({"entry_point": "main.py"}, "'file::symbol'"),
        ({"entry_point": "a::b::c"}, "'file::symbol'"),
        ({"destination_passing_style": 1}, "expected true or false, got integer 1"),
        ({"compile_options": ["-O3"]}, "expected CompileOptions or null, got list"),
    ],
)
def test_bad_specs_are_refused(changes, message):
    with pytest.raises(InvalidField, match=message):
        attrs.evolve(SPEC, **changes)


@pytest.mark.parametrize(
    "changed",
    [
        attrs.evolve(SOLUTION, definition="e"),
        attrs.evolve(SOLUTION, spec=attrs.evolve(SPEC, language="python")),
        attrs.evolve(SOLUTION, spec=attrs.evolve(SPEC, entry_point="pkg/main.py::go")),
        attrs.evolve(SOLUTION, spec=attrs.evolve(SPEC, binding="torch")),
        attrs.evolve(SOLUTION, spec=attrs.evolve(SPEC, destination_passing_style=False)),
        attrs.evolve(SOLUTION, spec=attrs.evolve(SPEC, target_hardware=["cpu"])),
        attrs.evolve(SOLUTION, spec=attrs.evolve(SPEC, dependencies=[])),
        attrs.evolve(SOLUTION, spec=attrs.evolve(SPEC, compile_options=CompileOptions(["-O3"]))),
        attrs.evolve(SOLUTION, spec=attrs.evolve(SPEC, compile_options=CompileOptions(unknown_fields={"x": 1}))),
        attrs.evolve(SOLUTION, spec=attrs.evolve(SPEC, unknown_fields={"x_stage": {"count": 2}})),
        attrs.evolve(SOLUTION, sources=[SourceFile("pkg/main.py", "xy"), SourceFile("b.py", "")]),
        attrs.evolve(SOLUTION, sources=[SourceFile("pkg/main.py", "x"), SourceFile("c.py", "y")]),
    ],
)
def test_the_hash_changes_with_everything_that_changes_behaviour(changed):
    assert changed.hash() != SOLUTION.hash()


def test_the_hash_ignores_what_does_not_change_behaviour():
    renamed = attrs.evolve(SOLUTION, name="t", author="b", description="hello", sources=SOLUTION.sources[::-1])
    assert renamed.hash() == SOLUTION.hash()


@given(st.lists(st.text(max_size=3), min_size=4, max_size=4), st.lists(st.text(max_size=3), min_size=4, max_size=4))
def test_no_two_contents_share_a_hash(first, second):
    """Framing is unambiguous: text cannot move from one part into its neighbour."""

    def solution(parts):
        sources = [SourceFile("a.py", parts[0]), SourceFile("b.py", parts[1])]
        spec = BuildSpec("python", [parts[2] or "x"], "a.py::run", [parts[3]])
        return Solution("s", "d", "a", spec, sources)

    one, two = solution(first), solution(second)
    assert (one.hash() == two.hash()) == (one == two)


def test_options_without_flags_are_no_options():
    spec = attrs.evolve(SPEC, compile_options=CompileOptions())
    assert attrs.evolve(SOLUTION, spec=spec).hash() == SOLUTION.hash()


def test_a_unique_name_ends_in_the_hash():
    assert SOLUTION.with_unique_name().name == f"s_{SOLUTION.hash()[:8]}"


@pytest.mark.parametrize(
    ("language", "is_compiled", "is_embedded"),
    [
        *((name, False, False) for name in ["python"]),
        *((name, False, True) for name in ["triton", "tilelang", "cute_dsl", "cutile", "helion"]),
        *((name, True, False) for name in ["cpp", "cuda", "cutlass"]),
    ],
)
def test_a_language_is_python_embedded_in_it_or_compiled(language, is_compiled, is_embedded):
    spec = attrs.evolve(SPEC, language=language)
    assert (spec.language.is_compiled, spec.language.is_embedded) == (is_compiled, is_embedded)
    assert attrs.evolve(SOLUTION, spec=spec) == parse_json(format_json(attrs.evolve(SOLUTION, spec=spec)), Solution)
