"""Downloads of data sets, from a hub on the loopback interface that also misbehaves."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import attrs
import pytest
from fib_bench.cli.main import main
from fib_schema import TraceSet, UnknownName

pytest.importorskip("huggingface_hub", reason="needs the extra hub")

from fib_bench.hub import DATA_SETS, FetchFailed, fetch

REPOSITORY = DATA_SETS["flashinfer-trace"]
DEFINITION = {
    "name": "double",
    "op_type": "elementwise",
    "axes": {"n": {"type": "var"}},
    "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n",
}
LARGE = "blob/workloads/elementwise/double/w.safetensors"


def data_set() -> dict[str, bytes]:
    other = {**DEFINITION, "name": "triple", "op_type": "arithmetic"}
    workload = {
        "definition": "double",
        "workload": {"axes": {"n": 4}, "inputs": {"x": {"type": "random"}}, "uuid": "w"},
    }
    return {
        "README.md": b"a data set\n",
        ".gitattributes": b"* text\n",
        "scripts/run.sh": b"rm -rf /\n",
        "definitions/elementwise/double.json": json.dumps(DEFINITION).encode(),
        "definitions/arithmetic/triple.json": json.dumps(other).encode(),
        "workloads/elementwise/double.jsonl": json.dumps(workload).encode() + b"\n",
        LARGE: bytes(range(256)) * 60_000,
    }


@attrs.define
class Hub:
    """A hub with one data set, and its faults."""

    files: dict[str, bytes] = attrs.field(factory=data_set)
    address: str = ""
    commit: str = "c" * 40
    refused: set[str] = attrs.field(factory=set)
    requests: Counter[str] = attrs.field(factory=Counter)

    def tree(self) -> list[dict[str, Any]]:
        """The listing that a download reads."""
        return [
            {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
            for path, content in self.files.items()
        ]

    def info(self) -> dict[str, Any]:
        siblings = [{"rfilename": path} for path in self.files]
        return {"id": REPOSITORY, "sha": self.commit, "siblings": siblings, "tags": []}


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self.answer(is_head=True)

    def do_GET(self) -> None:
        self.answer(is_head=False)

    def answer(self, *, is_head: bool) -> None:
        path = unquote(urlparse(self.path).path)
        api, files = f"/api/datasets/{REPOSITORY}", f"/datasets/{REPOSITORY}/resolve/{self.hub.commit}/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{self.hub.commit}"):
            self.reply(200, json.dumps(self.hub.info()).encode(), is_head)
        elif path == f"{api}/tree/{self.hub.commit}":
            self.reply(200, json.dumps(self.hub.tree()).encode(), is_head)
        elif path.startswith(f"{api}/revision/"):
            self.reply(404, b"", is_head, {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith(files) and (name := path.removeprefix(files)) in self.hub.files:
            self.file(name, is_head)
        else:
            self.reply(404, b"", is_head, {"X-Error-Code": "RepoNotFound"})

    def file(self, name: str, is_head: bool) -> None:
        if name in self.hub.refused:
            self.reply(403, b"", is_head)
            return
        content = self.hub.files[name]
        self.hub.requests[name] += not is_head
        self.reply(200, content, is_head, {"ETag": f'"{git_hash(content)}"', "X-Repo-Commit": self.hub.commit})

    def reply(self, status: int, content: bytes, is_head: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if not is_head:
            self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    hub = Hub()
    handler = type("HandlerOfThisHub", (Handler,), {"hub": hub})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a data set, without those of the download itself."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def wanted(hub: Hub) -> dict[str, bytes]:
    return {path: content for path, content in hub.files.items() if not path.startswith((".", "scripts/"))}


def test_a_data_set_is_fetched_once_without_hidden_files_and_what_is_no_data(hub: Hub, tmp_path: Path) -> None:
    fetched = fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    assert contents(tmp_path / "set") == wanted(hub)
    assert (fetched.revision, fetched.files) == (hub.commit, 5)
    assert TraceSet.from_path(tmp_path / "set").definition_names() == ("triple", "double")
    hub.requests.clear()
    fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    assert hub.requests == {}


def test_a_fetch_continues_after_a_failure(hub: Hub, tmp_path: Path) -> None:
    hub.refused.add(LARGE)
    with pytest.raises(FetchFailed, match=r"the download stopped: .*403.*; run the same command again to continue"):
        fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    before = contents(tmp_path / "set")
    assert LARGE not in before
    hub.refused.clear()
    hub.requests.clear()
    fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    assert contents(tmp_path / "set") == wanted(hub)
    assert set(hub.requests) == wanted(hub).keys() - before.keys()


def test_a_file_that_was_changed_here_is_never_replaced(hub: Hub, tmp_path: Path) -> None:
    fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    mine = tmp_path / "set/workloads/elementwise/double.jsonl"
    mine.write_bytes(mine.read_bytes() * 2)
    changed = mine.read_bytes()
    with pytest.raises(
        FetchFailed, match=r"double\.jsonl in .* differ from what was fetched; fetch into another folder"
    ):
        fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    assert mine.read_bytes() == changed


def test_a_newer_revision_replaces_what_is_as_it_was_fetched(hub: Hub, tmp_path: Path) -> None:
    fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    hub.commit = "d" * 40
    hub.files["workloads/elementwise/double.jsonl"] *= 2
    fetched = fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    assert fetched.revision == hub.commit
    assert contents(tmp_path / "set") == wanted(hub)


@pytest.mark.parametrize(
    ("selection", "absent"),
    [
        ({"blobs": False}, {LARGE}),
        ({"op_types": ["elementwise"]}, {"definitions/arithmetic/triple.json"}),
        (
            {"definitions": ["triple"]},
            {LARGE, "definitions/elementwise/double.json", "workloads/elementwise/double.jsonl"},
        ),
    ],
)
def test_a_part_can_be_fetched(hub: Hub, tmp_path: Path, selection: dict[str, Any], absent: set[str]) -> None:
    fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address, **selection)
    assert contents(tmp_path / "set").keys() == wanted(hub).keys() - absent


def test_a_selection_that_matches_nothing_is_an_error_with_near_misses(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'elementwise'"):
        fetch("flashinfer-trace", tmp_path, endpoint=hub.address, op_types=["elementwize"])


@pytest.mark.parametrize(("name", "revision"), [("somebody/nothing", None), ("flashinfer-trace", "v9"), ("a b", None)])
def test_a_wrong_name_is_explained(hub: Hub, tmp_path: Path, name: str, revision: str | None) -> None:
    with pytest.raises(FetchFailed, match=r"no such data set or revision.*HF_TOKEN.*write OWNER/NAME"):
        fetch(name, tmp_path / "set", revision=revision, endpoint=hub.address)
    assert not (tmp_path / "set").exists()


def test_a_hub_that_does_not_answer_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"the download stopped: .*; run the same command again to continue"):
        fetch("flashinfer-trace", tmp_path / "set", endpoint="http://127.0.0.1:9")


def test_the_command_fetches_and_names_the_next_step(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command: Callable[..., int] = lambda *words: main(["fetch", *words, "--endpoint", hub.address])  # noqa: E731
    assert command("flashinfer-trace") == 0
    said = capsys.readouterr().out
    assert f"{REPOSITORY} at cccccccccccc: 5 files" in said
    assert "next: fib-bench validate flashinfer-trace" in said
    assert contents(tmp_path / "flashinfer-trace") == wanted(hub)
    assert command("flashinfer-trace", "part", "--no-blobs", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"] == 4
    assert command("flashinfer-trace", "part", "--op-types", "gem") == 2
    assert "no op_type is named 'gem'" in capsys.readouterr().err
