"""Tests of the manual and of the packages' READMEs: examples run, lists are complete, and READMEs are short."""

import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from fib_agents.guides import GUIDES
from fib_agents.toolbox import TOOLS
from fib_apply import ApplyConfig
from fib_bench import BenchmarkConfig
from fib_bench.evaluators import evaluator_names
from fib_tracer import TracingConfigRegistry

DOCS = Path(__file__).resolve().parent.parent
MANUAL = sorted((DOCS / "manual").glob("*.md"))
READMES = sorted(DOCS.parent.glob("packages/*/README.md"))


def page(name):
    return (DOCS / "manual" / name).read_text()


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.slow  # fib_bench starts its processes
@pytest.mark.parametrize(
    "example", [pytest.param(block, id=path.stem) for path in MANUAL for block in blocks(path.read_text(), "python")]
)
def test_python_examples_of_the_manual_run(example, tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    exec(compile(example, "the manual", "exec"), {})


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_a_readme_of_a_package_is_short_and_has_the_usual_parts(readme):
    text = readme.read_text()
    assert len(text.split()) <= 400
    assert blocks(text, "python")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    if readme.parent.name != "fib-compat":
        assert headings == ["Install", "Quick start", "Uses", "Limits", "Links"]


def test_every_setting_of_routing_is_in_its_table():
    rows = dict(re.findall(r"^\| (`[^|]+) \| `([^|]*)` \|", page("routing.md"), re.MULTILINE))
    told = {name: default for names, default in rows.items() for name in re.findall(r"`(\w+)`", names)}
    defaults = {field.name: getattr(ApplyConfig(), field.name) for field in attrs.fields(ApplyConfig)}
    have = {name: f'"{value}"' if isinstance(value, str) else repr(value) for name, value in defaults.items()}
    assert told == have


@pytest.mark.parametrize("settings", blocks(page("tracing.md"), "yaml"))
def test_settings_of_tracing_are_valid(settings):
    assert TracingConfigRegistry.from_yaml(settings).rules


def test_all_policies_of_tracing_are_named():
    program = (  # of its own: other tests of this process may have registered policies
        "from fib_tracer import PolicyRegistry as r; print(*r.list_filter_policies(), *r.list_input_dump_policies())"
    )
    names = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert names
    assert [name for name in names if f'"{name}"' not in page("tracing.md")] == []


@pytest.mark.parametrize("settings", blocks(page("settings.md"), "yaml"))
def test_settings_of_a_benchmark_are_valid(settings, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(settings)
    assert BenchmarkConfig.from_yaml(file).op_type_config


def test_all_evaluators_are_named_in_their_order_of_precedence():
    told = re.findall(r"^\| `(\w+)` \|", page("evaluators.md"), re.MULTILINE)
    assert tuple(told) == evaluator_names()


def test_all_tools_and_guides_of_agents_are_named():
    text = page("agents.md")
    assert [name for name in TOOLS if f"`{name}`" not in text] == []
    assert [name for name in GUIDES if name not in text] == []
