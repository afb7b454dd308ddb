from pathlib import Path

import pytest
from fib_agents import extract_solution_to_files, pack_solution_from_files
from fib_agents.errors import InvalidArguments
from fib_schema import BuildSpec, CompileOptions, Solution, SourceFile

FLAGS = CompileOptions(cflags=("-O3",))
SPEC = BuildSpec("cuda", ("H100", "cuda"), "kernel.cu::run", dependencies=("cutlass",), compile_options=FLAGS)


def solution_of(*sources):
    return Solution("mine", "gemm", "me", SPEC, tuple(SourceFile(*one) for one in sources), description="Fast.")


def test_a_folder_is_new_and_has_the_sources_as_they_are(tmp_path):
    solution = solution_of(("kernel.cu", "x\r\n\u00e9"), ("include/tiles.cuh", "1\r2"))
    folder = Path(extract_solution_to_files(solution, tmp_path))
    kept = {path.name: path.read_bytes() for path in folder.rglob("*.cu*")}
    assert kept == {"kernel.cu": "x\r\n\u00e9".encode(), "tiles.cuh": b"1\r2"}
    with pytest.raises(FileExistsError):
        extract_solution_to_files(solution, tmp_path)


def test_files_outside_of_the_folder_are_not_packed(tmp_path):
    (tmp_path / "outside.c").write_text("outside")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/kernel.py").write_text("x = 1")
    (tmp_path / "folder/link.c").symlink_to(tmp_path / "outside.c")
    with pytest.raises(InvalidArguments, match="outside"):
        pack_solution_from_files(tmp_path / "folder", SPEC, "mine", "gemm", "me")


def test_files_of_a_folder_are_packed_by_their_suffixes(tmp_path):
    for name in ("kernel.cu", "a/tiles.cuh", "plain.c", "notes.md", "b/x.hpp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"// {name}\n")
    solution = pack_solution_from_files(tmp_path, SPEC, "mine", "gemm", "me", "Fast.")
    assert {source.path for source in solution.sources} == {"kernel.cu", "a/tiles.cuh", "plain.c", "b/x.hpp"}
