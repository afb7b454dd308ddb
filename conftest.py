"""Pytest configuration for the tests of all packages."""

import faulthandler
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

# A weekly run sets HYPOTHESIS_PROFILE=full. An example that is slow on a busy machine is not wrong.
_EXAMPLES = {"default": 20, "full": 500}
if importlib.util.find_spec("hypothesis"):  # some packages test without it
    from hypothesis import HealthCheck, settings

    for _name, _examples in _EXAMPLES.items():
        settings.register_profile(
            _name, max_examples=_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Compiling native guards takes 15 s of processor time in each new cache. Tests of native guards build them themselves.
os.environ.setdefault("FIB_APPLY_NATIVE", "0")


_CRASHES = "FIB_TEST_CRASHES"  # the folder in which test processes leave their stacks if they crash


@pytest.hookimpl(trylast=True)  # pytest has them written to stderr, which is far up in the output of a long run
def pytest_configure(config: pytest.Config) -> None:
    """Have the stacks of a test process that crashes written to a file, which the summary prints."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests send it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if (name := os.environ.get("PYTEST_XDIST_WORKER")) is None:
        os.environ[_CRASHES] = tempfile.mkdtemp(prefix="fib-crashes-")
    elif folder := os.environ.get(_CRASHES):
        file = Path(folder, name).open("a")  # noqa: SIM115 - open until the process ends
        config.add_cleanup(file.close)
        faulthandler.enable(file)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the stacks of test processes that crashed."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    folder = Path(os.environ.pop(_CRASHES))
    for path in sorted(folder.iterdir()):
        if text := path.read_text(errors="replace"):
            terminalreporter.section(f"stacks of {path.name}, which crashed")
            terminalreporter.write_line(text)
    shutil.rmtree(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run one test at a time that needs a GPU, whichever process runs it: timings need the device alone."""
    if item.get_closest_marker("gpu") is None:
        return (yield)
    import fcntl

    path = Path(tempfile.gettempdir(), f"fib-gpu-tests-{os.getuid()}.lock")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # the name is known to other users, who could plant a link
    with open(os.open(path, flags, 0o600)) as lock:  # noqa: PTH123 - a descriptor
        fcntl.flock(lock, fcntl.LOCK_EX)
        return (yield)


@pytest.fixture(scope="session")
def write_distribution() -> Callable[[Path, str, str], None]:
    """Writes the metadata of an installed distribution with entry points into a folder of the search path."""

    def write(folder: Path, name: str, entry_points: str) -> None:
        information = folder / f"{name}-1.0.dist-info"
        information.mkdir(exist_ok=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(entry_points)

    return write


@pytest.fixture(autouse=True)
def _root_logging() -> Generator[None]:
    """Remove handlers that commands add to the root logger, as an MCP server does: they keep the stderr of a test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="module", autouse=True)
def _end_judges() -> Generator[None]:
    """End the judge processes that `fib_bench.evaluate` keeps: tests of other modules count processes."""
    yield
    if "fib_bench.api" in sys.modules:
        sys.modules["fib_bench.api"].close()


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    """A headless Chromium. Its tests are skipped where there is none, but fail on GitHub, whose machines have one."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the group dev")
    path = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        (pytest.fail if os.environ.get("GITHUB_ACTIONS") else pytest.skip)(
            f"no browser found (looked for {', '.join(_BROWSERS)})"
        )
    with sync.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def serious_findings() -> Callable[[Any], list[tuple[str, str]]]:
    """Finds with axe-core what bars people from using a page: the rule, and an element.

    Where there is playwright, axe-core must not be missing.
    """
    pytest.importorskip("playwright", reason="needs playwright, of the group dev")
    axe_core = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")

    def find(tab: Any) -> list[tuple[str, str]]:
        tab.evaluate(axe_core)
        found = tab.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]

    return find
