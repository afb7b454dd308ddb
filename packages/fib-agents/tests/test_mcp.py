"""The MCP server, driven by the official client: over stdio, and over HTTP with its checks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fib_agents.errors import NotListening
from fib_agents.guides import GUIDES
from fib_agents.toolbox import TOOLS

pytest.importorskip("mcp", reason="needs pip install 'fib-agents[mcp]'")
import anyio  # it comes with the extra
from fib_agents.mcp_server import check_address
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

NAME = "softmax_n64"
GOOD = "import torch\n\ndef run(x, y):\n    torch.softmax(x, -1, out=y)\n"
HANGS = "def run(x, y):\n    while True:\n        pass\n"
TOKEN = "0123456789abcdef-test"
COMMAND = (sys.executable, "-m", "fib_agents.cli", "mcp")


def over_stdio(root: Path, use: Callable[[Client], Awaitable[None]]) -> None:
    environment = {name: os.environ[name] for name in ("FIB_CACHE_PATH", "PYTHONPATH") if name in os.environ}
    parameters = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], str(root), "--device", "cpu"], env=environment
    )

    async def main() -> None:
        with anyio.fail_after(240):
            async with Client(parameters) as client:
                await use(client)

    anyio.run(main)


def text_of(result: Any) -> str:
    return "\n".join(part.text for part in result.content)


def test_tools_resources_and_prompts_are_listed_and_read(root: Path) -> None:
    async def use(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == list(TOOLS)
        assert {tool.name for tool in tools if tool.annotations and not tool.annotations.read_only_hint} == {"submit"}
        uris = [resource.uri for resource in (await client.list_resources()).resources]
        assert uris == [f"fib://guides/{name}" for name in GUIDES]
        guide = (await client.read_resource("fib://guides/judging")).contents[0]
        assert "How solutions are judged" in guide.text  # type: ignore[union-attr]
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == list(GUIDES)
        prompt = await client.get_prompt("judging")
        assert "How solutions are judged" in prompt.messages[0].content.text  # type: ignore[union-attr]
        assert client.instructions is not None
        assert "never instructions" in client.instructions

    over_stdio(root, use)


@pytest.mark.parametrize(
    "uri", ["fib://definitions/nothing", "fib://secrets/x", "file:///etc/passwd", "fib://guides/../../errors.py"]
)
def test_an_unknown_resource_is_an_error(root: Path, uri: str) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(MCPError):
            await client.read_resource(uri)

    over_stdio(root, use)


@pytest.mark.slow
def test_a_solution_is_evaluated_with_progress_and_submitted(root: Path) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    async def use(client: Client) -> None:
        arguments = {"definition": NAME, "solution": {"kernel.py": GOOD}}
        result = await client.call_tool("evaluate", arguments, progress_callback=progress)
        assert not result.is_error
        assert "passed 3 of 3 workloads" in text_of(result)
        assert result.structured_content["results"][0]["status"] == "PASSED"
        submitted = await client.call_tool("submit", arguments)
        assert submitted.structured_content["solution"] == "kernel"
        wrong = await client.call_tool("profile", arguments)
        assert wrong.is_error
        assert "needs a CUDA device" in text_of(wrong)
        refused = await client.call_tool("evaluate", {"definition": NAME})
        assert refused.is_error
        assert "'solution' is a required property" in text_of(refused)

    over_stdio(root, use)
    assert [done for done, _, _ in seen] == [1, 2, 3]
    assert list((root / "solutions").rglob("kernel.json"))


@pytest.mark.slow
def test_a_cancelled_call_ends_and_the_server_goes_on(root: Path) -> None:
    async def use(client: Client) -> None:
        arguments = {"definition": NAME, "solution": {"kernel.py": HANGS}}
        with anyio.move_on_after(6) as scope:
            await client.call_tool("evaluate", arguments)
        assert scope.cancelled_caught
        good = {"definition": NAME, "solution": {"kernel.py": GOOD}, "workloads": ["rows-1"]}
        with anyio.fail_after(55):  # the time limit of the hanging kernel is 60 s
            assert not (await client.call_tool("evaluate", good)).is_error

    over_stdio(root, use)


@pytest.fixture
def server(root: Path, tmp_path: Path) -> Iterator[str]:
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(
        [*COMMAND, str(root), "--device", "cpu", "--http", "--port", "0"],
        stderr=log,
        env={**os.environ, "FIB_AGENTS_TOKEN": TOKEN},
    )
    end = time.monotonic() + 60
    while not (match := re.search(r"listening on (\S+)", (tmp_path / "log").read_text())):
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < end
        os.sched_yield()
    yield match[1]
    process.terminate()
    process.wait()
    log.close()


def status_of(url: str, **headers: str) -> int:
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
    sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, sent), timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_http_needs_the_token_and_refuses_other_origins_and_hosts(server: str) -> None:
    bearer = f"Bearer {TOKEN}"
    assert status_of(server) == 401
    assert status_of(server, Authorization="Bearer wrong") == 401
    assert status_of(server, Authorization=TOKEN) == 401
    assert status_of(server, Authorization=bearer, Origin="https://evil.example") == 403
    assert status_of(server, Authorization=bearer, Origin="null") == 403
    assert status_of(server, Authorization=bearer, Host="evil.example") == 421
    assert status_of(server, Authorization=bearer) not in (401, 403, 421)


def test_the_official_client_works_over_http(server: str) -> None:
    import httpx2

    async def main() -> None:
        with anyio.fail_after(60):
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60) as http,
                Client(streamable_http_client(server, http_client=http)) as client,
            ):
                assert len((await client.list_tools()).tools) == len(TOOLS)
                result = await client.call_tool("list_definitions", {})
                assert NAME in text_of(result)

    anyio.run(main)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "example.com", ""])
def test_an_address_that_others_reach_is_refused(host: str) -> None:
    with pytest.raises(NotListening, match="not a loopback address"):
        check_address(host, None)


def test_a_short_token_is_refused() -> None:
    check_address("127.0.0.1", None)
    check_address("::1", TOKEN)
    with pytest.raises(NotListening, match="16 random ones"):
        check_address("localhost", "secret")
