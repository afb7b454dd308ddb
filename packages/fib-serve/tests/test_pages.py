"""Tests of the pages: what they show to whom, escaping, login; in headless Chromium also clicks, widths and schemes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fib_serve.database import Database
from fib_serve.device_worker import DeviceState
from fib_serve.queue import claim, complete, give_up
from fib_serve.settings import Settings
from fib_serve.submissions import reject
from fib_serve.users import Role, list_entries, list_tokens, revoke_token
from fib_serve.web.access import COOKIE

from .samples import GOOD, bearer, finish, plain_solution

MakeToken = Callable[..., str]
HOSTILE = '</pre><script>window.hacked()</script><img src=x onerror="window.hacked()">"\'&\x1b[31m'
HTML = {"Accept": "text/html"}
MISSING = "/submissions/nope"
REFUSED = (MISSING, "/login")  # a browser complains of the status of these pages


@pytest.fixture
def enter(client: Any, token: MakeToken, database: Database, settings: Settings) -> Callable[..., str]:
    """Submits a solution and plays the worker; returns the id."""

    def make(
        user: str, source: str = GOOD, score: float = 2.0, log: str = "", name: str = "", verdict: str = "PASSED"
    ) -> str:
        solution = plain_solution(source, name or f"of-{user}") | {"description": HOSTILE}
        answer = client.post("/v1/submissions", json={"solution": solution}, headers=bearer(token(user)))
        assert answer.status_code == 201, answer.text
        public = {"speedup_text": f"{score:.2f}x", "latency_ms": [0.5, 1.5], "flags": [HOSTILE], "problem": HOSTILE}
        values = {"verdict": verdict, "is_ranked": verdict == "PASSED", "score": score, "summary": {"public": public}}
        return finish(database, settings.dataset, log, **values)

    return make


def test_a_browser_without_a_token_is_sent_to_the_login(client: Any) -> None:
    answer = client.get("/leaderboard/double", headers=HTML, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=/leaderboard/double"
    assert client.get("/login", headers=HTML).status_code == 200


def test_a_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(client: Any, token: MakeToken) -> None:
    text = token("alice")
    wrong = client.post("/login", data={"token": "x"}, headers=HTML)
    assert wrong.status_code == 401
    assert "not valid" in wrong.text
    foreign = client.post("/login", data={"token": text}, headers=HTML | {"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    answer = client.post("/login", data={"token": text, "next": "/queue"}, headers=HTML, follow_redirects=False)
    assert answer.headers["location"] == "/queue"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert text not in cookie
    assert "alice" in client.get("/queue", headers=HTML).text
    session = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
    client.post("/logout", headers=HTML | {"Origin": "http://testserver"})
    assert client.get("/queue", headers=HTML | session, follow_redirects=False).status_code == 303


def test_a_request_with_the_cookie_comes_from_this_site(
    client: Any, token: MakeToken, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    client.post("/login", data={"token": token("root", Role.MAINTAINER)})
    for headers in ({}, {"Origin": "null"}, {"Origin": "http://testserver:8001"}, {"Origin": "https://evil.example"}):
        assert client.post("/shutdown", headers=headers).status_code == 403
    assert client.get("/v1/quota", headers={"Origin": "http://testserver:8001"}).status_code == 403
    assert client.post("/shutdown", headers={"Origin": "http://testserver"}).status_code == 200
    with database.read() as connection:
        (entry,) = list_entries(connection)
    assert (entry["user"], entry["action"]) == ("root", "shutdown")
    assert "shutdown of the service by root" in caplog.text


def test_a_session_ends_with_its_token(client: Any, token: MakeToken, database: Database) -> None:
    client.post("/login", data={"token": token("alice")})
    with database.write() as connection:
        revoke_token(connection, list_tokens(connection)[-1]["id"])
    assert client.get("/v1/quota").status_code == 401


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/a\r\nb"]
)
def test_a_login_leads_to_this_site_only(client: Any, token: MakeToken, target: str) -> None:
    answer = client.post("/login", data={"token": token("alice"), "next": target}, headers=HTML, follow_redirects=False)
    assert answer.headers["location"] == "/leaderboard"


def test_public_pages_need_no_token_and_show_no_sources(
    make_client: Callable[..., Any], enter: Callable[..., str]
) -> None:
    identifier = enter("alice", f"{GOOD}# SECRET", log="SECRET")
    client = make_client(has_public_pages=True)
    assert "of-alice" in client.get("/leaderboard/double", headers=HTML).text
    page = client.get(f"/submissions/{identifier}", headers=HTML)
    assert page.status_code == 200
    assert "SECRET" not in page.text
    assert client.get(f"/v1/submissions/{identifier}").status_code == 401


def test_text_of_strangers_is_escaped(
    client: Any, token: MakeToken, enter: Callable[..., str], database: Database
) -> None:
    identifier = enter("alice", f"{GOOD}# {HOSTILE}", log=HOSTILE, name="<b>bold&amp;")
    with database.write() as connection:
        reject(connection, identifier, HOSTILE)
    for path in (
        "/leaderboard",
        "/leaderboard/double",
        f"/submissions/{identifier}",
        "/submissions",
        "/submissions?user=alice",
    ):
        page = client.get(path, headers=HTML | bearer(token("alice")))
        assert page.status_code == 200, path
        assert "window.hacked()</script>" not in page.text
        assert "<img" not in page.text
        assert "<b>bold" not in page.text
        assert "\x1b" not in page.text
    assert "window.hacked" in client.get(f"/submissions/{identifier}", headers=HTML | bearer(token("alice"))).text


def test_pages_of_what_does_not_exist_say_so(client: Any, token: MakeToken) -> None:
    headers = HTML | bearer(token("alice"))
    for path in ("/leaderboard/nope", "/submissions/nope", "/submissions?user=nope", "/submissions?user=%3Cscript%3E"):
        page = client.get(path, headers=headers)
        assert page.status_code == 404
        assert page.headers["content-type"].startswith("text/html")
        assert "<script>" not in page.text


def test_the_page_of_an_error_says_who_is_logged_in(client: Any, token: MakeToken) -> None:
    page = client.get(MISSING, headers=HTML | bearer(token("alice"))).text
    assert "Log out" in page
    assert "Log in" not in page


def test_a_shortened_log_or_source_says_so(client: Any, token: MakeToken, enter: Callable[..., str]) -> None:
    identifier = enter("alice", f"{GOOD}#{chr(27) * 9}{'s' * 70_000}", log="l" * 20_007)
    page = client.get(f"/submissions/{identifier}", headers=HTML | bearer(token("alice"))).text
    assert "[7 more characters]" in page
    assert f"[{len(GOOD) + 70_010 - 60_000} more characters]" in page


def test_the_contest_says_that_cpu_latencies_are_not_trusted(
    client: Any, make_client: Callable[..., Any], token: MakeToken
) -> None:
    headers = HTML | bearer(token("alice"))
    assert "not trusted" in client.get("/leaderboard/double", headers=headers).text
    assert "not trusted" not in make_client(allow_unranked=False).get("/leaderboard/double", headers=headers).text


# -- in a browser ------------------------------------------------------------------------------


@pytest.fixture
def open_tab(browser: Any, address: str, token: MakeToken) -> Iterator[Callable[..., Any]]:
    """Open a page after logging in; what a page complains of, or loads from elsewhere, fails the test."""
    messages: list[str] = []
    contexts = []

    def show(path: str, user: str = "alice", width: int = 1280, scheme: str = "light") -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme))
        tab = contexts[-1].new_page()
        tab.set_default_timeout(20_000)
        tab.on("console", lambda each: None if each.location["url"].endswith(REFUSED) else messages.append(each.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.on(
            "request", lambda request: None if request.url.startswith(address) else messages.append(request.url[:80])
        )
        tab.add_init_script("window.hacked = () => { document.title = 'hacked'; }")
        tab.goto(f"{address}{path}")
        tab.get_by_label("Token").fill(token(user))
        tab.get_by_role("button", name="Log in").click()
        return tab

    yield show
    for context in contexts:
        context.close()
    assert [message for message in messages if message != "data:,"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_visitor_logs_in_and_follows_the_leaderboard_to_a_source(
    open_tab: Callable[..., Any], enter: Callable[..., str], width: int, scheme: str
) -> None:
    enter("bob", f"{GOOD}# bob", 3.0)
    enter("alice", f"{GOOD}# {HOSTILE}", 2.0, log=HOSTILE)
    enter("alice", f"{GOOD}# again", 4.0)
    enter("bob", f"{GOOD}# wrong", name="a_name_of_words", verdict="INCORRECT_NUMERICAL")
    tab = open_tab("/leaderboard", width=width, scheme=scheme)
    tab.get_by_role("link", name="double").click()
    tab.get_by_role("heading", name="Newest submissions").wait_for()
    users = [text.split("\n")[0] for text in tab.locator("#leaderboard tbody tr td:nth-child(2)").all_inner_texts()]
    assert users == ["alice", "bob"]
    for page in ("board", "submission"):
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        tab.wait_for_load_state("load")  # the style sheet too
        assert tab.evaluate(overflow) <= 0, page
        if page == "board":
            tables = "[...document.querySelectorAll('.scroll')].map((table) => table.scrollWidth - table.clientWidth)"
            assert max(tab.evaluate(tables)) <= 0
            tab.locator("#leaderboard").get_by_role("link", name=re.compile("of-alice")).click()
    assert "return x * 2" in tab.locator("pre").last.inner_text()
    assert tab.title() != "hacked"


@pytest.mark.slow
def test_pages_work_with_the_keyboard_and_have_names_for_screen_readers(
    open_tab: Callable[..., Any], enter: Callable[..., str]
) -> None:
    enter("alice")
    tab = open_tab("/leaderboard/double")
    tab.get_by_role("heading", name="double").wait_for()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to content"
    tab.keyboard.press("Enter")
    assert tab.url.endswith("#content")
    for selector in ("table", "main", "h1", "header nav"):
        assert tab.locator(selector).count() >= 1
    assert tab.locator("table:not(:has(caption))").count() == 0
    assert tab.locator("input:visible").count() == tab.locator("label").count()
    assert tab.evaluate("document.documentElement.lang") == "en"


@pytest.mark.slow
def test_the_page_of_a_running_submission_follows_its_progress(
    client: Any, open_tab: Callable[..., Any], token: MakeToken, database: Database, settings: Settings
) -> None:
    body = {"solution": plain_solution()}
    identifier = client.post("/v1/submissions", json=body, headers=bearer(token("alice"))).json()["id"]
    tab = open_tab(f"/submissions/{identifier}")
    assert tab.locator("#result").inner_text() == "queued"
    claimed = claim(database, "cpu")
    assert claimed is not None
    tab.locator("#result", has_text="running").wait_for()
    complete(database, claimed, {"verdict": "PASSED", "passed": 2, "is_ranked": False})
    tab.locator("#result", has_text="PASSED").wait_for()


@pytest.fixture
def addresses(
    client: Any, enter: Callable[..., str], token: MakeToken, database: Database, settings: Settings
) -> dict[str, str]:
    """Addresses of all pages behind the login, with something in each of their tables, by name."""
    hardware = "AMD EPYC 9B14 96-Core Processor"
    state = DeviceState(name="cpu", hardware=hardware, harness="fib-bench 0.1", isolation=3)
    client.app.state.contest.devices.register(state)
    source = '"""Twice the input."""\n\n\ndef run(x):\n    return x * 2.0  # a comment\n'
    log = "warning: a line of a log " + "x" * 300
    ranked, rejected = (
        enter(user, f"{source}# {user}\n", score, log) for user, score in (("alice", 2.0), ("bob", 3.0))
    )
    enter("alice", f"{source}# again\n", 4.0, name="a-rather-long-name-of-a-solution-that-nobody-shortened")
    with database.write() as connection:
        reject(connection, rejected, "copied")
    others = []
    for index in range(3):
        body = {"solution": plain_solution(f"{GOOD}# {index}")}
        others.append(client.post("/v1/submissions", json=body, headers=bearer(token("alice"))).json()["id"])
    for _ in others[:2]:
        claimed = claim(database, "cpu")
        assert claimed is not None
        if claimed.submission.id == others[0]:
            give_up(database, others[0], "its evaluation took more than 600 s, the limit of this service")
    submissions = {
        "ranked": ranked,
        "rejected": rejected,
        "failed": others[0],
        "running": others[1],
        "queued": others[2],
    }
    return {
        "leaderboards": "/leaderboard",
        "leaderboard": "/leaderboard/double",
        "submissions": "/submissions",
        "user": "/submissions?user=alice",
        "queue": "/queue",
        "error": MISSING,
        **{name: f"/submissions/{identifier}" for name, identifier in submissions.items()},
    }


def serious_findings(tab: Any, axe_core: str) -> list[tuple[str, str]]:
    """Findings of axe-core that bar people from using a page: the rule, and an element."""
    tab.evaluate(axe_core)
    found = tab.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1400, "light"), (1400, "dark")])
def test_no_page_has_a_serious_finding_of_accessibility_or_is_wider_than_the_window(
    address: str,
    open_tab: Callable[..., Any],
    addresses: dict[str, str],
    axe_core: str,
    width: int,
    scheme: str,
) -> None:
    tab = open_tab("/leaderboard", width=width, scheme=scheme)
    tab.get_by_role("heading", name="Leaderboards").wait_for()
    findings = {}
    for name, path in {**addresses, "login": "/login"}.items():
        tab.goto(f"{address}{path}")
        tab.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        findings[name] = serious_findings(tab, axe_core)
        if tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            findings[name].append(("wider than the window", str(width)))
    tab.get_by_label("Token").fill("fib_unknown")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Log in").click()
    findings["refused login"] = serious_findings(tab, axe_core)
    assert findings == {name: [] for name in findings}
