"""``fib-compat migrate-imports`` and the tables of the migration guide."""

from __future__ import annotations

import importlib
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_compat.cli.main import cli
from fib_compat.migration.guide import tables, with_tables
from fib_compat.migration.replacements import replacement
from fib_compat.table import MODULES, Origin, names_of

libcst = pytest.importorskip("libcst", reason="the extra `migrate` is not installed")
from fib_compat.migration.rewriting import rewrite  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to" / "migrate-from-flashinfer-bench.md"
PROGRAMS = Path(__file__).parent / "programs"
ROWS = [f"flashinfer_bench.{row}".rstrip(".") for row in MODULES]
NAMES = [(row, name) for row in ROWS for name in names_of(row)]

ENGINE = '''\
# -*- coding: utf-8 -*-
"""Traces an engine with flashinfer_bench."""

from __future__ import annotations

import logging; import flashinfer_bench as fib

from flashinfer_bench.data import (
    Definition,  # the function
    TraceSet as Data,
)
from flashinfer_bench import apply, enable_apply as on, Benchmark
from flashinfer_bench.compile.builders import CUDABuilder

log = logging.getLogger("flashinfer-bench")  # flashinfer_bench.data


class Engine:
    data: Data

    def start(self, root: str) -> fib.TraceSet:
        import flashinfer_bench.tracing as tracing

        tracing.enable_tracing(
            root,   # the set
            tracing.TracingConfig(),
        )
        return (fib.data.TraceSet).from_path(root)

    def other(self, fib: object) -> object:
        return fib.TraceSet
'''
MIGRATED = '''\
# -*- coding: utf-8 -*-
"""Traces an engine with flashinfer_bench."""

from __future__ import annotations

import logging
import fib_schema

from fib_schema import (
    Definition,  # the function
    TraceSet as Data,
)
from fib_apply import apply, enable_apply as on
from fib_bench import Benchmark
from fib_compile import TVMFFIBuilder as CUDABuilder

log = logging.getLogger("flashinfer-bench")  # flashinfer_bench.data


class Engine:
    data: Data

    def start(self, root: str) -> fib_schema.TraceSet:
        import fib_tracer

        fib_tracer.enable_tracing(
            root,   # the set
            fib_tracer.TracingConfig(),
        )
        return (fib_schema.TraceSet).from_path(root)

    def other(self, fib: object) -> object:
        return fib.TraceSet
'''


def migrated(source: str, **options: bool) -> str:
    """The result, which does not change when it is rewritten again."""
    result = rewrite(source.encode(), **options)
    assert rewrite(result.source, **options).source == result.source
    compile(result.source, "result", "exec")
    return result.source.decode()


def findings(source: str) -> list[str]:
    return [f"{finding.line}: {finding.message}" for finding in rewrite(source.encode()).findings]


def test_a_program_is_rewritten_and_keeps_its_formatting() -> None:
    assert migrated(ENGINE) == MIGRATED
    assert findings(ENGINE) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import flashinfer_bench\nflashinfer_bench.Trace\n", "import fib_schema\nfib_schema.Trace\n"),
        ("import flashinfer_bench.data\nflashinfer_bench.data.Trace\n", "import fib_schema\nfib_schema.Trace\n"),
        (
            "import flashinfer_bench\nimport flashinfer_bench.data\nflashinfer_bench.data.Trace\n",
            "import fib_schema\nfib_schema.Trace\n",
        ),
        ("from flashinfer_bench import data as d\nd.Trace\n", "import fib_schema\nfib_schema.Trace\n"),
        ("import os, flashinfer_bench as f\nf.Trace\n", "import fib_schema\nimport os\nfib_schema.Trace\n"),
        (
            "from flashinfer_bench import Trace as T, apply\n",
            "from fib_schema import Trace as T\nfrom fib_apply import apply\n",
        ),
        (
            "from flashinfer_bench.data import *\nx = [Trace, Workload, os]\n",
            "from fib_schema import Trace, Workload\nx = [Trace, Workload, os]\n",
        ),
        (
            "from flashinfer_bench.compile.builders import *\nCUDABuilder\n",
            "from fib_compile import TVMFFIBuilder as CUDABuilder\nCUDABuilder\n",
        ),
        ("from flashinfer_bench.data import InputDesc as InputSpec\n", "from fib_schema import InputSpec\n"),
        ("from flashinfer_bench.utils import is_dtype_integer\n", "from fib_compile.device import is_dtype_integer\n"),
        ("import flashinfer_bench\nflashinfer_bench.apply('x')\n", "import fib_apply\nfib_apply.apply('x')\n"),
        (
            "try:\n    import flashinfer_bench as f\nexcept ImportError:\n    raise\nf.Trace\n",
            "try:\n    import fib_schema\nexcept ImportError:\n    raise\nfib_schema.Trace\n",
        ),
        (
            "def f():\n    import flashinfer_bench as b\n    return b.Trace\n"
            "def g():\n    import flashinfer_bench as b\n    return b.Trace\n",
            "def f():\n    import fib_schema\n    return fib_schema.Trace\n"
            "def g():\n    import fib_schema\n    return fib_schema.Trace\n",
        ),
        (
            "from flashinfer_bench import (\n    apply,\n    Trace,\n)\n",
            "from fib_apply import (\n    apply,\n)\nfrom fib_schema import (\n    Trace,\n)\n",
        ),
        ("from flashinfer_bench import Trace\r\nx = 1\r\n", "from fib_schema import Trace\r\nx = 1\r\n"),
        ("from flashinfer_bench import Trace", "from fib_schema import Trace"),
        ('f"{flashinfer_bench.Trace}"\nimport flashinfer_bench\n', 'f"{fib_schema.Trace}"\nimport fib_schema\n'),
    ],
)
def test_each_form_of_import(old: str, new: str) -> None:
    assert migrated(old) == new


