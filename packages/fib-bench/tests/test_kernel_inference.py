"""Tests of the inference of language, entry point and calling style from kernel files."""

import os
import time
from contextlib import suppress

import pytest
from fib_bench.authoring.inference import Choices, infer_kernel
from fib_bench.authoring.sources import KernelFileError

from .samples import DOUBLE

EXPORT = "#include <tvm/ffi/function.h>\n"
CPP = (
    f"{EXPORT}void Double(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {{}}\n"
    "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Double);\n"
)


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("name", "text", "language", "entry", "style"),
    [
        ("k.py", "def run(x):\n  return x", "python", "k.py::run", "return"),
        ("k.py", "def run(x, y):\n  y.copy_(x)", "python", "k.py::run", "destination"),
        ("k.py", "def double(x):\n  return x", "python", "k.py::double", "return"),
        ("k.py", "def helper(a, b, c):\n  return a\ndef f(x):\n  return x", "python", "k.py::f", "return"),
        ("k.py", "def f(x): pass\ndef kernel_function(x): return x", "python", "k.py::kernel_function", "return"),
        ("k.py", "def run(x, y=None):\n  return x", "python", "k.py::run", "destination"),
        ("k.py", "def run(x, eps=1):\n  return x", "python", "k.py::run", "return"),
        ("k.py", "def run(x, eps=1):\n  x.copy_(x)", "python", "k.py::run", "destination"),
        ("k.py", "def run(*args):\n  return args", "python", "k.py::run", "return"),
        ("k.py", "def run(x, *rest):\n  *_, y = rest\n  y.copy_(x)", "python", "k.py::run", "destination"),
        ("k.py", "class Model:\n  def __call__(self, x): return x\nrun = Model()", "python", "k.py::run", "return"),
        ("k.py", "def run(x, y): pass\nrun = wrap(run)", "python", "k.py::run", "destination"),
        ("k.py", "def setup(x):\n  return {'t': 1}\ndef run(x, y, t):\n  pass", "python", "k.py::run", "destination"),
        ("k.py", "import triton\n@triton.jit\ndef k(x): pass\ndef f(x, y): pass", "triton", "k.py::f", "destination"),
        ("k.py", "import triton, helion\ndef run(x): return x", "helion", "k.py::run", "return"),
        ("k.py", "import tilelang.language as T\ndef run(x): return x", "tilelang", "k.py::run", "return"),
        ("k.py", "from cutlass import cute\ndef run(x): return x", "cute_dsl", "k.py::run", "return"),
        ("k.py", "import cuda.tile as ct\ndef run(x, y): pass", "cutile", "k.py::run", "destination"),
        ("k.py", "from cuda import tile as ct\ndef run(x, y): pass", "cutile", "k.py::run", "destination"),
        ("k.cpp", CPP, "cpp", "k.cpp::run", "destination"),
        ("k.cc", CPP.replace("(run,", "(go,"), "cpp", "k.cc::go", "destination"),
        ("k.cu", CPP, "cuda", "k.cu::run", "destination"),
        ("k.cu", "#include <cutlass/gemm.h>\n" + CPP, "cutlass", "k.cu::run", "destination"),
        ("k.cu", "// #include <cutlass/gemm.h>\n" + CPP, "cuda", "k.cu::run", "destination"),
        (
            "k.cpp",
            "torch::Tensor f(torch::Tensor x) { return x; }\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n"
            '  m.def("run", &f);\n}\n',
            "cpp",
            "k.cpp::run",
            "return",
        ),
        ("k.cpp", f"/* {CPP} */ // {CPP.splitlines()[-1]}\n{CPP}", "cpp", "k.cpp::run", "destination"),
    ],
)
def test_a_file_tells_what_it_is(write, name, text, language, entry, style):
    found = infer_kernel(write(name, text), DOUBLE)
    assert (found.spec.language, found.spec.entry_point, found.style) == (language, entry, style)


def test_a_folder_is_read_with_its_headers(write, tmp_path):
    write("kernel/src/k.cu", CPP)
    write("kernel/include/k.cuh", "// shapes")
    write("kernel/.git/x.cu", "not a source")
    write("kernel/notes.txt", "not a source")
    found = infer_kernel(tmp_path / "kernel", DOUBLE)
    assert [source.path for source in found.sources] == ["include/k.cuh", "src/k.cu"]
    assert (found.spec.language, found.spec.entry_point) == ("cuda", "src/k.cu::run")


