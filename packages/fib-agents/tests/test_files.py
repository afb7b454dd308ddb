"""Solutions as files and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from fib_agents import extract_solution_to_files, pack_folder, pack_solution_from_files
from fib_agents.errors import InvalidArguments
from fib_agents.files import RECORD
from fib_schema import BuildSpec, CompileOptions, Solution, SourceFile
from hypothesis import given
from hypothesis import strategies as st

SPEC = BuildSpec(
    "cuda",
    ("H100", "cuda"),
    "kernel.cu::run",
    dependencies=("cutlass",),
    compile_options=CompileOptions(cflags=("-O3",)),
)
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)


def solution_of(*sources: tuple[str, str]) -> Solution:
    return Solution("mine", "gemm", "me", SPEC, tuple(SourceFile(*one) for one in sources), description="Fast.")


@given(TEXTS, TEXTS)
def test_a_solution_survives_being_files(tmp_path_factory: pytest.TempPathFactory, one: str, other: str) -> None:
    solution = solution_of(("kernel.cu", one), ("include/tiles.cuh", other), ("table.txt", "1\r\n2\r3"))
    folder = extract_solution_to_files(solution, tmp_path_factory.mktemp("files"))
    assert pack_folder(folder) == solution
    assert (Path(folder) / "include/tiles.cuh").read_bytes() == other.encode()


def test_an_edited_source_is_packed_as_it_is(tmp_path: Path) -> None:
    folder = Path(extract_solution_to_files(solution_of(("kernel.cu", "old")), tmp_path))
    (folder / "kernel.cu").write_text("new")
    assert pack_folder(folder).sources[0].content == "new"


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    extract_solution_to_files(solution_of(("kernel.cu", "x")), tmp_path)
    with pytest.raises(FileExistsError):
        extract_solution_to_files(solution_of(("kernel.cu", "x")), tmp_path)
    with pytest.raises(InvalidArguments, match="where the record is written"):
        extract_solution_to_files(solution_of(("kernel.cu", "x"), (RECORD, "x")), tmp_path / "other")


@pytest.mark.parametrize("path", ["../outside.cu", "/etc/passwd", "link.cu"])
def test_a_record_cannot_name_files_outside_of_its_folder(tmp_path: Path, path: str) -> None:
    folder = Path(extract_solution_to_files(solution_of(("kernel.cu", "x")), tmp_path))
    (folder / "link.cu").symlink_to("/etc/passwd")
    (tmp_path / "outside.cu").write_text("outside")
    record = folder / RECORD
    record.write_text(record.read_text().replace('"kernel.cu"', f'"{path}"'))
    with pytest.raises(InvalidArguments, match="outside"):
        pack_folder(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sources": [{}]}', '{"sources": 3}'])
def test_a_record_that_is_none_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(InvalidArguments, match="is not a record of a solution"):
        pack_folder(tmp_path)


def test_files_of_a_folder_are_packed_by_their_suffixes(tmp_path: Path) -> None:
    for name in ("kernel.cu", "a/tiles.cuh", "plain.c", "notes.md", "b/x.hpp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"// {name}\n")
    solution = pack_solution_from_files(tmp_path, SPEC, "mine", "gemm", "me", "Fast.")
    assert {source.path for source in solution.sources} == {"kernel.cu", "a/tiles.cuh", "plain.c", "b/x.hpp"}
