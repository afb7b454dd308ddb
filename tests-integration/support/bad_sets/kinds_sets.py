"""Kinds of bad tensor files (blobs), and of bad sets as a whole."""

import os
import shutil
import struct
from pathlib import Path

from .healthy import BLOB, healthy_blob, safetensors
from .kind import Kind
from .kinds_files import _loop, _moved_out, _replaced, _socket, _sparse

_NAMED = ("victim-2.safetensors", "victim.jsonl")


def _blob(name, change, **fields):
    all_fields = {"part": "blob", "named": _NAMED, **fields}
    return Kind(f"blob: {name}", lambda root: change(root / BLOB), **all_fields)


def _bytes(data):
    return lambda path: path.write_bytes(data)


def _header(raw, data=bytes(64)):
    return _bytes(struct.pack("<Q", len(raw)) + raw + data)


def _tensor(**fields):
    entry = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]} | fields
    return _bytes(safetensors({"x": entry}, bytes(64)))


def _sparse_header(path):
    path.write_bytes(struct.pack("<Q", 100_000_000))
    os.truncate(path, 100_000_100)


def _orphan(path):
    Path(os.fsdecode(os.fsencode(path.parent) + b"/or\xffphan.safetensors")).write_bytes(healthy_blob())


BLOBS = (
    _blob("missing", Path.unlink, shows_when="listed"),
    _blob("a folder", _replaced(Path.mkdir), shows_when="listed"),
    _blob("a FIFO", _replaced(os.mkfifo), shows_when="listed"),
    _blob("a socket", _replaced(_socket), shows_when="listed"),
    _blob("a dangling link", _replaced(lambda path: path.symlink_to("nowhere")), shows_when="listed"),
    _blob("links in a loop", _loop, shows_when="listed"),
    _blob("a link to an endless device", _replaced(lambda path: path.symlink_to("/dev/zero")), shows_when="listed"),
    _blob("a link out of the set", _moved_out, shows_when="listed"),
    _blob("a file without permissions", lambda path: path.chmod(0), is_unprivileged=True, shows_when="listed"),
    _blob("its folder a FIFO", lambda path: _replaced(os.mkfifo)(path.parent), shows_when="listed"),
    _blob(
        "its folder without permissions", lambda path: path.parent.chmod(0), is_unprivileged=True, shows_when="listed"
    ),
    _blob("the folder blob a link out of the set", lambda path: _moved_out(path.parents[3]), named=(), is_error=None),
    _blob("empty", _bytes(b"")),
    _blob("of 7 bytes", _bytes(bytes(7))),
    _blob("truncated", _bytes(healthy_blob()[:-32])),
    _blob("with bytes behind", _bytes(healthy_blob() + bytes(8))),
    _blob("a sparse file of 10 GB", _sparse, keeps_rest=False),  # a copy exceeds the limit of a case
    _blob("header length 2**63", _bytes(struct.pack("<Q", 2**63) + healthy_blob()[8:])),
    _blob("header length 2**64 - 1", _bytes(b"\xff" * 8 + healthy_blob()[8:])),
    _blob("header length zero", _bytes(bytes(8) + healthy_blob()[8:])),
    _blob("header of 100 MB in a sparse file", _sparse_header),
    _blob("header no JSON", _header(b"{rubbish")),
    _blob("header a list", _header(b"[]")),
    _blob("header with invalid UTF-8", _header(b'{"\xff": 1}')),
    _blob("header nested 100,000 deep", _header(b'{"x":' * 100_000 + b"1" + b"}" * 100_000)),
    _blob("header with a key twice", _header(b'{"x":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},"x":{}}')),
    _blob(
        "header with an integer of 5,000 digits",
        _header(b'{"x":{"dtype":"F32","shape":[' + b"7" * 5000 + b'],"data_offsets":[0,64]}}'),
    ),
    _blob("dtype unknown", _tensor(dtype="F33")),
    _blob("dtype a number", _tensor(dtype=32)),
    _blob("dtype other than the definition's", _tensor(dtype="I32")),
    _blob("shape other than the workload's", _tensor(shape=[4, 4])),
    _blob("shape negative", _tensor(shape=[-16])),
    _blob("shape of products beyond 64 bits", _tensor(shape=[2**62, 2**62])),
    _blob("shape a string", _tensor(shape="16")),
    _blob("shape of floats", _tensor(shape=[16.0])),
    _blob("shape with NaN", _header(b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,64]}}')),
    _blob("offsets beyond the file", _tensor(data_offsets=[0, 2**40])),
    _blob("offsets backwards", _tensor(data_offsets=[64, 0])),
    _blob("offsets negative", _tensor(data_offsets=[-64, 0])),
    _blob("offsets a number", _tensor(data_offsets=64)),
    _blob(
        "offsets of two tensors overlap",
        _bytes(safetensors({k: {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]} for k in "xy"}, bytes(64))),
    ),
    _blob("tensor null", _header(b'{"x": null}')),
    _blob(
        "metadata a number",
        _header(b'{"__metadata__": 5, "x":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}'),
        is_error=None,
    ),
    _blob("a ZIP archive", _bytes(b"PK\x03\x04" + bytes(100))),
    _blob("an orphan with a name that is not UTF-8", _orphan, is_error=None, named=()),
)


