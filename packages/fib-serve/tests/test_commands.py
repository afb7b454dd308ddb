"""Tests of the command line: administration, operation, and wrong settings."""

import os
import re
import sys
from pathlib import Path

import pytest
from fib_serve.cli.main import main
from fib_serve.errors import InvalidSetting
from fib_serve.settings import Settings, make_state
from fib_serve.submissions import list_submissions

from .samples import GOOD, WRONG, actions_of, bearer, finish, plain_solution, write_data_set

Capture = pytest.CaptureFixture[str]


def run(*words):
    return main([str(word) for word in words])


def test_a_token_from_the_command_line_opens_the_api(data_set, client, database, capsys):
    assert run("token", "create", data_set, "--user", "alice", "--scope", "maintainer") == 0
    token = capsys.readouterr().out.strip()
    assert client.post("/shutdown", headers=bearer(token)).status_code == 200
    assert run("token", "list", data_set) == 0
    titles, row = capsys.readouterr().out.splitlines()
    number, *others = row.split()
    assert (titles.split()[:3], others[:2]) == (["id", "user", "scope"], ["alice", "maintainer"])
    assert token not in row
    assert run("token", "revoke", data_set, number) == 0
    assert client.get("/v1/devices", headers=bearer(token)).status_code == 401
    assert actions_of(database) == ["create token", "shutdown", "revoke token"]