def test_a_package_may_have_an_empty_init_file(write, tmp_path):
    for name, text in (("main.py", "from ops.k import f\ndef run(x): return f(x)"), ("ops/k.py", "def f(x): return x")):
        write(f"kernel/{name}", text)
    write("kernel/ops/__init__.py", "")
    found = infer_kernel(tmp_path / "kernel", DOUBLE, Choices(entry_point="run"))
    assert [source.path for source in found.sources] == ["main.py", "ops/__init__.py", "ops/k.py"]


def test_choices_go_before_rules(write):
    path = write("k.py", "def f(x): return x\ndef g(x): return x")
    choices = Choices(language="triton", entry_point="g", style="destination", hardware=("H100",))
    found = infer_kernel(path, DOUBLE, choices)
    assert (found.spec.language, found.spec.entry_point, found.style) == ("triton", "k.py::g", "destination")
    assert found.spec.target_hardware == ("H100",)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("k.py", "def f(x: return x", "k.py:1: does not parse: "),
        ("k.py", "", "is empty"),
        ("k.py", "x = 1", "add a top-level function named run (def, not async def)"),
        ("k.py", "def f(x): return x\ndef g(x): return x", "2 functions may be the entry point: k.py::f (line 1)"),
        ("k.py", "def run(a, b, c): pass", "k.py:1: run takes 3 arguments, and the definition has 1 input (x)"),
        ("k.py", "(" * 100_000, "does not parse"),
        ("k.cpp", "int main() {}", "exports no function; end the file with TVM_FFI_DLL_EXPORT_TYPED_FUNC"),
        ("k.cpp", f"{CPP}{CPP.replace('(run', '(a')}".replace("(run", "(b"), "2 functions may be the entry point"),
        ("k.txt", "text", "is not a kernel file; write a file that ends in .py, .cu or .cpp"),
        ("k.h", "text", "is not a kernel file"),
    ],
)
def test_a_file_that_leaves_a_question_has_an_answer(write, name, text, said):
    with pytest.raises(KernelFileError) as caught:
        infer_kernel(write(name, text), DOUBLE)
    assert said in str(caught.value)


def test_hostile_files_have_clear_messages(tmp_path):
    pipe, huge, binary, zeros = (tmp_path / name for name in ("pipe.py", "huge.py", "binary.py", "zeros.py"))
    os.mkfifo(pipe)
    with huge.open("wb") as file:
        file.truncate(2**33)
    binary.write_bytes(b"\x7fELF\xff\xfe")
    zeros.write_bytes(b"a = 1\0")
    (tmp_path / "empty").mkdir()
    for path, said in {
        pipe: "it is a named pipe, not a regular file",
        huge: "it has 8589934592 bytes, and at most 4194304 are read",
        binary: "is not text: byte 4 is not UTF-8",
        zeros: "is not text: it contains zero bytes",
        tmp_path / "empty": "the folder has no file that ends in .py, .cu or .cpp",
        tmp_path / "missing.py": "there is no such file",
    }.items():
        with pytest.raises(KernelFileError) as caught:
            infer_kernel(path, DOUBLE)
        assert str(caught.value).startswith(f"{path}: ")
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("comments.cpp", "/*" * 2_000_000),
        ("strings.cpp", '"' + '\\"' * 1_000_000),
        ("stars.cpp", f"{'*' * 3_000_000}\n{CPP}"),
        ("exports.cpp", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(a, b)\n" * 100_000),
        ("sum.py", f"def run(x):\n    return {'+'.join(['x'] * 900)}\n"),
        ("deep.py", f"def run(x):\n    return {'-' * 90}x\n" * 1000),
    ],
)
def test_patterns_take_no_long_time(write, name, text):
    path = write(name, text)
    begin = time.thread_time()
    with suppress(KernelFileError):
        infer_kernel(path, DOUBLE)
    assert time.thread_time() - begin < 10


def test_python_beside_native_files_needs_a_choice(write, tmp_path):
    write("kernel/k.cu", CPP)
    write("kernel/k.py", "def run(x): return x")
    with pytest.raises(KernelFileError, match="decide with --language"):
        infer_kernel(tmp_path / "kernel", DOUBLE)
    assert infer_kernel(tmp_path / "kernel", DOUBLE, Choices(language="cuda")).spec.language == "cuda"
