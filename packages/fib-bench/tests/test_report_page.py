"""Tests of the report page: safe with hostile text, complete without a network, interactive in a browser."""

import json
import re

import pytest
from fib_bench.report.page import ChartsUnavailable, _json_block, _vega, page_of
from fib_schema import TraceSet
from fib_schema.display import escape_controls
from hypothesis import given
from hypothesis import strategies as st

from .samples import make_result, trace_set_of

pytest.importorskip("vl_convert", reason="needs the extra 'report'")


HOSTILE = "</script><img src=x onerror=hacked()>"


def page_with(*traces):
    return page_of(trace_set_of(*traces))


def section_of(*traces):
    """The columns of the only section of a page."""
    return block(page_with(*traces), "section-0")


def block(page, name):
    match = re.search(f'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    return json.loads(match[1])


def full(solution, workload, latency, **more):
    """A trace with all that this harness writes."""
    extra = {
        "timing": {"interval_ms": [latency * 0.99, latency * 1.01], "call_ms": latency * 2, "method": "handshake"},
        "speed_of_light": {"bytes": 4e6, "operations": 8e6, "attainable_fraction": round(0.1 / latency, 4)},
        "baseline": {"solution": "lib", "latency_ms": 1.0, "speedup_factor": 1 / latency},
    }
    return make_result(solution, workload, latency, performance_extra=extra, **more)


class TestDigest:
    def test_columns_say_what_traces_say(self):
        traces = [full("a", "1", 0.5), make_result("a", "2", log="boom"), make_result("b", "1", 2.0)]
        columns = section_of(*traces)
        assert (columns["workloads"], columns["solutions"], columns["axes"]) == (["1", "2"], ["b", "a"], {"n": [4, 4]})
        assert (columns["solution"], columns["workload"], columns["status"]) == ([0, 1, 1], [0, 0, 1], [0, 0, 4])
        assert (columns["us"], columns["low"], columns["call"]) == (
            [2000, 500, None],
            [None, 495, None],
            [None, 1000, None],
        )
        assert (columns["log"], columns["logs"]) == ([None, None, 0], ["boom"])

    def test_columns_that_say_nothing_are_left_out(self):
        columns = section_of(make_result("a", "1"))
        assert not {"us", "low", "call", "fraction", "speedup"} & set(columns)

    def test_long_logs_keep_their_ends(self):
        (kept,) = section_of(make_result("a", "1", log="first\n" + "x" * 9000 + "last"))["logs"]
        assert kept.startswith("first\n")
        assert kept.endswith("last")
        assert len(kept) < 2100

    def test_failures_of_one_cause_have_one_index(self):
        logs = {"1": "3 of 8 elements are wrong", "2": "5 of 9 elements are wrong", "3": "boom"}
        traces = [make_result("a", uuid, log=log) for uuid, log in logs.items()] + [make_result("a", "4", 1.0)]
        columns = section_of(*traces)
        assert columns["cause"] == [0, 0, 1, None]

    def test_the_reference_and_the_baselines_are_columns_by_workload(self):
        traces = [full("a", "1", 0.5, reference_ms=2.0), full("b", "1", 0.25, reference_ms=4.0)]
        columns = section_of(*traces, make_result("a", "2"))
        assert columns["reference"] == [3000, None]
        assert columns["baselines"] == {"lib": [1000, None]}

    def test_without_the_extra_it_is_said_what_to_install(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
        _vega.cache_clear()
        with pytest.raises(ChartsUnavailable, match=r"pip install 'fib-bench\[report\]'"):
            page_of(TraceSet())


class TestSafety:
    def test_no_text_of_a_solution_becomes_markup(self):
        traces = [make_result("a", "1", log=HOSTILE), make_result("b<b>", HOSTILE.replace("/", ""), 1.0)]
        page = page_with(*traces)
        assert "<img" not in page.replace(_vega(), "")
        assert page.count("</script>") == 2 + 2  # the blocks and the scripts
        assert block(page, "section-0")["logs"] == [HOSTILE]

    @given(st.text())
    def test_every_text_comes_out_of_its_block_with_its_control_characters_escaped(self, text):
        made = _json_block("x", {"log": text, text: 1})
        assert set("<>&") & set(made.partition(">")[2].removesuffix("</script>")) == set()
        assert block(made, "x") == {"log": escape_controls(text)} | {escape_controls(text): 1}

    def test_nothing_is_loaded_and_only_its_own_scripts_run(self):
        page = page_with(make_result("a", "1", 1.0))
        (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe-eval" not in policy
        assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"'](?!data:)", page.split("<body>")[0])

    @pytest.mark.parametrize("speedup", [float("nan"), float("inf")])
    def test_numbers_that_json_does_not_know_are_left_out(self, speedup):
        page = page_with(make_result("a", "1", 1.0, speedup=speedup), make_result("a", "2", 0.0, speedup=1.0))
        assert block(page, "digest")["leaders"][0]["speedup"] is None
        assert "NaN" not in json.dumps(block(page, "section-0"))


@pytest.fixture
def show(browser, tmp_path):
    """Open a page; what it complains of, and what it wants to load, fails the test."""
    messages = []
    contexts = []

    def show(page, width=1280, scheme="light"):
        path = tmp_path / "page.html"
        path.write_text(page, "utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme))
        tab = contexts[-1].new_page()
        tab.set_default_timeout(20_000)
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.on("request", lambda request: messages.append(request.url) if request.url != path.as_uri() else None)
        tab.add_init_script("window.hacked = () => { document.title = 'hacked'; }")
        tab.goto(path.as_uri())
        return tab

    yield show
    for context in contexts:
        context.close()
    assert messages == []


def rows_of(tab):
    return [text.splitlines()[0] for text in tab.locator("#leaderboard td.name").all_inner_texts()]


class TestInABrowser:
    @pytest.fixture
    def page(self):
        sizes = {"1": 1, "2": 16, "3": 256}
        traces = [
            full(name, workload, speed * size, axes={"n": size}, reference_ms=2.0 * size)
            for name, speed in (("slow", 1.9), ("fast", 0.5))
            for workload, size in sizes.items()
        ]
        traces += [make_result("broken", workload, log=f"{HOSTILE}\nValueError") for workload in sizes]
        traces.append(make_result("other", "1", 1.0, definition="triple", hardware="NVIDIA H200"))
        return page_with(*traces)

    def test_the_leaderboard_is_filtered_and_sorted(self, show, page):
        tab = show(page)
        assert rows_of(tab) == ["fast", "slow", "broken", "other"]
        assert "HTML" not in tab.title()
        tab.get_by_role("button", name="speedup").click()
        assert rows_of(tab) == ["fast", "slow", "broken", "other"]  # within each definition
        tab.get_by_role("button", name="speedup").click()
        assert rows_of(tab) == ["slow", "fast", "broken", "other"]
        tab.locator("#filter-text").fill("TRIP")
        assert rows_of(tab) == ["other"]
        assert tab.locator("details.definition:visible").count() == 1
        tab.locator("#filter-text").fill("")
        tab.locator("#filter-state").select_option("failing")
        assert rows_of(tab) == ["broken"]
        tab.locator("#filter-state").select_option("")
        tab.locator("#filter-hardware").select_option("NVIDIA H200")
        assert rows_of(tab) == ["other"]

    def test_a_section_draws_its_charts_when_it_is_opened(self, show, page):
        tab = show(page)
        assert tab.locator(".chart").count() == 0
        tab.locator("#leaderboard a", has_text="double").first.click()
        tab.wait_for_selector(".charts[data-drawn]")
        assert tab.locator(".chart svg").count() == 1
        assert tab.locator("figcaption").all_inner_texts()[0].startswith("Latency against n")
        chip = tab.get_by_role("button", name="slow", exact=True)
        assert chip.get_attribute("aria-pressed") == "true"
        chip.click()
        assert tab.get_by_role("button", name="slow", exact=True).get_attribute("aria-pressed") == "false"
        tab.wait_for_function("document.querySelectorAll('.chart svg').length === 1")
        tab.get_by_text("All 9 traces").click()
        tab.locator("details.definition details table tbody tr").nth(8).wait_for()

    def test_what_solutions_wrote_is_shown_as_text_and_does_nothing(self, show, page):
        tab = show(page)
        tab.locator("details.definition summary").first.click()
        tab.locator(".failure summary").first.click()
        assert tab.locator(".failure pre").first.inner_text().startswith(HOSTILE)
        tab.wait_for_selector(".charts[data-drawn]")
        tab.locator(".chart svg .mark-symbol path").first.hover(force=True)
        assert (tab.title(), tab.locator("img").count()) == ("data set: benchmark report", 0)

    def test_failures_of_one_cause_are_one_entry_with_its_workloads(self, show, page):
        tab = show(page)
        tab.locator("details.definition summary").first.click()
        tab.wait_for_selector(".failure")
        assert tab.locator(".failure").count() == 1
        tab.locator(".failure summary").click()
        assert tab.locator(".failure p").first.inner_text() == "broken on n=4 (1); n=4 (2); n=4 (3)"
        assert tab.locator(".chip").all_inner_texts() == ["fast", "slow"]
        assert tab.locator(".key").all_inner_texts() == ["reference", "lib"]

    def test_all_definitions_are_open_in_print(self, show, page):
        tab = show(page)
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        tab.wait_for_selector("#definition-1[open] .charts[data-drawn]")
        tab.emulate_media(media="print")
        assert not tab.locator("#filters").is_visible()

    def test_it_fits_a_phone(self, show, page):
        tab = show(page, width=390, scheme="dark")
        tab.locator("details.definition summary").first.click()
        tab.wait_for_selector(".charts[data-drawn]")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.locator("#theme").click()
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before

    @pytest.mark.slow
    @pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1400, "dark")])
    def test_it_has_no_serious_finding_of_accessibility(self, show, page, serious_findings, width, scheme):
        tab = show(page, width=width, scheme=scheme)
        assert serious_findings(tab) == []
        for summary in tab.locator("details.definition > summary").all():
            summary.click()
            tab.wait_for_selector(".charts[data-drawn]")
        tab.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        assert serious_findings(tab) == []


def test_infinities_of_arithmetic_do_not_stop_a_page():
    """Sums of huge latencies overflow; JSON has no infinity."""
    assert '{"a":["Infinity","NaN"]}' in _json_block("data", {"a": [1e308 * 10, float("nan")]})