def test_a_removed_user_has_no_token_no_place_and_nothing_in_the_queue(data_set, client, database, token):
    mine, again = bearer(token("alice")), bearer(token("alice"))
    for source in (GOOD, WRONG):
        client.post("/v1/submissions", json={"solution": plain_solution(source)}, headers=mine)
    done = finish(database, data_set)
    assert run("remove", data_set, "alice", "--reason", "copied") == 0
    assert [client.get("/v1/devices", headers=each).status_code for each in (mine, again)] == [401, 401]
    assert client.get("/v1/leaderboards/double", headers=bearer(token("bob"))).json()["items"] == []
    with database.read() as connection:
        found = [(each.state, each.rejection) for each in list_submissions(connection, 9)]
    assert found == [("failed", "copied"), ("completed", "copied")]
    assert run("unreject", data_set, done, "--reason", "it was not") == 0
    items = client.get("/v1/leaderboards/double", headers=bearer(token("bob"))).json()["items"]
    assert [each["submission"]["id"] for each in items] == [done]
    assert run("unreject", data_set, done, "--reason", "again") == 2
    assert actions_of(database) == ["remove user", "unreject"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("remove", "DATA", "nobody", "--reason", "y"), "no user has the name 'nobody'"),
        (("token", "create", "DATA", "--user", "../x"), "use 1 to 39 lower-case letters"),
        (("token", "create", "DATA", "--user", "workloads"), "use 1 to 39"),
        (("token", "create", "NONE", "--user", "a"), "there is no folder"),
        (("token", "list", "DATA", "--state", "NONE"), "no database at"),
        (("token", "revoke", "DATA", "99"), "no token has the number 99"),
        (("run", "DATA", "--devices", "cpu", "--hidden", "NONE"), "hidden: there is no folder"),
        (("run", "DATA", "--devices", "cpu", "--state", "NONE", "--host", "192.0.2.1"), "--scope maintainer --state"),
        (("reject", "DATA", "x", "--reason", "y"), "no submission has the id"),
        (("run", "DATA", "--no-auth", "--host", "0.0.0.0"), "serves everybody who reaches 0.0.0.0"),
        (("run", "DATA", "--hidden", "DATA"), "must lie outside"),
        (("run", "DATA", "--address", "127.0.0.1:6379"), "add --executor ray"),
        (("run", "DATA", "--executor", "ray", "--devices", "cuda:1"), "name their kind: cpu or cuda:0"),
        (("run", "DATA", "--devices", "cpu", "--max-running", "0"), "--max-running: must be greater than 0"),
        (("run", "DATA", "--devices", "zzz"), "--devices: 'zzz' is not a device"),
        (("run", "DATA", "--devices", "cpu", "cuda:0", "cpu"), "--devices: cpu is named twice"),
        (("run", "DATA", "--port", "99999"), "must be from 0 to 65535"),
        (("run", "DATA", "--devices", "cpu", "--deadline", "2026-12-31"), "is no time with a zone"),
        (("run", "DATA", "--devices", "cpu", "--rules", "NONE"), "No such file"),
        (("run", "DATA", "--devices", "cpu", "--proxy", "*"), "--proxy: '*' is no address"),
        (("run", "DATA", "--devices", "cpu", "--proxy", "nginx,127.0.0.1"), "--proxy: 'nginx' is no address"),
        (("run", "DATA", "--submission-seconds", "nan"), "must be greater than 0"),
        (("token", "create", "DATA", "--user", "a", "--scope", "boss"), "choose from submitter, maintainer"),
        (("run", "NONE"), "`fib-bench new definition` makes a data set"),
        (("rum", "DATA"), "did you mean run"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_wrong_words_get_a_message_with_a_remedy(data_set, database, words, message, capsys):
    replaced = [word.replace("DATA", str(data_set)).replace("NONE", str(data_set / "none")) for word in words]
    try:
        code = run(*replaced)
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("module", "extra"), [("ray", "ray"), ("fib_bench.cli.options", "server")])
def test_a_command_names_the_extra_that_it_needs(data_set, monkeypatch, capsys, module, extra):
    monkeypatch.delitem(sys.modules, "fib_serve.cli.operator_commands", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    assert run("run", data_set, "--executor", "ray", "--devices", "cpu") == 2
    assert re.search(rf"not installed: pip install 'fib-serve\[{extra}\]'", capsys.readouterr().err)


def test_hidden_workloads_that_are_public_too_are_refused(data_set, tmp_path, capsys):
    hidden = write_data_set(tmp_path / "hidden")
    assert run("run", data_set, "--port", 0, "--hidden", hidden) == 2
    assert "the public data set has 2 workloads of 'double' too" in capsys.readouterr().err


def test_files_of_the_state_are_private(settings, database):
    assert Path(settings.state).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_service_without_tokens_is_for_this_machine(data_set, host):
    options = {"dataset": str(data_set), "state": str(data_set) + "-state", "has_auth": False}
    assert Settings(**options, host=host).host == host
    for open_host in ("0.0.0.0", "::", "example.org", "10.0.0.1"):
        with pytest.raises(InvalidSetting, match="serves everybody"):
            Settings(**options, host=open_host)


def test_a_state_folder_of_another_user_is_refused(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    if os.getuid() != 0:
        pytest.skip("needs root, to give the folder away")
    os.chown(folder, 12345, 12345)
    with pytest.raises(InvalidSetting, match="belongs to another user"):
        make_state(folder)


@pytest.mark.parametrize(
    ("options", "token", "message"),
    [
        (("status", "nope"), "fib_x", "ID: 'nope' is not an id of a submission"),
        (("status", "\x1b[31m" + "a" * 32), "fib_x", "is not an id of a submission"),
        (("status", "a" * 32), "a\nb", "FIB_SERVE_TOKEN: it is not a token"),
        (("status", "a" * 32), "\u00e9", "FIB_SERVE_TOKEN: it is not a token"),
        (("status", "a" * 32, "--url", "127.0.0.1:8000"), "fib_x", "--url: '127.0.0.1:8000' is not an address"),
        (("status", "a" * 32, "--url", "ftp://x"), "fib_x", "--url: 'ftp://x' is not an address"),
    ],
)
def test_a_client_names_a_setting_that_cannot_be(monkeypatch, capsys, options, token, message):
    monkeypatch.setenv("FIB_SERVE_TOKEN", token)
    assert run(*options) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert token == "fib_x" or token not in shown