def _set(name, change, **fields):
    all_fields = {"part": "set", "named": (), "is_error": None, "keeps_rest": False, **fields}
    return Kind(f"set: {name}", change, **all_fields)


def _emptied(path):
    shutil.rmtree(path)
    path.mkdir()


def _renamed(name):
    path = os.fsdecode(name)
    return {"path": path, "change": lambda root: root.rename(root.with_name(path)), "keeps_rest": True}


def _wrong(name, change, *, is_refused=True, **fields):
    """A set that is none: commands name the path and do not claim success."""
    return _set(name, change, **({"named": ("set",), "is_error": True if is_refused else None} | fields))


def _settings(about, content):
    """A file of settings with this content, or what a function makes in its place."""

    def damage(root):
        path = root / "fib-bench.yaml"
        if callable(content):
            content(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return _set(f"settings {about}", damage, named=("fib-bench.yaml",), part="settings")


def _part_of_it(about, path, **fields):
    return _set(about, lambda _: None, path=path, named=(Path(path).name,), is_error=True, **fields)


def _read_only(root):
    for folder, _, files in os.walk(root):
        for file in files:
            os.chmod(os.path.join(folder, file), 0o444)
        os.chmod(folder, 0o555)


_ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{c}: &{c} [{','.join(['*' + b] * 9)}]\n" for b, c in zip("abcdefghi", "bcdefghij", strict=True)
)
SETS = (
    _wrong("missing", shutil.rmtree),
    _wrong("a file", _replaced(lambda path: path.write_text("x"))),
    _wrong("a FIFO", _replaced(os.mkfifo)),
    _wrong("a dangling link", _replaced(lambda path: path.symlink_to("nowhere"))),
    _wrong("a link to itself", _replaced(lambda path: path.symlink_to(path.name))),
    _wrong("an empty folder", _emptied, shows_when="used"),
    _wrong("without permissions", lambda path: path.chmod(0), is_unprivileged=True),
    _wrong(
        "a folder of other files",
        lambda path: (_emptied(path), (path / "notes.txt").write_text("x")),
        shows_when="used",
    ),
    _part_of_it("its folder definitions", "set/definitions", shows_when="used"),
    _part_of_it("its folder solutions", "set/solutions", shows_when="used"),
    _part_of_it("one of its files", "set/definitions/activation/victim.json"),
    _set("a path with NUL", lambda _: None, path="se\0t", is_error=True),
    _set("a path of 5,000 characters", lambda _: None, path="s" * 5000, is_error=True),
    _set("an empty path", lambda _: None, path="", is_error=None),
    _set("a path with a slash behind", lambda _: None, path="set//", keeps_rest=True),
    _set("a path with dots", lambda _: None, path="set/definitions/../../set", keeps_rest=True),
    _set("read-only", _read_only, is_unprivileged=True),
    _set(
        "a link to a set", lambda root: (root.rename(root.with_name("real")), root.symlink_to("real")), keeps_rest=True
    ),
    *(
        _set(f"in a folder named {said}", **_renamed(name))
        for said, name in (
            ("with a newline", "se\nt"),
            ("with an escape sequence", "se\x1b[2Jt"),
            ("with bidi characters", "se\u202et"),
            ("with markup", "[red]set[bold]"),
            ("in bytes that are not UTF-8", b"se\xfft"),
            ("with a percent sign", "%s%d{0}"),
            ("like an option", "-set"),
            ("with a space and a quote", "a 'set\""),
        )
    ),
    _set(
        "unknown folders and files in its root",
        lambda root: ((root / "extra").mkdir(), (root / "README.md").write_text("x"), os.mkfifo(root / "pipe")),
        keeps_rest=True,
    ),
    _settings("that are no YAML", "a: [1\n b"),
    _settings("with an unknown key", "iteratoins: 3\n"),
    _settings("a list", "- 1\n"),
    _settings("that construct objects", "!!python/object/apply:os.system [true]\n"),
    _settings("of nested aliases", _ALIASES),
    _settings("a FIFO", os.mkfifo),
    _settings("a folder", Path.mkdir),
    _settings("of invalid UTF-8", b"\xff\xfe\x00a"),
    _settings("nested 100,000 deep", "[" * 100_000),
    _settings("with NaN", "timeout_seconds: .nan\nrtol: .inf\niterations: 1.0e+400\n"),
)
