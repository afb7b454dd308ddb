"""Downloads of data sets, from a hub on the loopback interface that also misbehaves."""

import hashlib
import http.server
import json
import threading
from collections import Counter
from urllib.parse import unquote, urlparse

import attrs
import pytest
from fib_bench.cli.main import main
from fib_schema import Trace, TraceSet, format_json

from .samples import DOUBLE, make_workload

pytest.importorskip("huggingface_hub", reason="needs the extra hub")

from fib_bench.hub import DATA_SETS, FetchFailed, fetch

REPOSITORY = DATA_SETS["flashinfer-trace"]
LARGE = "blob/workloads/elementwise/double/w.safetensors"


def data_set():
    other = attrs.evolve(DOUBLE, name="triple", op_type="arithmetic")
    workload = Trace(DOUBLE.name, make_workload(DOUBLE, {"n": 4}))
    return {
        "README.md": b"a data set\n",
        ".gitattributes": b"* text\n",
        "scripts/run.sh": b"rm -rf /\n",
        "definitions/elementwise/double.json": format_json(DOUBLE).encode(),
        "definitions/arithmetic/triple.json": format_json(other).encode(),
        "workloads/elementwise/double.jsonl": format_json(workload).encode() + b"\n",
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

    def tree(self):
        return [
            {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
            for path, content in self.files.items()
        ]

    def info(self):
        siblings = [{"rfilename": path} for path in self.files]
        return {"id": REPOSITORY, "sha": self.commit, "siblings": siblings, "tags": []}


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments):
        """Print nothing."""

    def do_HEAD(self):
        self.answer(is_head=True)

    def do_GET(self):
        self.answer(is_head=False)

    def answer(self, *, is_head):
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

    def file(self, name, is_head):
        if name in self.hub.refused:
            self.reply(403, b"", is_head)
            return
        content = self.hub.files[name]
        self.hub.requests[name] += not is_head
        self.reply(200, content, is_head, {"ETag": f'"{git_hash(content)}"', "X-Repo-Commit": self.hub.commit})

    def reply(self, status, content, is_head, headers=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if not is_head:
            self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch, tmp_path):
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


def contents(folder):
    """The files of a data set, without those of the download itself."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def wanted(hub):
    return {path: content for path, content in hub.files.items() if not path.startswith((".", "scripts/"))}


def test_a_data_set_is_fetched_once_without_hidden_files_and_what_is_no_data(hub, tmp_path):
    fetched = fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    assert contents(tmp_path / "set") == wanted(hub)
    assert (fetched.revision, fetched.files) == (hub.commit, 5)
    assert TraceSet.from_path(tmp_path / "set").definition_names() == ("triple", "double")
    hub.requests.clear()
    fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    assert hub.requests == {}


def test_a_fetch_continues_after_a_failure(hub, tmp_path):
    hub.refused.add(LARGE)
    with pytest.raises(FetchFailed, match=r"the download stopped: .*403.*run the same command again to continue"):
        fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    before = contents(tmp_path / "set")
    assert LARGE not in before
    hub.refused.clear()
    hub.requests.clear()
    fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    assert contents(tmp_path / "set") == wanted(hub)
    assert set(hub.requests) == wanted(hub).keys() - before.keys()


def test_a_file_that_was_changed_here_is_never_replaced(hub, tmp_path):
    fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    mine = tmp_path / "set/workloads/elementwise/double.jsonl"
    mine.write_bytes(mine.read_bytes() * 2)
    changed = mine.read_bytes()
    with pytest.raises(FetchFailed, match=r"double\.jsonl in .* differ from what was fetched; fetch into another"):
        fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address)
    assert mine.read_bytes() == changed


def test_a_newer_revision_replaces_what_is_as_it_was_fetched(hub, tmp_path):
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
def test_a_part_can_be_fetched(hub, tmp_path, selection, absent):
    fetch("flashinfer-trace", tmp_path / "set", endpoint=hub.address, **selection)
    assert contents(tmp_path / "set").keys() == wanted(hub).keys() - absent


@pytest.mark.parametrize(("name", "revision"), [("somebody/nothing", None), ("flashinfer-trace", "v9"), ("a b", None)])
def test_a_wrong_name_is_explained(hub, tmp_path, name, revision):
    with pytest.raises(FetchFailed, match=r"write OWNER/NAME or one of flashinfer-trace, set HF_TOKEN"):
        fetch(name, tmp_path / "set", revision=revision, endpoint=hub.address)
    assert not (tmp_path / "set").exists()


def test_a_hub_that_does_not_answer_is_explained(tmp_path):
    with pytest.raises(FetchFailed, match=r"the download stopped: .*run the same command again to continue"):
        fetch("flashinfer-trace", tmp_path / "set", endpoint="http://127.0.0.1:9")


def test_the_command_fetches_and_names_the_next_step(hub, tmp_path, capsys):
    command = lambda *words: main(["fetch", *words, "--endpoint", hub.address])  # noqa: E731
    assert command("flashinfer-trace") == 0
    said = capsys.readouterr().out
    assert f"{REPOSITORY} at cccccccccccc: 5 files" in said
    assert "next: fib-bench validate flashinfer-trace" in said
    assert contents(tmp_path / "flashinfer-trace") == wanted(hub)
    assert command("flashinfer-trace", "part", "--no-blobs") == 0
    assert "4 files in part" in capsys.readouterr().out
    assert command("flashinfer-trace", "part", "--op-types", "elementwize") == 2
    assert "no op_type is named 'elementwize'; did you mean 'elementwise'" in capsys.readouterr().err
