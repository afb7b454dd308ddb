"""The example agent loop against a scripted model behind HTTP: from a wrong kernel over a slow one to a fast one."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from fib_agents.guides import read_guide
from fib_schema import AxisConst, AxisVar, Definition, RandomInput, TensorSpec, Trace, TraceSet, Workload

LOOP = Path(__file__).parent.parent / "examples" / "agent_loop.py"
NAME = "softmax_by_rows"
RIGHT = re.findall(r"```cpp\n(.*?)```", read_guide("tvm-ffi"), re.S)[0]
WRONG = RIGHT.replace("out[i] /= sum", "out[i] /= sum + 1")
_ONCE = "for (int64_t row = 0; row < rows; ++row) {"
_AGAIN = "for (int64_t turn = 0; turn < 60 * rows; ++turn) {\n    const int64_t row = turn % rows;"
SLOW = RIGHT.replace(_ONCE, _AGAIN)


def calls(tool, **arguments):
    function = {"name": tool, "arguments": json.dumps({"definition": NAME, **arguments})}
    call = {"id": tool, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


SCRIPT = [
    calls("describe"),
    calls("evaluate", solution={"kernel.cpp": WRONG}),
    calls("explain_failure", solution={"kernel.cpp": WRONG}),
    calls("evaluate", solution={"kernel.cpp": SLOW}),
    calls("evaluate", solution={"kernel.cpp": RIGHT}),
    calls("compare", first={"kernel.cpp": RIGHT}, second={"kernel.cpp": SLOW}),
    calls("submit", solution={"kernel.cpp": RIGHT}, name="by_agent"),
    {"role": "assistant", "content": "done"},
]


@contextmanager
def model(script):
    """A server that answers the messages of the script one by one, and keeps the requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            data = json.dumps({"choices": [{"message": script[len(requests) - 1]}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format, *args): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def data_set(tmp_path):
    """A definition whose reference calls torch for each row."""
    rows = TensorSpec(("rows", "columns"), "float32")
    reference = "import torch\n\ndef run(x):\n    return torch.stack([torch.softmax(row, 0) for row in x])\n"
    axes = {"rows": AxisVar(), "columns": AxisConst(64)}
    trace_set = TraceSet(tmp_path / "data")
    trace_set.add_definitions([Definition(NAME, "softmax", axes, {"x": rows}, {"y": rows}, reference)])
    trace_set.add_traces([Trace(NAME, Workload({"rows": 128}, {"x": RandomInput()}, "rows-128"))])
    return tmp_path / "data"


@pytest.fixture
def loop(data_set, tmp_path):
    def run(*words):
        command = [sys.executable, str(LOOP), str(data_set), NAME, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    return run


@pytest.mark.slow
def test_the_loop_goes_from_a_wrong_kernel_over_a_slow_one_to_a_fast_one(loop, data_set, tmp_path):
    with model(SCRIPT) as (url, requests):
        ended = loop("--url", url, "--report", "report")
    lines = ended.stdout.splitlines()
    assert "evaluate" in lines[1], ended.stdout + ended.stderr
    assert "passed 0 of 1" in lines[1]
    assert "passed 1 of 1" in lines[3]
    assert "passed 1 of 1" in lines[4]
    assert "the model has stopped" in lines[-1]
    told = {
        message.get("tool_call_id"): message["content"]
        for message in requests[-1]["messages"]
        if message["role"] == "tool"
    }
    assert re.search(r"y\[\d+, \d+\] = \S+, expected \S+; x\[\d+, \d+\] = ", told["explain_failure"])
    assert re.search(r"- \S+ \[rows=128\]: (faster|slower|no difference|undecided)", told["compare"])
    assert requests[0]["tools"][0]["type"] == "function"
    submitted = TraceSet.from_path(data_set).get_solution("by_agent")
    assert submitted.sources[0].content == RIGHT
    (best,) = re.findall(r"best speedup ([\d.]+)x", (tmp_path / "report/report.md").read_text())
    assert f"best speedup {best}x" in lines[-1]
    if best != "1.00":
        assert ended.returncode == (0 if float(best) > 1 else 1)

    again = loop("--replay", "report", "--report", "again")
    assert again.returncode in (0, 1), again.stdout + again.stderr
    assert "nothing written: by_agent" in (tmp_path / "again/report.md").read_text()


@pytest.mark.slow
def test_the_loop_stops_when_its_budget_or_its_target_is_reached(loop):
    with model(SCRIPT) as (url, requests):
        ended = loop("--url", url, "--rounds", "1")
        assert "the budget of 1 messages is spent" in ended.stdout
        assert (ended.returncode, len(requests)) == (1, 1)
    with model([SCRIPT[4], SCRIPT[4]]) as (url, requests):
        ended = loop("--url", url, "--target", "0")
        assert "the target of 0x is reached" in ended.stdout
        assert len(requests) == 1


def test_an_endpoint_that_is_not_there_is_named(loop):
    ended = loop("--url", "http://127.0.0.1:9/v1")
    assert ended.returncode == 1
    assert "http://127.0.0.1:9/v1: no answer of a chat model" in ended.stderr
    assert "pass either --url or --replay" in loop().stderr
