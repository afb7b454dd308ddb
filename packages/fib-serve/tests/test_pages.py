"""Tests of the pages: what they show to whom, escaping, login; in headless Chromium also clicks, widths and schemes."""

import re
from datetime import UTC, datetime

import attrs
import pytest
from fib_serve.device_worker import DeviceState
from fib_serve.queue import claim, complete, give_up
from fib_serve.service import prepare
from fib_serve.submissions import get_solution, reject
from fib_serve.users import Role, list_tokens, revoke_token
from fib_serve.web.access import COOKIE

from .samples import GOOD, actions_of, bearer, finish, plain_solution, write_data_set

HOSTILE = '</pre><script>window.hacked()</script><img src=x onerror="window.hacked()">"\'&\x1b[31m'
HTML = {"Accept": "text/html"}
MISSING = "/submissions/nope"
REFUSED = (MISSING, "/login")  # a browser complains of the status of these pages


@pytest.fixture
def enter(client, token, database, settings):
    """Submits a solution and plays the worker; returns the id."""

    def make(user, source=GOOD, score=2.0, log="", name="", verdict="PASSED"):
        solution = plain_solution(source, name or f"of-{user}") | {"description": HOSTILE}
        answer = client.post("/v1/submissions", json={"solution": solution}, headers=bearer(token(user)))
        assert answer.status_code == 201, answer.text
        speedup = f"{score:.2f}x (0.000746 .. 12.6) noise"
        public = {"speedup_text": speedup, "latency_ms": [0.5, 1.5], "flags": [HOSTILE], "problem": HOSTILE}
        values = {"verdict": verdict, "is_ranked": verdict == "PASSED", "score": score, "summary": {"public": public}}
        return finish(database, settings.dataset, log, **values)

    return make