@pytest.mark.parametrize(
    "source",
    [
        "x = 'flashinfer_bench'\n# import flashinfer_bench\n",
        'r"""\nimport flashinfer_bench\nflashinfer_bench.Trace\n"""\n',
        "from .flashinfer_bench import Trace\nfrom flashinfer_bench_tools import Trace\n",
        "import my.flashinfer_bench as f\nf.Trace\n",
        "def f(flashinfer_bench):\n    return flashinfer_bench.Trace\n",
        "print('pip install flashinfer-bench')\n",
    ],
)
def test_what_is_no_import_of_the_package_stays(source: str) -> None:
    assert migrated(source) == source


@pytest.mark.parametrize(
    ("source", "result", "reported"),
    [
        (
            "from flashinfer_bench.utils import redirect_stdio_to_file\n",
            None,
            "1: flashinfer_bench.utils.redirect_stdio_to_file: use contextlib",
        ),
        (
            "from flashinfer_bench.compile import Runnable, get_registry\n",
            "from fib_compile import Runnable\nfrom flashinfer_bench.compile import get_registry\n",
            "1: flashinfer_bench.compile.get_registry: use fib_compile.BuilderRegistry.get_instance()",
        ),
        ("import flashinfer_bench\n", None, "1: flashinfer_bench is imported but not used; importing it may"),
        (
            "import flashinfer_bench as f\nf.Trace\nreload(f)\n",
            "import fib_schema\nimport flashinfer_bench as f\nfib_schema.Trace\nreload(f)\n",
            "3: flashinfer_bench is used as a module object",
        ),
        (
            "import flashinfer_bench as f\nf.nothing\n",
            None,
            "2: flashinfer_bench.nothing is not a name of flashinfer-bench",
        ),
        (
            "from flashinfer_bench.agents import function_to_schema, flashinfer_bench_run_ncu\n",
            "from fib_agents import function_to_schema\nfrom flashinfer_bench.agents import flashinfer_bench_run_ncu\n",
            "1: flashinfer_bench.agents.flashinfer_bench_run_ncu: use fib_agents.profile",
        ),
        ("from flashinfer_bench.nowhere import x\n", None, "1: flashinfer_bench.nowhere.x: not a name"),
        ("from flashinfer_bench.nowhere import *\n", None, "1: flashinfer_bench.nowhere: no such module"),
        ("from flashinfer_bench.data import *\n", None, "1: from flashinfer_bench.data import *: no name of it"),
        (
            "from flashinfer_bench.data import *\nALLOWED_DTYPES\n",
            None,
            "1: from flashinfer_bench.data import *: ALLOWED_DTYPES has",
        ),
        ("patch('flashinfer_bench.data.TraceSet')\n", None, "1: the string 'flashinfer_bench.data.TraceSet' may name"),
        ("if x: import flashinfer_bench as f; f.Trace\n", None, "1: an import of flashinfer_bench behind a colon"),
        (
            "try:\n    import flashinfer_bench.utils as u\nexcept ImportError:\n    u = None\nu.env_snapshot()\n",
            None,
            "5: u may be flashinfer_bench.utils or another object",
        ),
        (
            "import flashinfer_bench\nfib_schema = 1\nflashinfer_bench.Trace\n",
            None,
            "1: the program assigns fib_schema",
        ),
        (
            "from flashinfer_bench import Trace\nTrace.model_validate({}).model_dump()\n",
            "from fib_schema import Trace\nTrace.model_validate({}).model_dump()\n",
            "2: .model_dump of an object of flashinfer-bench: use fib_schema.to_plain",
        ),
    ],
)
def test_what_cannot_be_rewritten_is_reported(source: str, result: str | None, reported: str) -> None:
    assert migrated(source) == (source if result is None else result)
    assert any(finding.startswith(reported) for finding in findings(source)), findings(source)


