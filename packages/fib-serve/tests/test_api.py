"""Tests of the HTTP API in this process: documented routes, /v1, access, errors. Nothing is evaluated here."""

import asyncio
import gzip
import json
import threading
from typing import Any
from urllib.parse import urlencode

import attrs
import pytest
from fib_serve.contest import DeviceState
from fib_serve.queue import claim
from fib_serve.submissions import find_submissions, get_solution, list_submissions, list_traces, reject, unreject
from fib_serve.users import Role, list_tokens, local_principal, revoke_token
from fib_serve.web import api
from pydantic import TypeAdapter
from sqlalchemy.exc import OperationalError

from .samples import GOOD, actions_of, bearer, finish, plain_solution

Client = Any


def submit(client, token, source=GOOD, name="mine", **more):
    body = {"solution": plain_solution(source, name), **more}
    return client.post("/v1/submissions", json=body, headers=bearer(token))


def assert_problem(answer, status, text):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert text in body["detail"]


@pytest.mark.parametrize("route", ["/v1/submissions", "/evaluate"])
def test_halves_of_surrogate_pairs_are_refused(client, token, route):
    headers = bearer(token("alice"))
    for body in (
        {"solution": plain_solution(f"{GOOD}# \ud800")},
        {"solution": {**plain_solution(GOOD), "description": "\udfff"}},
        {"solution": plain_solution(GOOD), "workload_uuids": ["\ud800"]},
    ):
        answer = client.post(route, content=json.dumps(body), headers={**headers, "Content-Type": "application/json"})
        assert answer.status_code == 422, answer.text


OPEN = {"/health", "/ready", "/openapi.json"}


def test_without_a_token_every_route_answers_401_except_health(client, token):
    token("alice")
    for path, methods in client.app.openapi()["paths"].items():
        if path in OPEN:
            continue
        url = path.replace("{identifier}", "0" * 32).replace("{number}", "1").replace("{name}", "double")
        for method in methods:
            answer = client.request(method, url)
            assert answer.status_code == 401, (method, path, answer.text)
            assert answer.headers["www-authenticate"].startswith("Bearer")
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("text", ["", "Bearer", "Bearer x", "Basic YTpi", "Bearer fib_" + "a" * 43, "Bearer \x80'--"])
def test_a_wrong_token_is_refused(client, text):
    answer = client.get("/v1/devices", headers={"Authorization": text.encode("latin-1")})
    assert answer.status_code == 401


def test_a_revoked_token_is_refused(client, token, database):
    revoked = token("alice")
    assert client.get("/v1/devices", headers=bearer(revoked)).status_code == 200
    with database.write() as connection:
        revoke_token(connection, list_tokens(connection)[-1]["id"])
    assert client.get("/v1/devices", headers=bearer(revoked)).status_code == 401


@pytest.mark.parametrize("path", ["/v1/submissions", "/evaluate", "/shutdown", "/leaderboard/double"])
def test_a_token_that_is_revoked_while_the_body_arrives_changes_nothing(client, token, database, path):
    def body():
        with database.write() as connection:
            revoke_token(connection, list_tokens(connection)[-1]["id"])
        fields = {"name": "a", "path": "a.py", "language": "python", "function": "f", "source": "x"}
        yield (urlencode(fields) if path.startswith("/lead") else json.dumps({"solution": plain_solution()})).encode()

    headers = bearer(token("alice", Role.MAINTAINER)) | {"Content-Type": "application/json"}
    assert_problem(client.post(path, content=body(), headers=headers, follow_redirects=False), 401, "revoked")
    with database.read() as connection:
        assert (actions_of(database), list_submissions(connection, 1)) == ([], [])


@pytest.mark.parametrize("path", ["/v1/submissions/{}", "/tasks/{}"])
def test_a_token_that_is_revoked_ends_the_wait_of_its_requests(client, token, database, monkeypatch, path):
    mine = bearer(token("alice"))
    made = submit(client, token("bob")).json()["id"]

    def find_and_revoke(connection, identifiers):
        with database.write() as other:
            revoke_token(other, 1)
        return find_submissions(connection, identifiers)

    monkeypatch.setattr(api.store, "find_submissions", find_and_revoke)
    assert_problem(client.get(path.format(made) + "?timeout=3", headers=mine), 401, "revoked")


def test_a_token_has_the_role_of_its_scope(client, token):
    token("root", Role.MAINTAINER)
    answer = client.post("/shutdown", headers=bearer(token("root")))
    assert_problem(answer, 403, "needs the role maintainer, and your token has submitter")


