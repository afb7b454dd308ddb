"""Compile options of a solution, checked against an allow-list of flags.

A compiler flag can load plugins, read any file and write anywhere, and solutions are untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from fib_schema import BuildSpec, CompileOptions

from .errors import BuildProblem

_VALUE = r"[\w.,:+\-]*"
_FOLDER = r"(?!.*\.\.)[A-Za-z0-9_][\w./\-]*"
_MATH = r"fast-math|associative-math|finite-math-only|math-errno|signed-zeros|reciprocal-math|trapping-math"
_CODE = r"unroll-loops|tree-vectorize|strict-aliasing|inline-functions|exceptions|rtti|openmp|openmp-simd|permissive"
_COMMON = rf"-O[0-3s]|-Ofast|-std=(c|gnu)\+\+\d\d|-g\d?|-[DU][A-Za-z_]\w*(={_VALUE})?|-I{_FOLDER}"
_HOST = rf"{_COMMON}|-f(no-)?({_MATH}|{_CODE})|-ffp-contract=\w+|-fvisibility=\w+|-pthread|-W[a-z][a-z0-9=+\-]*|-w"
_MACHINE = r"-m(?!arch=native|tune=native|cpu=native)[a-z][\w.=+\-]*"
_NVCC_SWITCHES = (
    "use_fast_math|expt-relaxed-constexpr|expt-extended-lambda|extended-lambda|lineinfo|generate-line-info|restrict"
    "|extra-device-vectorization"
)
_NVCC_VALUES = r"(ftz|prec-div|prec-sqrt|fmad)=(true|false)|maxrregcount=\d+|diag-suppress=[\d,]+"
_PTXAS = r"(-Xptxas|--ptxas-options)=(-O[0-3]|-v|--verbose|-dlcm=c[ag]|--allow-expensive-optimizations=(true|false))"
_LIBRARY = r"-l[A-Za-z0-9_+\-]+|-pthread|-fopenmp|-static-lib(gcc|stdc\+\+)"
_LINKER = r"-Wl,(--as-needed|--no-as-needed|--gc-sections|-Bsymbolic|-O[0-3])"

_ALLOWED: Mapping[str, re.Pattern[str]] = MappingProxyType({
    "cflags": re.compile(f"{_HOST}|{_MACHINE}"),
    "cuda_cflags": re.compile(
        f"{_COMMON}|--?({_NVCC_SWITCHES}|{_NVCC_VALUES})|{_PTXAS}|(-Xcompiler|--compiler-options)=({_HOST}|{_MACHINE})"
    ),
    "ldflags": re.compile(f"{_LIBRARY}|{_LINKER}"),
})  # fmt: skip
_EXAMPLES: Mapping[str, str] = MappingProxyType({
    "cflags": "-O3, -ffast-math, -mavx2, -DNAME=1, -Isubfolder (not -march=native: name the architecture)",
    "cuda_cflags": "--use_fast_math, -maxrregcount=64, -DNAME=1, -Xptxas=-v, -Xcompiler=-O3",
    "ldflags": "-lm, -pthread, -Wl,--as-needed",
})  # fmt: skip


def compile_options(spec: BuildSpec) -> CompileOptions:
    """A solution's flags. They are placed behind the builder's own, so that they have priority.

    Raises:
        BuildProblem: A flag is not on the allow-list, or the kind of options is unknown.
    """
    options = spec.compile_options or CompileOptions()
    for name in options.unknown_fields:
        raise BuildProblem(f"spec.compile_options has no {name!r} (it has {', '.join(_ALLOWED)})")
    for name, allowed in _ALLOWED.items():
        for index, flag in enumerate(getattr(options, name)):
            if not allowed.fullmatch(flag):
                hint = f"examples of allowed flags: {_EXAMPLES[name]}"
                raise BuildProblem(f"spec.compile_options.{name}[{index}]: {flag!r} is not allowed; {hint}")
    return options