def test_a_browser_without_a_token_is_sent_to_the_login(client):
    answer = client.get("/leaderboard/double", headers=HTML, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login"
    assert client.get("/login", headers=HTML).status_code == 200


def test_a_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(client, token):
    text = token("alice")
    wrong = client.post("/login", data={"token": "x"}, headers=HTML)
    assert wrong.status_code == 401
    assert "not valid" in wrong.text
    foreign = client.post("/login", data={"token": text}, headers=HTML | {"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    answer = client.post("/login", data={"token": text}, headers=HTML, follow_redirects=False)
    assert answer.headers["location"] == "/leaderboard"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert text not in cookie
    assert "alice" in client.get("/submissions", headers=HTML).text
    session = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
    client.post("/logout", headers=HTML | {"Origin": "http://testserver"})
    assert client.get("/submissions", headers=HTML | session, follow_redirects=False).status_code == 303


def test_a_request_with_the_cookie_comes_from_this_site(client, token, database, caplog):
    client.post("/login", data={"token": token("root", Role.MAINTAINER)})
    for origin in ("null", "http://testserver:8001", "https://evil.example", "http://[", "http://a]b"):
        refused = client.post("/shutdown", headers={"Origin": origin})
        assert refused.status_code == 403, origin
        assert f"Origin {origin!r} is not the Host 'testserver'; a reverse proxy must" in refused.json()["detail"]
    assert {client.post("/shutdown", headers=h).status_code for h in ({}, {"Origin": "null", "Host": ""})} == {403}
    assert client.get("/v1/devices", headers={"Origin": "http://testserver:8001"}).status_code == 403
    assert client.post("/shutdown", headers={"Origin": "http://testserver"}).status_code == 200
    assert actions_of(database) == ["shutdown"]
    assert "shutdown of the service by root" in caplog.text


def test_a_session_ends_with_its_token(client, token, database):
    client.post("/login", data={"token": token("alice")})
    with database.write() as connection:
        revoke_token(connection, list_tokens(connection)[-1]["id"])
    assert client.get("/v1/devices").status_code == 401


def test_many_logins_of_one_token_end_no_session_of_others(client, token):
    gate, (busy, mine) = client.app.state.gate, (token("alice"), token("bob"))
    session = gate.open_session(mine)
    sessions = [gate.open_session(busy) for _ in range(10_000)]
    assert client.get("/v1/devices", headers={"Cookie": f"{COOKIE}={session}"}).status_code == 200
    assert sessions[-1] in gate.sessions
    assert len(gate.sessions) <= 51


def test_published_sources_are_for_all_readers(make_client, enter, token):
    identifier = enter("alice", f"{GOOD}# SOURCE")
    page = make_client(publish_sources=True).get(f"/submissions/{identifier}", headers=HTML | bearer(token("bob")))
    assert "# SOURCE" in page.text


@pytest.mark.parametrize("sizes", [(), (300,)])
def test_a_definition_without_hidden_workloads_shows_and_ranks_by_public_ones(
    make_client, enter, token, tmp_path, sizes, database, settings, caplog
):
    hidden = str(write_data_set(tmp_path / "hidden", "secret", sizes))
    prepare(attrs.evolve(settings, hidden=hidden), database)
    assert ("without hidden workloads rank by public ones: double" in caplog.text) is (not sizes)
    client, identifier = make_client(hidden=hidden), enter("alice")
    for path in ("/leaderboard", "/leaderboard/double", "/submissions", f"/submissions/{identifier}"):
        page = client.get(path, headers=HTML | bearer(token("alice"))).text
        assert (not sizes or path.endswith(identifier)) == ("2.00x" in page), path
        assert bool(sizes) == ("idden workloads" in page) or path == "/submissions"


def test_public_pages_need_no_token_and_show_no_sources(make_client, enter):
    identifier = enter("alice", f"{GOOD}# SECRET", log="SECRET")
    client = make_client(has_public_pages=True)
    assert "of-alice" in client.get("/leaderboard/double", headers=HTML).text
    page = client.get(f"/submissions/{identifier}", headers=HTML)
    assert page.status_code == 200
    assert "SECRET" not in page.text
    assert client.get(f"/v1/submissions/{identifier}").status_code == 401


def test_text_of_strangers_is_escaped(client, token, enter, database):
    identifier = enter("alice", f"{GOOD}# {HOSTILE}", log=HOSTILE, name="<b>bold&amp;")
    with database.write() as connection:
        reject(connection, identifier, HOSTILE)
    lists = ("/leaderboard", "/leaderboard/double", "/submissions", "/submissions?user=alice")
    for path in (*lists, f"/submissions/{identifier}"):
        page = client.get(path, headers=HTML | bearer(token("alice")))
        assert page.status_code == 200, path
        assert "window.hacked()</script>" not in page.text
        assert "<img" not in page.text
        assert "<b>bold" not in page.text
        assert "\x1b" not in page.text
    assert "window.hacked" in client.get(f"/submissions/{identifier}", headers=HTML | bearer(token("alice"))).text


def test_pages_of_what_does_not_exist_say_so(client, token):
    headers = HTML | bearer(token("alice"))
    for path in ("/leaderboard/nope", "/submissions/nope", "/leaderboard/%3Cscript%3E", "/%3Cscript%3E", "/logout"):
        page = client.get(path, headers=headers)
        assert (page.status_code, page.headers.get("allow")) == ((405, "POST") if path == "/logout" else (404, None))
        assert page.headers["content-type"].startswith("text/html")
        assert "<script>" not in page.text
        assert '<a href="/leaderboard">All leaderboards</a>' in page.text
    assert client.get("/v1/nope", headers=bearer(token("alice"))).json()["detail"] == "Not Found"
    assert client.post("/v1/submissions", headers=HTML, follow_redirects=False).json()["status"] == 401


def test_the_page_of_an_error_says_who_is_logged_in(client, token):
    for path in (MISSING, "/nope"):
        page = client.get(path, headers=HTML | bearer(token("alice"))).text
        assert "Log out" in page
        assert "Log in" not in page


def test_a_shortened_log_or_source_says_so(client, token, enter):
    identifier = enter("alice", f"{GOOD}#{chr(27) * 9}{'s' * 70_000}", log="l" * 20_007)
    page = client.get(f"/submissions/{identifier}", headers=HTML | bearer(token("alice"))).text
    assert "[7 more characters]" in page
    assert f"[{len(GOOD) + 70_010 - 60_000} more characters]" in page


def test_a_failed_workload_has_its_reason_in_one_line(client, token, enter):
    log = f"Traceback (most recent call last):\n  run(x)\nValueError: <b>{'v' * 300}"
    identifier = enter("alice", log=log, verdict="RUNTIME_ERROR")
    page = client.get(f"/submissions/{identifier}", headers=HTML | bearer(token("alice"))).text
    assert page.count(f">ValueError: &lt;b&gt;{'v' * 102}...</small>") == 2


def test_the_page_of_a_definition_shows_the_best_speedup_over_time(client, token, enter):
    headers = HTML | bearer(token("alice"))
    for index, score in enumerate((2.0, 3.0, 2.5, 4.0)):
        page = client.get("/leaderboard/double", headers=headers).text
        assert ("Best speedup over time" in page) == (index > 1)
        enter(("alice", "bob")[index % 2], f"{GOOD}# {index}", score)
    page = client.get("/leaderboard/double", headers=headers).text
    assert "3 records, to 4x" in page
    assert page.count("<circle") == 3
    assert re.search(r'class="soft times"><span><time>[-\d: ]{16} UTC</time></span> <span><time>', page)


def test_all_sources_and_logs_of_a_page_are_bounded_together(client, token, database, settings):
    plain = plain_solution()
    plain["sources"] += [{"path": f"{index}.py", "content": "s" * 60_000} for index in range(20)]
    answer = client.post("/v1/submissions", json={"solution": plain}, headers=bearer(token("alice")))
    finish(database, settings.dataset, "l" * 3_000_000)
    page = client.get(f"/submissions/{answer.json()['id']}", headers=HTML | bearer(token("alice"))).text
    assert len(page) < 350_000
    assert "[60000 more characters]" in page
    assert "There are more: the API has all" in page


def test_the_contest_says_that_cpu_latencies_are_not_trusted(client, make_client, token):
    headers = HTML | bearer(token("alice"))
    assert "not trusted" in client.get("/leaderboard/double", headers=headers).text
    assert "not trusted" not in make_client(allow_unranked=False).get("/leaderboard/double", headers=headers).text


def test_the_page_of_a_definition_says_what_to_submit_and_how(client, token):
    page = client.get("/leaderboard/double", headers=HTML | bearer(token("alice"))).text
    texts = ("float32[n]", "float32: absolute 0.01, relative 0.01", "2: n=4; n=8", "FIB_SERVE_URL=http://testserver")
    for text in texts:
        assert text in page
    assert "fib-serve submit kernel.py --definition double --wait" in page
    starter = client.get("/leaderboard/double/kernel.py", headers=bearer(token("alice"))).text
    assert "def run(x):" in starter
    assert 'id="upload"' in page


def test_a_kernel_is_uploaded_with_the_form(client, token, database):
    client.post("/login", data={"token": token("alice")})
    headers = HTML | {"Origin": "http://testserver"}
    form = {
        "name": "mine",
        "path": "kernel.py",
        "language": "python",
        "function": "run",
        "source": "def run(x):\r\n  0",
    }
    answer = client.post("/leaderboard/double", data=form, headers=headers, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"][:13]) == (303, "/submissions/")
    with database.read() as connection:
        (source,) = get_solution(connection, answer.headers["location"][13:]).sources
    assert (source.path, source.content) == ("kernel.py", "def run(x):\n  0")
    wrong = client.post("/leaderboard/double", data=form | {"path": "../x"}, headers=headers)
    assert wrong.status_code == 422
    assert "Not accepted" in wrong.text
    assert client.post("/leaderboard/double", data=form).status_code == 403, "a form of another site"


def test_the_contest_has_a_title_rules_a_deadline_and_a_search(make_client, token):
    client = make_client(title="Doubling", rules="One <kernel> each.", deadline=datetime(2020, 1, 1, tzinfo=UTC))
    headers = HTML | bearer(token("alice"))
    page = client.get("/leaderboard", headers=headers).text
    for text in ("<h1>Doubling</h1>", "One &lt;kernel&gt; each.", "ended at <time>2020-01-01 00:00 UTC", "double</a>"):
        assert text in page
    assert "double</a>" in client.get("/leaderboard?search=TWICE", headers=headers).text
    assert "No definition" in client.get("/leaderboard?search=nope", headers=headers).text
    late = client.post("/v1/submissions", json={"solution": plain_solution()}, headers=bearer(token("alice")))
    assert late.status_code == 403
    assert "the contest ended at 2020-01-01 00:00:00+00:00" in late.json()["detail"]


@pytest.fixture
def open_tab(browser, address, token):
    """Open a page after logging in; what a page complains of, or loads from elsewhere, fails the test."""
    messages = []
    contexts = []

    def show(path, user="alice", width=1280, scheme="light"):
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
        tab.wait_for_url(f"{address}/leaderboard")
        tab.goto(f"{address}{path}")
        return tab

    yield show
    for context in contexts:
        context.close()
    assert [message for message in messages if message != "data:,"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_visitor_logs_in_and_follows_the_leaderboard_to_a_source(open_tab, enter, width, scheme):
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
def test_pages_work_with_the_keyboard_and_have_names_for_screen_readers(open_tab, enter):
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
    assert (
        tab.locator("input:visible, select:visible, textarea:visible").count() == tab.locator("label:visible").count()
    )
    assert tab.evaluate("document.documentElement.lang") == "en"


@pytest.mark.slow
def test_the_page_of_a_running_submission_follows_its_progress(client, open_tab, token, database, settings):
    body = {"solution": plain_solution()}
    identifier = client.post("/v1/submissions", json=body, headers=bearer(token("alice"))).json()["id"]
    tab = open_tab(f"/submissions/{identifier}")
    assert tab.locator("#result").inner_text() == "queued"
    claimed = claim(database, "cpu", 2)
    assert claimed is not None
    tab.locator("#result", has_text="running").wait_for()
    complete(database, claimed, {"verdict": "PASSED", "passed": 2, "is_ranked": False})
    tab.locator("#result", has_text="PASSED").wait_for()


@pytest.fixture
def addresses(client, enter, token, database, settings):
    """Addresses of all pages behind the login, with something in each of their tables, by name."""
    hardware = "AMD EPYC 9B14 96-Core Processor"
    state = DeviceState(name="cpu", hardware=hardware, isolation=3)
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
        claimed = claim(database, "cpu", 2)
        if claimed.submission.id == others[0]:
            give_up(database, others[0], "its evaluation took more than 600 s, the limit of this service")
    names = ("ranked", "rejected", "failed", "running", "queued")
    submissions = dict(zip(names, (ranked, rejected, *others[:3]), strict=True))
    return {
        "leaderboards": "/leaderboard",
        "leaderboard": "/leaderboard/double",
        "submissions": "/submissions",
        "user": "/submissions?user=alice",
        "error": MISSING,
        **{name: f"/submissions/{identifier}" for name, identifier in submissions.items()},
    }


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1400, "light"), (1400, "dark")])
def test_no_page_has_a_serious_finding_of_accessibility_or_is_wider_than_the_window(
    address, open_tab, addresses, serious_findings, width, scheme
):
    tab = open_tab("/leaderboard", width=width, scheme=scheme)
    tab.get_by_role("heading", name="Leaderboards").wait_for()
    findings = {}
    for name, path in {**addresses, "login": "/login"}.items():
        tab.goto(f"{address}{path}")
        tab.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        findings[name] = serious_findings(tab)
        if tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            findings[name].append(("wider than the window", str(width)))
    tab.get_by_label("Token").fill("fib_unknown")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Log in").click()
    findings["refused login"] = serious_findings(tab)
    assert findings == {name: [] for name in findings}