def test_the_database_holds_no_token(client, token, database):
    text = token("alice")
    client.get("/v1/devices", headers=bearer(text))
    for path in database.path.parent.glob("serve.sqlite3*"):
        assert text.encode() not in path.read_bytes()


def test_a_user_who_asks_too_often_is_slowed_down(client, token):
    client.app.state.gate.rate = 1.0
    mine, other = bearer(token("alice")), bearer(token("bob"))
    codes = [client.get("/v1/devices", headers=mine).status_code for _ in range(15)]
    assert codes.count(429) >= 1
    assert codes[:5] == [200] * 5
    assert client.get("/v1/devices", headers=other).status_code == 200
    answer = client.get("/v1/devices", headers=mine)
    assert_problem(answer, 429, "slow down")
    assert int(answer.headers["retry-after"]) > 0


def test_documented_reading_routes_answer_as_documented(client, token):
    mine = bearer(token("alice"))
    index = client.get("/", headers=mine).json()
    assert set(index) >= {"name", "version", "docs", "endpoints"}
    assert client.get("/health").json() == {"status": "ok", "workers": [], "queue_size": 0}
    assert client.get("/definitions", headers=mine).json() == [{"name": "double", "description": "Twice the input."}]
    assert client.get("/definitions/double", headers=mine).json()["op_type"] == "elementwise"
    found = client.get("/definitions/double/workloads", headers=mine).json()
    assert [item["uuid"] for item in found] == ["double-4", "double-8"]
    assert client.get("/workloads/double-4", headers=mine).json() == found[0]
    for path in ("/definitions/nope", "/definitions/nope/workloads"):
        assert_problem(client.get(path, headers=mine), 404, "Definition not found: nope")
    assert client.get("/workloads/nope", headers=mine).status_code == 404
    assert client.get("/tasks/nope", headers=mine).status_code == 404


def test_evaluate_and_tasks_answer_as_documented(client, token, database, settings):
    mine = bearer(token("alice"))
    answer = client.post("/evaluate", json={"solution": plain_solution(), "workload_uuids": None}, headers=mine).json()
    assert set(answer) == {"task_id", "normalized_solution_name"}
    assert answer["normalized_solution_name"].startswith("mine_")
    task = client.get(f"/tasks/{answer['task_id']}", headers=mine).json()
    assert (task["status"], task["traces"], task["error"]) == ("pending", [], None)
    assert set(task) == {"task_id", "status", "definition", "solution", "traces", "error"}
    finish(database, settings.dataset)
    body = {"task_ids": [answer["task_id"]] * 2, "timeout": 5}
    first, second = client.post("/tasks/batch", json=body, headers=mine).json()
    assert first == second
    assert first["status"] == "completed"
    assert [trace["workload"]["uuid"] for trace in first["traces"]] == ["double-4", "double-8"]


def test_evaluate_refuses_as_documented(client, token):
    mine = bearer(token("alice"))
    unknown = {"solution": plain_solution() | {"definition": "nope"}}
    assert_problem(client.post("/evaluate", json=unknown, headers=mine), 400, "Definition not found: nope")
    assert_problem(
        client.post("/evaluate", json={"solution": {"name": "x"}}, headers=mine), 422, "not a valid Solution"
    )
    assert client.post("/evaluate", json={}, headers=mine).status_code == 422
    unknown = {"solution": plain_solution(), "workload_uuids": ["nope"]}
    assert client.post("/evaluate", json=unknown, headers=mine).status_code == 404


def test_a_long_poll_ends_when_the_submission_does(client, token, database, settings):
    mine = bearer(token("alice"))
    task = submit(client, token("alice")).json()["id"]
    worker = threading.Thread(target=finish, args=(database, settings.dataset))
    worker.start()
    assert client.get(f"/tasks/{task}?timeout=600", headers=mine).json()["status"] == "completed"
    worker.join()


