"""Tests of the client against the API in this process, also over a network that fails."""

import io
import subprocess
import sys
import threading
from itertools import islice
from urllib.error import HTTPError, URLError
from urllib.request import OpenerDirector

import pytest
from fib_serve import Client, ServiceError, ServiceUnreachable
from fib_serve.cli.main import main
from fib_serve.database import submissions
from sqlalchemy import func, select

from .samples import finish, make_definition, make_solution, make_workloads


@pytest.fixture
def connect(address, token, monkeypatch):
    """Makes a client, and a network that answers with statuses, then delivers requests and loses answers."""

    def make(losses=0, statuses=(), sleep=lambda _: None):
        left = [*statuses, *["lost"] * losses]
        deliver = OpenerDirector.open

        def send(self, request, **options):
            failure = left.pop(0) if left else None
            if isinstance(failure, int):
                raise HTTPError(request.full_url, failure, "busy", {"retry-after": "7"}, io.BytesIO())
            answer = deliver(self, request, **options)
            if failure is not None:
                answer.close()
                raise URLError("the answer was lost")
            return answer

        monkeypatch.setattr(OpenerDirector, "open", send)
        return Client(address, token("alice"), sleep=sleep)

    return make


def test_a_submission_is_made_followed_and_read(connect, database, settings):
    with connect() as client:
        made = client.submit(make_solution())
        assert (made.state, made.is_final, made.solution[:5]) == ("queued", False, "mine_")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fib_serve.client._WAIT_SECONDS", 0)
            assert [found.state for found in islice(client.follow(made.id), 3)] == ["queued"] * 3  # without a change
        worker = threading.Thread(target=finish, args=(database, settings.dataset))
        worker.start()
        done = client.wait(made.id)
        worker.join()
        assert (done.state, done.verdict, done.score) == ("completed", "PASSED", 2.0)
        assert done.evaluated == 2
        assert [found.state for found in client.follow(made.id)] == ["completed"]
        assert [trace.workload for trace in client.traces(made.id)] == make_workloads()
        assert [entry.id for entry in client.leaderboard("double")] == [made.id]
        assert client.definition("double") == make_definition()


def test_a_submission_whose_answer_is_lost_is_made_once(connect, database):
    with connect(losses=3) as client:
        client.submit(make_solution(), force=True)
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(submissions)).scalar() == 1


def test_a_busy_service_is_asked_again_when_it_says(connect):
    pauses = []
    with connect(statuses=(503, 429), sleep=pauses.append) as client:
        client.definitions()
    assert pauses == [7.0, 7.0]


def test_a_service_that_stays_away_is_reported(connect):
    with connect(losses=100) as client, pytest.raises(ServiceUnreachable, match="the answer was lost; check"):
        client.definitions()
    with connect(statuses=(503,) * 100) as client, pytest.raises(ServiceError, match="503"):
        client.definitions()


def test_a_refusal_is_reported_with_its_detail(connect):
    with connect() as client:
        with pytest.raises(ServiceError, match="400 Bad Request: Definition not found: nope"):
            client.submit(make_solution(definition="nope"))
        with pytest.raises(ServiceError, match="no submission has the id"):
            client.get("0" * 32)
        with pytest.raises(ServiceError, match="404"):
            next(client.follow("0" * 32))


def test_the_client_and_its_commands_import_neither_the_service_nor_torch():
    heavy = "{'torch', 'numpy', 'httpx', 'sqlalchemy', 'fastapi', 'fib_bench'}"
    lines = "import sys; from fib_serve import Client; from fib_serve.cli.main import main"
    ends = "main(['status', 'a' * 32, '--url', 'nope'])"
    text = f"{lines}; {ends}; sys.exit(str(sorted({heavy} & sys.modules.keys())))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_kernel_is_submitted_without_fib_bench_as_options_state_it(address, token, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "fib_bench.authoring.inference", None)
    monkeypatch.setenv("FIB_SERVE_TOKEN", token("alice"))
    (kernel := tmp_path / "kernel.py").write_text("def twice(x):\n    return 2 * x\n")
    words = ["submit", str(kernel), "--definition", "double", "--url", address, "--entry", "twice", "--style", "return"]
    assert main(words) == 2
    assert "without it state --language, --hardware" in capsys.readouterr().err
    assert main([*words, "--language", "python", "--hardware", "cpu"]) == 0
    assert "double      kernel_" in capsys.readouterr().out


def test_a_redirect_is_an_error_and_does_not_get_the_token(connect):
    with connect() as client, pytest.raises(ServiceError, match="307"):
        client.definition("")  # the service has the path without the slash at its end


def test_commands_list_definitions_and_print_a_starter_and_a_leaderboard(
    address, token, client, database, settings, monkeypatch, capsys
):
    monkeypatch.setenv("FIB_SERVE_URL", address)
    monkeypatch.setenv("FIB_SERVE_TOKEN", token("alice"))
    with Client(address, token("alice")) as user:
        user.submit(make_solution())
    summary = {"public": {"flags": ["insensitive: y to zeros"]}, "hidden": {"verdict": "PASSED", "speedup_text": "2x"}}
    identifier = finish(database, settings.dataset, summary=summary)
    assert main(["status", identifier]) == 0
    titles, row, *facts = capsys.readouterr().out.splitlines()
    assert (titles.split()[-1], row.split()[-1]) == ("speedup", "2x")
    assert facts == ["hidden workloads: PASSED", "flags: insensitive: y to zeros"]
    assert main(["definitions"]) == 0
    assert "double  Twice the input." in capsys.readouterr().out
    assert main(["starter", "double"]) == 0
    starter = capsys.readouterr().out
    assert "input x: float32[n]" in starter
    assert starter.endswith(make_definition().reference)
    assert main(["leaderboard", "double"]) == 0
    rank, user, solution, *more = capsys.readouterr().out.splitlines()[1].split()
    assert (rank, user, solution[:5], more) == ("1", "alice", "mine_", ["2x", identifier])
