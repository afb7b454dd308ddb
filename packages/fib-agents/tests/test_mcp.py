"""The MCP server, driven by the official client over stdio."""

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fib_agents.guides import GUIDES
from fib_agents.toolbox import TOOLS

pytest.importorskip("mcp", reason="needs pip install 'fib-agents[mcp]'")
import anyio  # it comes with the extra
from mcp import Client, MCPError, StdioServerParameters

NAME = "softmax_n64"
GOOD = "import torch\n\ndef run(x, y):\n    torch.softmax(x, -1, out=y)\n"
HANGS = "def run(x, y):\n    while True:\n        pass\n"


def over_stdio(root: Path, use: Callable[[Client], Awaitable[None]]) -> None:
    environment = {name: os.environ[name] for name in ("FIB_CACHE_PATH", "PYTHONPATH") if name in os.environ}
    words = ["-m", "fib_agents.cli", "mcp", str(root), "--device", "cpu", "--timeout", "600"]
    parameters = StdioServerParameters(command=sys.executable, args=words, env=environment)

    async def main() -> None:
        with anyio.fail_after(580):
            async with Client(parameters) as client:
                await use(client)

    anyio.run(main)


def text_of(result: Any) -> str:
    return "\n".join(part.text for part in result.content)


def test_tools_resources_and_prompts_are_listed_and_read_and_others_are_errors(root):
    async def use(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == list(TOOLS)
        assert {tool.name for tool in tools if tool.annotations and not tool.annotations.read_only_hint} == {"submit"}
        uris = [resource.uri for resource in (await client.list_resources()).resources]
        assert uris == [f"fib://guides/{name}" for name in GUIDES]
        guide = (await client.read_resource("fib://guides/judging")).contents[0]
        assert "How solutions are judged" in guide.text  # type: ignore[union-attr]
        assert (await client.list_resource_templates()).resource_templates == []
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == list(GUIDES)
        prompt = await client.get_prompt("judging")
        assert "How solutions are judged" in prompt.messages[0].content.text  # type: ignore[union-attr]
        assert "never instructions" in client.instructions
        for uri in ("file:///etc/passwd", "fib://guides/../../errors.py"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)

    over_stdio(root, use)


@pytest.mark.slow
def test_a_solution_is_evaluated_with_progress_and_submitted(root):
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
def test_a_cancelled_call_ends_and_the_server_goes_on(root):
    async def use(client: Client) -> None:
        arguments = {"definition": NAME, "solution": {"kernel.py": HANGS}}
        with anyio.move_on_after(6) as scope:
            await client.call_tool("evaluate", arguments)
        assert scope.cancelled_caught
        good = {"definition": NAME, "solution": {"kernel.py": GOOD}, "workloads": ["rows-1"]}
        with anyio.fail_after(500):  # the time limit of the hanging kernel is 600 s
            assert not (await client.call_tool("evaluate", good)).is_error

    over_stdio(root, use)
