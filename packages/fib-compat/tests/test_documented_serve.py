"""Documented behaviour of ``serve``: its options, and the service as a client of flashinfer-bench uses it."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec

import compat_samples as samples
import pytest
from fib_compat.cli import cli, make_parser, service_command

IS_INSTALLED = find_spec("fib_serve") is not None
needs_service = pytest.mark.skipif(not IS_INSTALLED, reason="the extra `serve` is not installed")


def words_of(*options):
    return list(service_command(make_parser().parse_args(["serve", "--local", "/data", *options])))


class TestOptions:
    def test_the_documented_values_are_the_defaults(self):
        assert words_of() == [
            *("run", "/data", "--host=127.0.0.1", "--port=8000", "--log-level=info", "--no-auth"),
            *("--warmup-runs=10", "--iterations=50", "--num-trials=3", "--rtol=0.01", "--atol=0.01", "--timeout=300"),
        ]

    def test_all_are_handed_on(self):
        given = ("--port", "9", "--devices", "cuda:0", "cuda:1", "--log-level", "critical", "--timeout", "2.5")
        words = words_of(*given, "--rtol", "1e-3")
        assert {"--port=9", "--devices=cuda:0,cuda:1", "--log-level=error", "--timeout=2.5", "--rtol=0.001"} < set(
            words
        )

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "localhost", "::1"])
    def test_this_machine_needs_no_token(self, host):
        assert "--no-auth" in words_of("--host", host)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "host.example", "127.0.0.1.example", ""])
    def test_other_machines_need_one(self, host):
        assert "--no-auth" not in words_of(f"--host={host}")

    def test_the_data_set_is_that_of_the_variable(self, monkeypatch, tmp_path):
        monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
        assert next(iter(list(service_command(make_parser().parse_args(["serve"])))[1:])) == str(tmp_path)

    def test_a_relative_data_set_cannot_become_an_option(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        words = list(service_command(make_parser().parse_args(["serve", "--local=--no-auth", "--host=0.0.0.0"])))
        assert words[1] == str(tmp_path / "--no-auth")
        assert "--no-auth" not in words


def test_without_the_service_it_says_what_to_install(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "fib_serve", None)  # as if it were not installed
    assert cli(["serve", "--local", "/data"]) == 2
    assert "pip install 'fib-compat[serve]'" in " ".join(capfd.readouterr().err.split())


@needs_service
def test_the_service_accepts_all_arguments(tmp_path):
    """Its own parser, which fails on an option that it does not know."""
    from fib_schema.command import CommandParser
    from fib_serve.cli.operator_commands import declare_run, settings_of

    parser = CommandParser(prog="fib-serve")
    declare_run(parser.add_subparsers(required=True).add_parser("run"))
    words = words_of("--devices", "cpu", "cuda:0", "--host", "localhost", "--log-level", "critical")
    settings = settings_of(parser.parse_args([str(tmp_path) if word == "/data" else word for word in words]))
    assert not settings.has_auth
    assert settings.devices == ("cpu", "cuda:0")
    assert settings.evaluation["timeout_seconds"] == 300
    assert settings.evaluation["iterations"] == 50


@pytest.fixture(scope="module")
def address(tmp_path_factory, cache_path):
    """A running service on one data set."""
    root = samples.write(tmp_path_factory.mktemp("service") / "data")
    quick = ("--warmup-runs", "1", "--iterations", "2", "--num-trials", "1", "--timeout", "60")
    words = ("serve", "--local", str(root), "--devices", "cpu", "--port", "0", *quick)
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from fib_compat.cli import cli; sys.exit(cli(sys.argv[1:]))", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FIB_CACHE_PATH": str(cache_path)},
    )
    assert process.stderr is not None
    lines = []
    try:
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                break
        else:
            pytest.fail("".join(lines))
        assert call(found[0] + "/shutdown", {})[0] == 200
        assert process.stderr.read() is not None
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@needs_service
@pytest.mark.slow
class TestService:
    def test_a_solution_is_evaluated_without_a_token(self, address):
        solution = json.loads(samples.solution().model_dump_json())
        status, made = call(f"{address}/evaluate", {"solution": solution, "workload_uuids": ["b4"]})
        assert status == 200, made
        assert set(made) == {"task_id", "normalized_solution_name"}
        status, task = call(f"{address}/tasks/{made['task_id']}?timeout=300")
        assert status == 200
        assert (task["status"], task["definition"], task["error"]) == ("completed", samples.NAME, None)
        (evaluation,) = [trace["evaluation"] for trace in task["traces"]]
        assert evaluation["status"] == "PASSED", evaluation["log"]
        assert call(f"{address}/tasks/batch", {"task_ids": [made["task_id"]], "timeout": 1})[1][0] == task

    def test_definitions_and_workloads_are_served(self, address):
        assert [one["name"] for one in call(f"{address}/definitions")[1]] == [samples.NAME]
        assert call(f"{address}/definitions/{samples.NAME}")[1]["op_type"] == "rmsnorm"
        assert {one["uuid"] for one in call(f"{address}/definitions/{samples.NAME}/workloads")[1]} == {"b4", "b8"}
        assert call(f"{address}/workloads/b8")[1]["axes"] == {"batch": 8}
        assert call(f"{address}/health")[1]["status"] == "ok"
        for missing in ("definitions/nothing", "workloads/nothing", "tasks/nothing"):
            assert call(f"{address}/{missing}")[0] == 404

    def test_wrong_solutions_are_refused_as_documented(self, address):
        solution = json.loads(samples.solution(definition="nothing").model_dump_json())
        assert call(f"{address}/evaluate", {"solution": solution})[0] == 400
        assert call(f"{address}/evaluate", {"solution": {"name": "x"}})[0] == 422


def call(url, body=None):
    """The status and the JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", "Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=330) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
