"""Only flags on the allow-list reach a compiler."""

import pytest
from compile_samples import ADD_ONE, make_solution
from fib_compile import BuildError, TVMFFIBuilder
from fib_compile._plan import compile_options
from fib_compile.errors import BuildProblem
from fib_schema import BuildSpec, CompileOptions


def spec(**flags):
    return BuildSpec("cpp", ("cpu",), "k.cpp::run", compile_options=CompileOptions(**flags))


ALLOWED = {
    "cflags": (
        *("-O3", "-Ofast", "-std=c++20", "-std=gnu++17", "-g", "-DNAME", "-DNAME=1.5", "-UNAME", "-Isub/folder"),
        *("-ffast-math", "-fno-exceptions", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wno-unused", "-pthread"),
        *("-mavx2", "-march=x86-64-v3", "-mtune=skylake"),
    ),
    "cuda_cflags": (
        *("--use_fast_math", "-use_fast_math", "-maxrregcount=64", "-Xptxas=-v", "-Xcompiler=-O3", "--fmad=false"),
    ),
    "ldflags": ("-lm", "-Wl,--as-needed", "-fopenmp"),
}
REJECTED = {
    "cflags": (
        *("-fplugin=evil.so", "-B/x", "-I/etc", "-I../x", "-I.", "-include/etc/passwd", "-o", "x.cpp", "@file"),
        *("-Wl,-rpath,/x", "-Wp,-MD,/x", "-wrapper", "-specs=x", "-march=native", "-mtune=native", "-L/x"),
        *("-DNAME=`x`", "-DNAME=$(x)", "-save-temps", "-fdump-tree-all=/x", "-O3 -fplugin=x", "-O3\n", ""),
        *("--sysroot=/x", "-x", "-Xlinker", "-fprofile-use=/x", "-Ia/../../b"),
    ),
    "cuda_cflags": ("-Xcompiler=-fplugin=x", "-ccbin=x", "--compiler-bindir=x", "-ldir=/x", "--run"),
    "ldflags": ("-L/x", "-l/x", "-l:x.a", "-Wl,-rpath=/x", "x.o", "-T", "@file"),
}


@pytest.mark.parametrize(("kind", "flag"), [(kind, flag) for kind, flags in ALLOWED.items() for flag in flags])
def test_flags_that_only_compile_are_allowed(kind, flag):
    assert compile_options(spec(**{kind: [flag]})) == CompileOptions(**{kind: (flag,)})


@pytest.mark.parametrize(("kind", "flag"), [(kind, flag) for kind, flags in REJECTED.items() for flag in flags])
def test_other_flags_are_rejected(kind, flag):
    with pytest.raises(BuildProblem, match=rf"spec.compile_options.{kind}\[0\]: .* is not allowed"):
        compile_options(spec(**{kind: [flag]}))


def test_options_of_an_unknown_kind_are_rejected():
    options = CompileOptions(unknown_fields={"cxxflags": []})
    with pytest.raises(BuildProblem, match=r"has no 'cxxflags' \(it has cflags, cuda_cflags, ldflags\)"):
        compile_options(BuildSpec("cpp", ("cpu",), "k.cpp::run", compile_options=options))


def test_options_reach_the_compiler_and_the_key():
    text = '#ifndef NAME\n#error no name\n#endif\nextern "C" int __tvm_ffi_run() { return 0; }\n'

    def build(options=None):
        solution = make_solution(text, language="cpp", compile_options=options)
        return str(TVMFFIBuilder().build(ADD_ONE, solution).metadata.misc["key"])

    with pytest.raises(BuildError, match="no name"):
        build()
    keys = {build(CompileOptions([flag])) for flag in ("-DNAME=1", "-DNAME=2")}
    assert len(keys) == 2