def test_a_repeated_post_makes_one_submission(client, token):
    headers, body = bearer(token("alice")), {"solution": plain_solution(), "force": True}
    first, again = (client.post("/v1/submissions", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first.headers["location"] == f"/v1/submissions/{first.json()['id']}"


def test_the_author_is_the_user_of_the_token(client, token, database):
    found = submit(client, token("mallory"), solution=plain_solution() | {"author": "alice"}).json()
    with database.read() as connection:
        assert get_solution(connection, found["id"]).author == "mallory"


def test_a_request_waits_for_a_change_of_a_submission(client, token, database, monkeypatch):
    mine = bearer(token("alice"))
    made = submit(client, token("alice")).json()

    def read_and_claim(*given):
        found = find_submissions(*given)
        claim(database, "cpu", 2)
        return found

    monkeypatch.setattr(api.store, "find_submissions", read_and_claim)
    found = client.get(f"/v1/submissions/{made['id']}?timeout=600", headers=mine).json()
    assert (made["state"], found["state"]) == ("queued", "running")


def test_requests_of_a_user_that_wait_or_send_a_body_are_bounded(client, token):
    mine, user = bearer(token("alice")), 1
    made = submit(client, token("alice")).json()["id"]
    requests = client.app.state.gate.requests
    assert requests[user] == 0
    requests[user] = 200
    for answer in (client.get(f"/tasks/{made}?timeout=1", headers=mine), submit(client, token("alice"))):
        assert_problem(answer, 429, "200 of your requests are in progress")
    assert client.get(f"/tasks/{made}", headers=bearer(token("bob"))).status_code == 200


def test_a_request_takes_a_turn_to_be_admitted_unless_everybody_may_send_it(client, token, monkeypatch):
    gate, is_taken = client.app.state.gate, []
    kind, find = type(gate), gate.principal
    gate.turns = asyncio.Semaphore(1)
    monkeypatch.setattr(kind, "principal", lambda _, *given: is_taken.append(gate.turns.locked()) or find(*given))
    assert client.get("/v1/devices", headers=bearer(token("alice"))).status_code == 200
    assert is_taken == [True]
    gate.turns = asyncio.Semaphore(0)
    assert client.get("/health").status_code == 200


def test_a_batch_names_a_task_many_times_and_reads_it_once(client, token, database, settings, monkeypatch):
    made = submit(client, token("alice")).json()["id"]
    finish(database, settings.dataset, log="l" * 9000)
    read = []
    monkeypatch.setattr(api.store, "list_traces", lambda *given: read.append(given[1]) or list_traces(*given))
    body = {"task_ids": [made] * 100}
    found = client.post("/tasks/batch", json=body, headers=bearer(token("alice"))).json()
    assert (len(found), read) == (100, [made])
    body = {"task_ids": [made] * 1000}
    assert_problem(client.post("/tasks/batch", json=body, headers=bearer(token("alice"))), 413, "name fewer tasks")


def test_a_page_of_traces_ends_where_it_is_large(client, token, database, settings):
    made = submit(client, token("alice")).json()["id"]
    finish(database, settings.dataset, log="l" * 3_000_000)
    first = client.get(f"/v1/submissions/{made}/traces", headers=bearer(token("alice"))).json()
    path = f"/v1/submissions/{made}/traces?cursor={first['next_cursor']}"
    second = client.get(path, headers=bearer(token("alice"))).json()
    found = [[each["workload"]["uuid"] for each in page["items"]] for page in (first, second)]
    assert found == [["double-4"], ["double-8"]]


@pytest.mark.parametrize("body", [{"task_ids": [1] * 1000}, {"solution": {}, "workload_uuids": [1] * 10_000}])
def test_the_event_loop_neither_parses_nor_validates_a_body_and_stops_at_a_problem(client, token, body, monkeypatch):
    threads = []
    parse = TypeAdapter.validate_json
    monkeypatch.setattr(TypeAdapter, "validate_json", lambda *given: threads.append(in_loop()) or parse(*given))

    def in_loop():
        try:
            return asyncio.get_running_loop() is not None
        except RuntimeError:
            return False

    path = "/tasks/batch" if "task_ids" in body else "/v1/submissions"
    answer = client.post(path, json=body, headers=bearer(token("alice")))
    assert (answer.status_code, threads) == (422, [False])
    assert len(answer.json()["problems"]) == 1


def test_a_user_sees_neither_sources_nor_texts_of_others(client, token, database, settings):
    secret = f"{GOOD}# SECRET\n"
    identifier = submit(client, token("alice"), secret).json()["id"]
    finish(database, settings.dataset, log="SECRET")
    for headers, may_see in ((bearer(token("alice")), True), (bearer(token("bob")), False)):
        texts = [
            client.get(path, headers=headers).text
            for path in (
                f"/v1/submissions/{identifier}",
                f"/v1/submissions/{identifier}/traces",
                f"/submissions/{identifier}",
                f"/tasks/{identifier}",
                "/submissions",
                "/v1/leaderboards/double",
            )
        ]
        assert any("SECRET" in text for text in texts) == may_see
    assert client.get("/v1/leaderboards/double", headers=bearer(token("bob"))).json()["items"][0]["rank"] == 1


@pytest.mark.parametrize("more", [{}, {"workload_uuids": ["double-4"]}])
def test_a_rejected_result_leaves_the_leaderboard_until_that_is_undone(client, token, database, settings, more):
    mine = bearer(token("alice"))
    submit(client, token("alice"), **more)
    identifier = finish(database, settings.dataset, is_ranked=not more)
    with database.write() as connection:
        reject(connection, identifier, "copied")
    assert client.get("/v1/leaderboards/double", headers=mine).json()["items"] == []
    assert client.get(f"/v1/submissions/{identifier}", headers=mine).json()["rejection"] == "copied"
    with database.write() as connection:
        unreject(connection, identifier)
    assert len(client.get("/v1/leaderboards/double", headers=mine).json()["items"]) == (not more)


def test_the_leaderboard_has_the_best_of_each_user(client, token, database, settings):
    for name, score in (("alice", 1.5), ("alice", 3.0), ("bob", 2.0), ("alice", 2.5)):
        submit(client, token(name), f"{GOOD}# {name} {score}", name=f"of-{name}")
        finish(database, settings.dataset, score=score)
    items = client.get("/v1/leaderboards/double", headers=bearer(token("bob"))).json()["items"]
    found = [(item["rank"], item["submission"]["user"], item["submission"]["score"]) for item in items]
    assert found == [(1, "alice", 3.0), (2, "bob", 2.0)]


def test_a_draining_service_takes_no_submissions_and_still_answers(client, token):
    client.app.state.contest.is_draining = True
    assert_problem(submit(client, token("alice")), 503, "stopping")
    assert client.get("/ready").status_code == 503
    assert client.get("/v1/devices", headers=bearer(token("alice"))).status_code == 200


HTML = "<script>alert(1)</script>"
SQL = "'; DROP TABLE users; --"


def post(client, token, body, **headers):
    sent = bearer(token) | {"content-type": "application/json"} | headers
    return client.post("/v1/submissions", content=body, headers=sent)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"solution": 1}',
        b'{"solution": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"solution": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b'{"solution": {"x": ' + b"9" * 10_000 + b"}}",
        b'{"solution": {"name": "\\ud800"}}',
        b'{"solution": {"name": NaN}}',
        b'{"solution": {}, "force": 1e400}',
        b'{"solution": {}, "unknown": 1}',
    ],
    ids=lambda body: repr(body[:30]),
)
def test_a_malformed_body_is_answered_with_a_problem(client, token, body):
    answer = post(client, token("alice"), body)
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 20_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../../etc/passwd"),
        ("name", "a/b"),
        ("name", ""),
        ("name", "x" * 101),
        ("name", "a\x00b"),
        ("name", "\ud800"),
        ("sources", []),
        ("sources", [{"path": "../x.py", "content": ""}]),
        ("sources", [{"path": "/etc/passwd", "content": ""}]),
        ("sources", [{"path": "kernel.py", "content": ""}] * 2),
        ("sources", [{"path": f"f{index}.py", "content": ""} for index in range(201)]),
        ("sources", [{"path": "a/" * 1_000_000 + "kernel.py", "content": ""}]),
        ("description", "x" * 10_001),
        ("spec", {"language": "cobol"}),
        ("spec", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_hostile_solution_is_refused(client, token, field, value):
    body = json.dumps({"solution": plain_solution() | {field: value}}).encode()
    assert post(client, token("alice"), body).status_code == 422


@pytest.mark.parametrize(
    "more",
    [
        {"sources": ["x"] * 100_000},
        {"spec": {"target_hardware": ["x"] * 100_000}},
        {"surplus": [[[0] * 50] * 50] * 50},
        {"surplus": {str(n): n for n in range(6000)}},
    ],
)
def test_a_solution_of_very_many_values_is_refused_before_it_is_validated(client, token, more, monkeypatch):
    monkeypatch.setattr(api, "structure", None)
    answer = client.post("/v1/submissions", json={"solution": plain_solution() | more}, headers=bearer(token("alice")))
    assert_problem(answer, 422, "more than 5000 values" if "surplus" in more else "entries, at most 200")


@pytest.mark.parametrize("text", [HTML, SQL, "\r\nX-Injected: 1", "%00", "🙂" * 20, "a" * 90])
def test_odd_text_in_every_field_is_kept_as_text(client, token, database, text):
    solution = plain_solution(f"{GOOD}# {text!r}")
    solution |= {"description": text, "extra": {text: text}}
    answer = post(client, token("alice"), json.dumps({"solution": solution}).encode())
    assert answer.status_code == 201, answer.text
    assert "x-injected" not in answer.headers
    mine = bearer(token("alice"))
    for path in ("/submissions?user=", "/workloads/", "/definitions/", "/tasks/"):
        assert client.get(path + text.replace("\r\n", "%0d%0a"), headers=mine).status_code in (200, 404, 422)
    with database.read() as connection:
        stored = get_solution(connection, answer.json()["id"])
    assert (stored.description, dict(stored.extra)) == (text, {text: text})


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_is_refused_with_the_remedy(client, token, kind):
    answer = post(client, token("alice"), json.dumps({"solution": plain_solution()}).encode(), **{"content-type": kind})
    assert_problem(answer, 422, f"'Content-Type: application/json', sent was {kind or 'none'}")


def test_without_tokens_other_sites_are_refused(client, database, monkeypatch):
    contest = attrs.evolve(client.app.state.contest, local=local_principal(database))
    monkeypatch.setattr(client.app.state, "contest", contest)
    for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.1.2.3", "a.localhost"):
        assert client.get("/v1/devices", headers={"host": host}).status_code == 200
        own = {"host": host, "origin": f"http://{host}"}
        assert client.get("/v1/devices", headers=own).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "10.0.0.1", "", "[::1", "127.0.0.1@evil.example:80"):
        assert_problem(
            client.get("/v1/devices", headers={"host": host}), 403, "must be localhost or a loopback address"
        )
    other = {"host": "127.0.0.1:8000", "origin": "https://evil.example"}
    assert_problem(client.post("/shutdown", headers=other), 403, "sent by another site")
    assert client.get("/health", headers=other).status_code == 200


def test_large_and_compressed_bodies_are_refused(client, token):
    assert_problem(post(client, token("alice"), b"x" * (4 << 20) + b"x"), 413, "larger than 4194304 bytes")
    chunks = client.post("/v1/submissions", content=iter([b"x" * (3 << 20)] * 2), headers=bearer(token("alice")))
    assert_problem(chunks, 413, "larger than 4194304 bytes")
    answer = post(client, token("alice"), gzip.compress(b"{}"), **{"content-encoding": "gzip"})
    assert answer.status_code == 422


def test_a_body_of_many_values_is_refused_before_it_is_parsed(client, token):
    body = b'{"solution": ' + b"[" * 300_000 + b"]" * 300_000 + b"}"
    assert_problem(post(client, token("alice"), body), 422, "more than 200000 brackets and commas")


def test_equal_sources_of_two_users_are_two_submissions(client, token, database, settings):
    first, second = (submit(client, token(user)).json() for user in ("alice", "bob"))
    assert {first["user"], second["user"]} == {"alice", "bob"}
    assert first["solution"] != second["solution"], "the data set has each under its own name"
    with database.read() as connection:
        assert len(list_submissions(connection, 10)) == 2


def test_a_full_disk_is_not_ready_and_takes_no_submission_whose_body_is_not_read(client, token, monkeypatch):
    client.app.state.contest.devices.register(DeviceState(name="cpu"))
    assert client.get("/ready").status_code == 200
    full = attrs.make_class("Usage", ["total", "free"])(total=20 << 30, free=1 << 30)
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    assert client.get("/ready").status_code == 200
    full.free -= 1
    assert_problem(client.get("/ready"), 503, "the disk")
    for path in ("/v1/submissions", "/evaluate", "/leaderboard/double"):
        answer = client.post(path, content=b"x" * (5 << 20), headers=bearer(token("alice")))
        assert_problem(answer, 507, "less than 1024 MiB free")
    assert client.post("/tasks/batch", json={"task_ids": []}, headers=bearer(token("alice"))).status_code == 200


def test_a_failure_of_the_service_reveals_nothing(client, token, database, monkeypatch):
    def fail(*_):
        raise RuntimeError("SECRET")

    monkeypatch.setattr("fib_serve.submissions.find_submissions", fail)
    answer = client.get(f"/v1/submissions/{'0' * 32}", headers=bearer(token("alice")))
    assert_problem(answer, 500, "the service has failed")
    assert "SECRET" not in answer.text


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_busy_database_is_a_reason_to_ask_again(client, token, method, monkeypatch):
    def fail(*_):
        raise OperationalError("SECRET", None, Exception())

    mine = bearer(token("alice"))
    monkeypatch.setattr("fib_serve.web.access.authenticate", fail)
    assert_problem(client.request(method, "/v1/submissions", headers=mine), 503, "try again")


def test_every_answer_has_the_headers_that_protect_a_browser(client):
    for path in ("/health", "/nope", "/v1/devices"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
