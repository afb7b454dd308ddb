"""An agent that writes a kernel: a model calls the tools until it stops, the target is reached, or the budget is spent.

usage: agent_loop.py DATASET DEFINITION --url URL --model NAME [--device D] [--rounds N] [--seconds S] [--target X]
       agent_loop.py DATASET DEFINITION --replay DIR

URL is an OpenAI-compatible endpoint such as http://127.0.0.1:8000/v1, and OPENAI_API_KEY holds its key if it needs one.
The folder `--report DIR` gets `messages.jsonl` with the whole conversation, from which ``--replay`` repeats the tool
calls without a model, and `report.md` with every attempt. How to search is yours to change: this loop only feeds
answers back.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import attrs
from fib_agents import Answer, Toolbox, Workspace, get_all_tool_schemas, read_guide

MAX_ANSWER_BYTES = 16 << 20
Message = dict[str, Any]


class Model(Protocol):
    """The next message of the assistant."""

    def __call__(self, messages: list[Message]) -> Message | None:
        """Answer a conversation; None ends it."""


@attrs.frozen
class Endpoint:
    """A model behind HTTP."""

    url: str
    name: str

    def __call__(self, messages: list[Message]) -> Message:
        """Ask the endpoint."""
        tools = [{"type": "function", "function": schema} for schema in get_all_tool_schemas()]
        body = {"model": self.name, "messages": messages, "tools": tools}
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                message: Message = json.loads(response.read(MAX_ANSWER_BYTES))["choices"][0]["message"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{self.url}: status {error.code}: {error.read(500)!r}") from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise SystemExit(f"{self.url}: no answer of a chat model: {error!r}") from error
        return message


class Replay:
    """The messages of the assistant in an earlier run."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "messages.jsonl").read_text().splitlines()
        self._messages = [one for one in map(json.loads, lines) if one["role"] == "assistant"]

    def __call__(self, messages: list[Message]) -> Message | None:
        """Repeat the next message."""
        done = sum(message["role"] == "assistant" for message in messages)
        return self._messages[done] if done < len(self._messages) else None


@attrs.define
class Run:
    """One run of the loop.

    Args:
        toolbox: The tools.
        model: Answers messages.
        rounds: The most messages of the model.
        seconds: The time after which no further message is asked for.
        target: The least speedup at which to stop.
    """

    toolbox: Toolbox
    model: Model
    rounds: int
    seconds: float
    target: float
    messages: list[Message] = attrs.Factory(list)
    attempts: list[dict[str, Any]] = attrs.Factory(list)

    def work(self, definition: str) -> str:
        """Run until the end; returns its reason."""
        guides = "\n\n".join(read_guide(name) for name in ("judging", "tvm-ffi"))
        device = self.toolbox.workspace.device
        task = (
            f"Write a kernel for the definition {definition} that is right and faster than the reference on {device}."
        )
        self.messages = [{"role": "system", "content": guides}, {"role": "user", "content": task}]
        end = time.monotonic() + self.seconds
        for _ in range(self.rounds):
            if time.monotonic() > end:
                return f"the budget of {self.seconds:g} s is spent"
            message = self.model(self.messages)
            if message is None:
                return "the recorded run has ended"
            self.messages.append({**message, "role": "assistant"})
            if not message.get("tool_calls"):
                return "the model has stopped"
            self.messages += self._answers(message["tool_calls"])
            if self.best_speedup >= self.target:
                return f"the target of {self.target:g}x is reached"
        return f"the budget of {self.rounds} messages is spent"

    @property
    def best_speedup(self) -> float:
        """The best least speedup of an evaluation that passed."""
        return max((attempt["speedup"] for attempt in self.attempts), default=0.0)

    def _answers(self, calls: list[Message]) -> Iterator[Message]:
        for call in calls:
            begin = time.monotonic()
            name, text = call["function"]["name"], call["function"].get("arguments") or "{}"
            try:
                arguments = json.loads(text)
                answer = self.toolbox.answer(name, arguments if isinstance(arguments, dict) else {})
            except ValueError as error:
                arguments, answer = {}, Answer(f"error: the arguments are no JSON: {error}", {}, is_error=True)
            speedup = speedup_of(answer) if name == "evaluate" else 0.0
            attempt = {"tool": name, "arguments": arguments, "answer": answer.text, "speedup": speedup}
            self.attempts.append({**attempt, "seconds": time.monotonic() - begin})
            print(f"{len(self.attempts)}. {name}: {answer.text.partition(chr(10))[0]}")
            yield {"role": "tool", "tool_call_id": call.get("id", ""), "content": answer.text}


def speedup_of(answer: Answer) -> float:
    """The least proven speedup of an evaluation; 0 if anything failed."""
    results = [] if answer.is_error or answer.json["skipped"] else answer.json["results"]
    passed = bool(results) and all(one["status"] == "PASSED" for one in results)
    return min(one["certain_speedup"] or 0.0 for one in results) if passed else 0.0


def write_report(folder: Path, run: Run, reason: str) -> None:
    """Write the conversation and a page with every attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "messages.jsonl").write_text("".join(json.dumps(message) + "\n" for message in run.messages))
    lines = [f"# {len(run.attempts)} tool calls, best speedup {run.best_speedup:.2f}x: {reason}"]
    for number, attempt in enumerate(run.attempts, 1):
        lines += [f"\n## {number}. {attempt['tool']} ({attempt['seconds']:.1f} s)"]
        lines += [f"\n    {line}" for line in json.dumps(attempt["arguments"], indent=1).splitlines()]
        lines += ["", *(f"    {line}" for line in attempt["answer"].splitlines())]
    (folder / "report.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run the loop; the exit code is 0 if a kernel is faster than the reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("definition")
    parser.add_argument("--url")
    parser.add_argument("--model", default="default")
    parser.add_argument("--replay", type=Path, metavar="DIR")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--target", type=float, default=float("inf"))
    parser.add_argument("--report", type=Path, default=Path("agent-report"))
    arguments = parser.parse_args()
    if (arguments.url is None) == (arguments.replay is None):
        parser.error("pass either --url or --replay")
    model: Model = Replay(arguments.replay) if arguments.replay else Endpoint(arguments.url, arguments.model)
    toolbox = Toolbox(Workspace(arguments.dataset, device=arguments.device))
    run = Run(toolbox, model, arguments.rounds, arguments.seconds, arguments.target)
    reason = run.work(arguments.definition)
    write_report(arguments.report, run, reason)
    print(f"best speedup {run.best_speedup:.2f}x; {reason}; see {arguments.report / 'report.md'}")
    return 0 if run.best_speedup > 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
