"""Tests of the built site in a headless Chromium: width, accessibility, search and copy buttons."""

import http.server
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as ``python tools/dev.py docs`` does."""
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("needs the dependency group docs")
    folder = tmp_path_factory.mktemp("site")
    words = ["-n", "-W", "-q", "-b", "html", "-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def address(site):
    """The address of a server for the site: a browser copies text for pages of a server only."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(site))

        def log_message(self, *arguments):
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def pages_of(site):
    paths = (path.relative_to(site) for path in site.rglob("*.html"))
    return sorted(str(path) for path in paths if not path.parts[0].startswith("_"))


def test_no_page_is_wider_than_a_phone(site, address, browser):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    tab, wide = context.new_page(), {}
    pages = pages_of(site)
    assert len(pages) > 50
    for page in pages:
        tab.goto(f"{address}/{page}")
        wide[page] = tab.evaluate("document.scrollingElement.scrollWidth")
    context.close()
    assert {page: width for page, width in wide.items() if width > 390} == {}


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1400, "dark")])
def test_no_page_has_a_serious_finding_of_accessibility(site, address, browser, serious_findings, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    tab, findings = context.new_page(), []
    for page in pages_of(site):
        tab.goto(f"{address}/{page}")
        findings += [(page, *finding) for finding in serious_findings(tab)]
    context.close()
    assert findings == []


def test_the_search_finds_a_page_by_a_word_of_its_text(address, browser):
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(f"{address}/index.html")
    tab.locator("input.sidebar-search").fill("quarantine")
    tab.locator("input.sidebar-search").press("Enter")
    tab.locator("ul.search li a", has_text="Route calls").first.click()
    assert tab.title().startswith("Route calls")
    context.close()


def test_a_button_copies_commands_without_prompts_and_output(address, browser):
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    tab = context.new_page()
    tab.goto(f"{address}/how-to/an-evaluator.html")
    block = tab.locator("div.highlight-console").first
    block.hover()
    block.locator("button.copybtn").click()
    assert tab.evaluate("navigator.clipboard.readText()") == "PYTHONPATH=. python try_it.py"
    context.close()
