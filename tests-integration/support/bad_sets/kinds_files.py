"""Kinds of bad files: other contents than JSON, and other objects of the file system than files."""

import gzip
import os
import shutil
import socket
from pathlib import Path

from .healthy import ALL_PARTS, DEFINITION, SOLUTION, TRACES, WORKLOADS
from .kind import PART_NAMES, Kind, each_part

_FOLDERS = {DEFINITION: "definitions", SOLUTION: "solutions", WORKLOADS: "workloads", TRACES: "traces"}
_JSON = (DEFINITION, SOLUTION)


def _rewritten(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


_CONTENTS = [
    ("with a byte order mark", lambda data: b"\xef\xbb\xbf" + data, {"is_error": None}),
    ("in UTF-16", lambda data: data.decode().encode("utf-16"), {}),
    ("in UTF-32 without mark", lambda data: data.decode().encode("utf-32-le"), {}),
    ("compressed with gzip", gzip.compress, {}),
    ("with CRLF", lambda data: data.replace(b"\n", b"\r\n"), {"is_error": None, "named": ()}),
    ("with CR alone", lambda data: data.replace(b"\n", b"\r"), {"is_error": None, "named": ()}),
    ("truncated", lambda data: data[: len(data) // 2], {}),
    ("empty", lambda _: b"", {}),
    ("of NUL bytes", lambda data: bytes(len(data)), {}),
    ("with invalid UTF-8", lambda data: data.replace(b"victim", b"vic\xfftim"), {}),
    ("of random bytes", lambda _: bytes(range(256)) * 16, {}),
    ("null", lambda _: b"null", {}),
    ("a list", lambda _: b"[]", {}),
    ("a number", lambda _: b"1" * 5000, {}),
    ("a string", lambda _: b'"victim"', {}),
    ("two records", lambda data: data + data, {}),
    ("with a comma too much", lambda data: data.replace(b"}", b",}"), {}),
    ("with comments", lambda data: b"// a record\n" + data, {}),
    ("an HTML page", lambda _: b"<!DOCTYPE html><html><body>404</body></html>\n", {}),
    ("a Git LFS pointer", lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", {}),
    ("nested 100,000 deep", lambda _: b"[" * 100_000, {}),
    ("a string of 20 MB", lambda _: b'"' + b"x" * 20_000_000 + b'"', {}),
    ("a pickle", lambda _: b"\x80\x04cos\nsystem\nX\x04\x00\x00\x00true\x85R.", {}),
]
_ENCODED = [
    kind
    for name, change, fields in _CONTENTS
    for kind in each_part(
        name,
        _rewritten(change),
        _JSON if name == "two records" else ALL_PARTS,
        **(fields | ({"is_error": None, "named": ()} if name == "empty" else {})),
    )
]


def _replaced(make):
    def damage(path):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        make(path)

    return damage


def _socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket has at most 107 bytes
    server = socket.socket(socket.AF_UNIX)
    server.bind(path.name)
    server.close()
    os.chdir(here)


def _moved_out(path):
    outside = _outside(path)
    shutil.move(path, outside)
    path.symlink_to(outside)


def _outside(path):
    case = next(parent for parent in path.parents if parent.name == "set").parent
    return case / f"outside-{path.name}"


def _linked(target):
    return _replaced(lambda path: path.symlink_to(target))


def _loop(path):
    path.unlink()
    other = path.with_name(f"{path.stem}-2{path.suffix}")
    path.symlink_to(other.name)
    other.symlink_to(path.name)


def _sparse(path):
    with path.open("r+b") as file:
        file.truncate(10 << 30)


def _hard_linked(path):
    os.link(path, path.with_name(f"a{path.name}"))


_OBJECTS = [
    *each_part("a FIFO", _replaced(os.mkfifo)),
    *each_part("a socket", _replaced(_socket)),
    # A folder may have any name; that its records are missing shows where others refer to them.
    *each_part("a folder", _replaced(Path.mkdir), is_error=None, named=()),
    *each_part("a link to an endless device", _linked("/dev/zero")),
    *each_part("a link to a terminal", _linked("/dev/tty")),
    *each_part("a dangling link", _linked("nowhere.json")),
    *each_part("a link to itself", _replaced(lambda path: path.symlink_to(path.name))),
    *each_part("links in a loop", _loop),
    *each_part("a link out of the set", _moved_out, is_error=None, named=()),
    *each_part("a file without permissions", lambda path: path.chmod(0), is_unprivileged=True),
    *each_part("a sparse file of 10 GB", _sparse),
    *each_part("a second hard link", _hard_linked, is_error=None, keeps_rest=False),
]


def _extra_name(name):
    def damage(path):
        raw = os.fsencode(name) if isinstance(name, str) else name
        path.rename(os.fsdecode(os.path.join(os.fsencode(path.parent), raw + os.fsencode(path.suffix))))

    return damage


_LEGITIMATE_NAME = {"is_error": None, "named": ()}
_NAMES = [
    *each_part("a name with a newline", _extra_name("vic\ntim"), **_LEGITIMATE_NAME),
    *each_part("a name with an escape sequence", _extra_name("vic\x1b[2Jtim"), **_LEGITIMATE_NAME),
    *each_part("a name with bidi characters", _extra_name("vic\u202etim"), **_LEGITIMATE_NAME),
    *each_part("a name that is not UTF-8", _extra_name(b"vic\xfftim"), **_LEGITIMATE_NAME),
    *each_part("a name of 249 bytes", _extra_name("v" * 249), **_LEGITIMATE_NAME),
    *each_part("a name with markup", _extra_name("[red]victim[nothing]"), **_LEGITIMATE_NAME),
    *each_part("a name with format characters", _extra_name("%s{0}%n"), **_LEGITIMATE_NAME),
    *each_part("a hidden name", _extra_name(".victim"), **_LEGITIMATE_NAME),
]


def _bad_named(name):
    def damage(path):
        path.write_text("rubbish")
        path.rename(os.fsdecode(os.path.join(os.fsencode(path.parent), name + os.fsencode(path.suffix))))

    return damage


_BAD_NAMES = [
    *each_part(
        "rubbish in a name with a newline", _bad_named(b"vic\ntim"), named=("vic\\ntim", "vic\\x0atim", "vic\\u000atim")
    ),
    *each_part(
        "rubbish in a name with an escape sequence",
        _bad_named(b"vic\x1b[2Jtim"),
        named=("vic\\x1b[2Jtim", "vic\\u001b[2Jtim"),
    ),
    *each_part(
        "rubbish in a name with bidi characters",
        _bad_named("vic\u202etim".encode()),
        named=("vic\\u202etim", "vic\\u202Etim"),
    ),
    *each_part(
        "rubbish in a name that is not UTF-8",
        _bad_named(b"vic\xfftim"),
        named=("vic\\xfftim", "vic\\udcfftim", "vic\ufffdtim"),
    ),
    *each_part("rubbish in a name with markup", _bad_named(b"[red]victim[nothing]"), named=("[red]victim[nothing]",)),
]


def _nested_folders(path):
    here = os.open(path.parent, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)


def _link_to_parent(path):
    (path.parent / "up").symlink_to("..")


def _on_folder(name, change, **fields):
    """Kinds of damage to the folder of each part, such as ``definitions``."""
    kinds = []
    for part_path, folder in _FOLDERS.items():

        def damage(root, folder=folder):
            change(root / folder)

        all_fields = {"part": PART_NAMES[part_path], "named": (folder,), "keeps_rest": False, "shows_when": "listed"}
        kinds.append(Kind(f"{folder}/: {name}", damage, **(all_fields | fields)))
    return kinds


def _rubbish_below(path):
    folder = path.parent / "fol\nder"
    folder.mkdir()
    (folder / f"rubbish{path.suffix}").write_text("rubbish")


def _rubbish_namesake(path):
    folder = path.parent / "other"
    folder.mkdir()
    (folder / path.name).write_text("rubbish")


_FOLDER_KINDS = [
    *_on_folder("a file", _replaced(lambda path: path.write_text("x"))),
    *_on_folder("a FIFO", _replaced(os.mkfifo)),
    *_on_folder("a link to itself", _replaced(lambda path: path.symlink_to(path.name))),
    *_on_folder("a dangling link", _replaced(lambda path: path.symlink_to("nowhere"))),
    *_on_folder("a link out of the set", _moved_out, is_error=None, named=()),
    *_on_folder("a folder without permissions", lambda path: path.chmod(0), is_unprivileged=True),
    *_on_folder("missing", shutil.rmtree, named=(), is_error=None),
    *each_part("1,500 nested folders beside it", _nested_folders, is_error=None, named=("d/d/d",)),
    *each_part("a link to its parent folder beside it", _link_to_parent, is_error=None, named=()),
    *each_part(
        "a folder without permissions",
        lambda path: path.parent.chmod(0),
        keeps_rest=False,
        is_unprivileged=True,
        named=("activation", "victim"),
    ),
    *each_part("rubbish of the same file name in another folder", _rubbish_namesake, named=("other/victim",)),
    *each_part(
        "a folder with a newline in its name, rubbish in it", _rubbish_below, named=("fol\\nder", "fol\\x0ader")
    ),
]


FILES = (*_ENCODED, *_OBJECTS, *_NAMES, *_BAD_NAMES, *_FOLDER_KINDS)
