"""Only flags on the list reach a compiler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fib_compile import BuildError, TVMFFIBuilder
from fib_compile._options import CompileOptions, InvalidOptions, compile_options
from fib_schema import BuildSpec, Definition, Solution


def spec(**options: object) -> BuildSpec:
    return BuildSpec("cpp", ("cpu",), "k.cpp::run", unknown_fields={"compile_options": options})


@pytest.mark.parametrize(
    "flag",
    [
        *("-O3", "-Ofast", "-std=c++20", "-std=gnu++17", "-g", "-DNAME", "-DNAME=1.5", "-UNAME", "-Isub/folder"),
        *("-ffast-math", "-fno-exceptions", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wno-unused", "-pthread"),
        *("-mavx2", "-march=x86-64-v3", "-mtune=skylake"),
    ],
)
def test_flags_for_the_host_compiler(flag: str) -> None:
    assert compile_options(spec(cflags=[flag])) == CompileOptions(cflags=(flag,))


@pytest.mark.parametrize(
    "flag",
    [
        *("-fplugin=evil.so", "-B/x", "-I/etc", "-I../x", "-I.", "-include/etc/passwd", "-o", "x.cpp", "@file"),
        *("-Wl,-rpath,/x", "-Wp,-MD,/x", "-wrapper", "-specs=x", "-march=native", "-mtune=native", "-L/x"),
        *("-DNAME=`x`", "-DNAME=$(x)", "-save-temps", "-fdump-tree-all=/x", "-O3 -fplugin=x", "-O3\n", ""),
        *("--sysroot=/x", "-x", "-Xlinker", "-fprofile-use=/x", "-Ia/../../b"),
    ],
)
def test_other_flags_are_refused(flag: str) -> None:
    with pytest.raises(InvalidOptions, match=r"spec.compile_options.cflags\[0\]: .* is not allowed"):
        compile_options(spec(cflags=[flag]))


@pytest.mark.parametrize(
    "flag", ["--use_fast_math", "-use_fast_math", "-maxrregcount=64", "-Xptxas=-v", "-Xcompiler=-O3", "--fmad=false"]
)
def test_flags_for_nvcc(flag: str) -> None:
    assert compile_options(spec(cuda_cflags=[flag])).cuda_cflags == (flag,)


@pytest.mark.parametrize("flag", ["-Xcompiler=-fplugin=x", "-ccbin=x", "--compiler-bindir=x", "-ldir=/x", "--run"])
def test_other_flags_for_nvcc_are_refused(flag: str) -> None:
    with pytest.raises(InvalidOptions):
        compile_options(spec(cuda_cflags=[flag]))


def test_flags_for_the_linker() -> None:
    flags = ["-lm", "-Wl,--as-needed", "-fopenmp"]
    assert compile_options(spec(ldflags=flags)).ldflags == tuple(flags)


@pytest.mark.parametrize("flag", ["-L/x", "-l/x", "-l:x.a", "-Wl,-rpath=/x", "x.o", "-T", "@file"])
def test_other_flags_for_the_linker_are_refused(flag: str) -> None:
    with pytest.raises(InvalidOptions):
        compile_options(spec(ldflags=[flag]))


def test_the_shape_of_the_options_is_checked() -> None:
    with pytest.raises(InvalidOptions, match="has no 'cxxflags'"):
        compile_options(spec(cxxflags=[]))
    with pytest.raises(InvalidOptions, match="must be a list of flags"):
        compile_options(spec(cflags="-O3"))
    with pytest.raises(InvalidOptions, match="must be an object"):
        compile_options(BuildSpec("cpp", ("cpu",), "k.cpp::run", unknown_fields={"compile_options": [1]}))


def test_options_reach_the_compiler_and_the_key(definition: Definition, make_solution: Callable[..., Solution]) -> None:
    text = '#ifndef NAME\n#error no name\n#endif\nextern "C" int __tvm_ffi_run() { return 0; }\n'

    def build(**fields: object) -> str:
        solution = make_solution(text, language="cpp", unknown_fields=fields)
        return str(TVMFFIBuilder().build(definition, solution).metadata.misc["key"])

    with pytest.raises(BuildError, match="no name"):
        build()
    keys = {build(compile_options={"cflags": [flag]}) for flag in ("-DNAME=1", "-DNAME=2")}
    assert len(keys) == 2