def test_the_star_import_of_a_package_exports_all_names() -> None:
    result = migrated("from flashinfer_bench.compile.builders import *\n", is_package_init=True)
    assert result.startswith("from fib_compile import TVMFFIBuilder as CUDABuilder, PythonBuilder")


@pytest.mark.parametrize("name", ["data", "bench", "compile", "tracing", "apply"])
def test_programs_keep_only_what_is_reported(name: str) -> None:
    source = (PROGRAMS / f"{name}.py").read_text("utf-8")
    result = migrated(source)
    for finding in findings(source):
        assert re.match(r"\d+: \.model_\w+ of an object", finding), finding
    code = [line for line in result.splitlines() if "flashinfer_bench" in line]
    assert code == []


def test_a_migrated_program_runs(
    data_set: Path,
    run_program: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "bench.py"
    program.write_text(migrated((PROGRAMS / "bench.py").read_text("utf-8")))
    monkeypatch.setattr("sys.argv", ["bench.py", str(data_set)])
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out == "plain 2 of 2\n"


class TestCommand:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / ".venv").mkdir()
        for name in ("engine.py", ".venv/engine.py", "notes.txt"):
            (tmp_path / name).write_text(ENGINE)
        (tmp_path / "old.py").write_text("import flashinfer_bench\n")
        (tmp_path / "other.py").write_text("print 'an old Python'\n")
        return tmp_path

    def test_check_and_diff_write_nothing(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli(["migrate-imports", "--check", str(folder)]) == 1
        captured = capsys.readouterr()
        assert captured.out == f"would rewrite {folder}/engine.py\n"
        assert f"{folder}/old.py:1: flashinfer_bench is imported but not used" in captured.err
        assert captured.err.endswith("would change 1 file; to look at: 1 place; not valid Python: 0 files\n")
        assert cli(["migrate-imports", "--diff", str(folder)]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"--- a/{folder}/engine.py\n+++ b/{folder}/engine.py\n")
        assert "-import logging; import flashinfer_bench as fib\n+import logging\n+import fib_schema\n" in out
        assert (folder / "engine.py").read_text() == ENGINE

    def test_programs_are_rewritten_in_their_place(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli(["migrate-imports", str(folder)]) == 0
        assert capsys.readouterr().out == f"rewrote {folder}/engine.py\n"
        assert (folder / "engine.py").read_text() == MIGRATED
        assert [(folder / name).read_text() for name in (".venv/engine.py", "notes.txt")] == [ENGINE, ENGINE]
        assert cli(["migrate-imports", "--check", str(folder)]) == 0

    def test_a_file_that_is_not_python_is_reported(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "broken.py").write_text("import flashinfer_bench\ndef (\n")
        assert cli(["migrate-imports", str(folder / "broken.py"), str(folder / "engine.py")]) == 1
        captured = capsys.readouterr()
        assert "broken.py: is not valid Python: " in captured.err
        assert captured.out == f"rewrote {folder}/engine.py\n"

    def test_a_missing_path_is_a_message(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli(["migrate-imports", str(folder / "absent")]) == 2
        assert "absent" in capsys.readouterr().err

    def test_without_libcst_the_message_names_the_extra(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "libcst", None)
        assert cli(["migrate-imports", str(folder)]) == 2
        assert "pip install 'fib-compat[migrate]'" in capsys.readouterr().err


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_name_has_a_replacement_that_exists_or_a_reason(module: str, name: str) -> None:
    found = replacement(module, name)
    if isinstance(found, Origin):
        assert not found.module.startswith(("fib_compat", "flashinfer_bench"))
        assert hasattr(importlib.import_module(found.module), found.name)
    else:
        assert len(found) > 10


def test_the_guide_has_the_current_tables() -> None:
    if not PAGE.exists():
        pytest.skip("the documentation is part of the checkout only")
    page = PAGE.read_text("utf-8")
    assert page == with_tables(page), f"run python -m fib_compat.migration.guide {PAGE.relative_to(ROOT)}"
    assert tables().count("\n| `") > 100
