"""Keys, manifests, signing and verification of data sets, and the commands."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path

import attrs
import pytest
from fib_schema.cli import main
from fib_schema.signing import (
    CannotSign,
    FileState,
    InvalidKey,
    Manifest,
    NotAsSigned,
    NotSigned,
    PrivateKey,
    PublicKey,
    SignedFile,
    SignedFiles,
    read_public_keys,
    sign,
    verify,
)
from fib_schema.signing.errors import InvalidManifest, PassphraseNeeded
from fib_schema.signing.manifest import collisions, path_problem
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("securesystemslib", reason="needs the extra `signing`")

TIME = "2026-11-23T11:00:00Z"
HASH = "0" * 64
TRACES = "traces/ada/gemm/gemm.jsonl"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return PrivateKey.generate(tmp_path_factory.mktemp("keys") / "owner")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    for path, content in {
        "definitions/gemm/gemm.json": "{}",
        "solutions/ada/gemm/gemm/fast.json": '{"name": "fast"}',
        TRACES: '{"definition": "gemm"}\n{"definition": "other", "x": NaN}\nnothing\n',
        "workloads/gemm/gemm.jsonl": '{"definition": "gemm"}\n',
        "blob/workloads/gemm/gemm/a.safetensors": "tensor",
        "README.md": "not covered",
        "traces/.hidden.jsonl": "not covered",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


def states(root: Path, key: PrivateKey) -> dict[str, str]:
    return {file.path: str(file.state) for file in verify(root, [key.public]).differences}


class TestKeys:
    def test_the_private_key_is_readable_by_its_owner_only(self, tmp_path: Path) -> None:
        made = PrivateKey.generate(tmp_path / "key", comment="ada at work")
        assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
        assert (tmp_path / "key.pub").read_text() == f"{made.public.text} ada at work\n"
        assert PrivateKey.load(tmp_path / "key").public == made.public

    @pytest.mark.parametrize("existing", ["key", "key.pub"])
    def test_a_key_is_never_overwritten(self, tmp_path: Path, existing: str) -> None:
        (tmp_path / existing).write_text("mine")
        with pytest.raises(InvalidKey, match=f"{existing}: exists; keys are never overwritten"):
            PrivateKey.generate(tmp_path / "key")
        assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]

    def test_a_passphrase_encrypts(self, tmp_path: Path) -> None:
        made = PrivateKey.generate(tmp_path / "key", "secret")
        assert PrivateKey.load(tmp_path / "key", "secret").public == made.public
        with pytest.raises(PassphraseNeeded, match="is encrypted; pass its passphrase"):
            PrivateKey.load(tmp_path / "key")
        with pytest.raises(InvalidKey, match="the passphrase is wrong"):
            PrivateKey.load(tmp_path / "key", "other")

    def test_an_empty_or_needless_passphrase_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidKey, match="passphrase is empty"):
            PrivateKey.generate(tmp_path / "key", "")
        PrivateKey.generate(tmp_path / "key")
        with pytest.raises(InvalidKey, match="is not encrypted"):
            PrivateKey.load(tmp_path / "key", "secret")

    @pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
    def test_a_private_key_that_others_can_read_is_refused(self, tmp_path: Path) -> None:
        PrivateKey.generate(tmp_path / "key")
        (tmp_path / "key").chmod(0o640)
        with pytest.raises(InvalidKey, match="others than its owner have access"):
            PrivateKey.load(tmp_path / "key")

    @pytest.mark.parametrize("content", [b"", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", b"\xff\x00", b"{}"])
    def test_a_file_that_is_no_key_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "key").write_bytes(content)
        (tmp_path / "key").chmod(0o600)
        with pytest.raises(InvalidKey):
            PrivateKey.load(tmp_path / "key")
        with pytest.raises(InvalidKey):
            read_public_keys(tmp_path / "key")

    @pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
    def test_keys_of_openssh_are_used_and_shown_alike(self, tmp_path: Path, root: Path) -> None:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-C", "me", "-f", str(tmp_path / "key")]
        subprocess.run(words, check=True)
        key = PrivateKey.load(tmp_path / "key", "secret")
        words = ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")]
        assert key.public.fingerprint in subprocess.run(words, check=True, capture_output=True, text=True).stdout
        sign(root, key)
        assert verify(root, read_public_keys(tmp_path / "key.pub")).is_ok()

    @pytest.mark.parametrize("kind", ["ecdsa"])
    @pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
    def test_other_types_are_refused(self, tmp_path: Path, kind: str) -> None:
        words = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(tmp_path / "key")]
        subprocess.run(words, check=True)
        with pytest.raises(InvalidKey, match="must be Ed25519"):
            PrivateKey.load(tmp_path / "key")
        with pytest.raises(InvalidKey, match="must be 'ssh-ed25519'"):
            read_public_keys(tmp_path / "key.pub")

    def test_a_certificate_is_no_key(self, key: PrivateKey) -> None:
        with pytest.raises(InvalidKey, match="must be 'ssh-ed25519'"):
            PublicKey.parse(key.public.text.replace("ssh-ed25519", "ssh-ed25519-cert-v01@openssh.com"))


class TestManifest:
    def test_lists_all_files_with_the_definitions_of_traces(self, root: Path, key: PrivateKey) -> None:
        files = sign(root, key).manifest.files
        assert [file.path for file in files] == [
            "blob/workloads/gemm/gemm/a.safetensors",
            "definitions/gemm/gemm.json",
            "solutions/ada/gemm/gemm/fast.json",
            TRACES,
            "workloads/gemm/gemm.jsonl",
        ]
        assert {file.path: file.definitions for file in files if file.definitions} == {TRACES: ("gemm", "other")}
        assert files[0].size == len("tensor")

    @given(
        st.dictionaries(
            st.from_regex(r"(traces|blob)/[a-z]{1,9}(/[a-zé雪]{1,9}){0,3}\.jsonl", fullmatch=True),
            st.tuples(
                st.integers(0, 2**60),
                st.frozensets(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=3),
            ),
            max_size=6,
        ),
        st.integers(1, 2**53 - 1),
    )
    def test_is_read_as_it_was_written(self, files: dict[str, tuple[int, frozenset[str]]], serial: int) -> None:
        entries = [SignedFile(path, size, HASH, tuple(sorted(names))) for path, (size, names) in sorted(files.items())]
        made = Manifest(serial, TIME, entries)
        assert Manifest.parse(made.to_bytes()) == made

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("]}", "]} "),
            (":", ": "),
            ('"format":1', '"format":1.0'),
            ('"format":1', '"format":2'),
            ('"format":1,', ""),
            ('"serial":1', '"serial":1,"serial":1'),
            ('"serial":1', '"serial":0'),
            ('"serial":1', f'"serial":{10**400}'),
            ('"serial":1', '"serial":true'),
            ('"size":2', '"size":-2'),
            ('"size":2', '"size":"2"'),
            ("gemm", "\\u0067emm"),
            ("00000", "0000"),
            ("00000", "0000A"),
            ("blob/", "blob/../"),
            ("blob/", "/blob/"),
            ("blob/", "other/"),
            ("blob/", "zzz/"),
            ("}]}", '}],"more":1}'),
            ("}]}", ',"more":1}]}'),
            ('["a","b"]', '["b","a"]'),
            ('["a","b"]', '["a","a"]'),
            ("2026-", "-2026"),
            ("{", "[" * 100_000),
        ],
        ids=str,
    )
    def test_only_the_canonical_encoding_is_read(self, old: str, new: str) -> None:
        files = [SignedFile("blob/gemm", 2, HASH), SignedFile("traces/x.jsonl", 3, HASH, ("a", "b"))]
        text = Manifest(1, TIME, files).to_bytes().decode()
        assert old in text
        for position in (text.index(old), text.rindex(old)):
            with pytest.raises(InvalidManifest):
                Manifest.parse((text[:position] + text[position:].replace(old, new, 1)).encode())

    @pytest.mark.parametrize("data", [b"", b"null", b"\xff", b"{}"])
    def test_what_is_no_manifest_is_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidManifest):
            Manifest.parse(data)

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "/traces/x",
            "traces",
            "traces/",
            "traces//x",
            "traces/./x",
            "traces/../x",
            "traces/.x",
            "traces\\x",
            "traces/a\\x",
            "traces/c:x",
            "other/x",
            "Traces/x",
            "traces/\n",
            "traces/\x1b[2J",
            "traces/a\u202eb",
            "traces/\udcff",
            "traces/\x00",
            unicodedata.normalize("NFD", "traces/é"),
        ],
    )
    def test_a_path_that_means_something_else_elsewhere_is_refused(self, path: str) -> None:
        assert path_problem(path)

    def test_paths_that_differ_by_case_are_refused(self) -> None:
        assert collisions(["traces/A/x", "traces/a/x"])
        assert collisions(["traces/straße", "traces/STRASSE"])
        assert not collisions(["traces/a/x", "traces/a/y"])
        with pytest.raises(InvalidManifest, match="differ only by case"):
            Manifest(1, TIME, [SignedFile("traces/A", 1, HASH), SignedFile("traces/a", 1, HASH)])


class TestSign:
    def test_shows_what_the_signature_covers_in_addition(self, root: Path, key: PrivateKey) -> None:
        first = sign(root, key)
        assert {file.state for file in first.files} == {FileState.ADDED}
        (root / "solutions/ada/gemm/gemm/evil.json").write_text("{}")
        with (root / TRACES).open("a") as file:
            file.write("{}\n")
        dry = sign(root, key, writes=False)
        assert {file.path: file.state for file in dry.differences} == {
            "solutions/ada/gemm/gemm/evil.json": FileState.ADDED,
            TRACES: FileState.GROWN,
        }
        assert verify(root, [key.public]).manifest.serial == 1
        assert sign(root, key).manifest.serial == 2
        assert verify(root, [key.public]).is_ok()

    def test_the_serial_grows(self, root: Path, key: PrivateKey) -> None:
        assert sign(root, key, serial=7).manifest.serial == 7
        assert sign(root, key).manifest.serial == 8
        with pytest.raises(CannotSign, match="serial 8 does not follow 8"):
            sign(root, key, serial=8)
        with pytest.raises(InvalidManifest, match="serial"):
            sign(root, key, serial=-1)

    def test_the_signature_of_another_owner_stays(self, root: Path, key: PrivateKey, tmp_path: Path) -> None:
        other = PrivateKey.generate(tmp_path / "other")
        sign(root, key)
        sign(root, other)
        assert verify(root, [key.public]).is_ok()
        assert verify(root, [other.public]).is_ok()

    def test_all_that_cannot_be_signed_is_named(self, root: Path, key: PrivateKey) -> None:
        (root / "solutions/link.json").symlink_to("ada/gemm/gemm/fast.json")
        (root / "solutions/out").symlink_to("/")
        (root / "traces/GEMM.jsonl").touch()
        (root / "traces/gemm.jsonl").touch()
        (root / "blob/pointer").write_text("version https://git-lfs.example/spec/v1\n")
        (root / "blob/back\\slash").touch()
        if hasattr(os, "mkfifo"):
            os.mkfifo(root / "traces/pipe.jsonl")
        with pytest.raises(CannotSign) as caught:
            sign(root, key)
        text = str(caught.value)
        for part in (
            "link.json: is a link",
            "solutions/out: is a link",
            "differ only by case",
            "Git LFS pointer",
            "slash",
        ):
            assert part in text
        assert len(caught.value.problems) == 6
        assert not (root / "signatures").exists()

    @pytest.mark.parametrize("folder", ["definitions", "solutions"])
    @pytest.mark.parametrize("content", ['{"name": "fast"}', '{"x": NaN, "name": "fast"}'], ids=["strict", "lenient"])
    def test_an_ambiguous_name_is_refused(self, root: Path, key: PrivateKey, folder: str, content: str) -> None:
        """Both are ignored while both exist; removing one would make the other count."""
        for name in ("a", "b"):
            (root / folder / f"{name}.json").write_text(content.replace("fast", "twice"))
        with pytest.raises(CannotSign, match=f"{folder}/b.json: {folder}/a.json has the name 'twice' too"):
            sign(root, key)

    def test_too_many_files_for_the_reader_are_refused(
        self, root: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fib_schema.signing.envelope.MAX_ENVELOPE_BYTES", 500)
        with pytest.raises(CannotSign, match="split the set"):
            sign(root, key)

    def test_an_empty_set_is_refused(self, tmp_path: Path, key: PrivateKey) -> None:
        with pytest.raises(CannotSign, match="it has no files; is it a data set"):
            sign(tmp_path, key)

    def test_a_folder_that_is_a_link_is_refused(self, root: Path, key: PrivateKey) -> None:
        (root / "traces").rename(root / "elsewhere")
        (root / "traces").symlink_to("elsewhere")
        with pytest.raises(CannotSign, match="traces: is a link"):
            sign(root, key)

    def test_a_damaged_last_signature_is_not_replaced(self, root: Path, key: PrivateKey) -> None:
        sign(root, key)
        (path,) = (root / "signatures").iterdir()
        path.write_text("{}")
        with pytest.raises(NotSigned, match="it is not a DSSE envelope"):
            sign(root, key)

    def test_lines_that_are_appended_meanwhile_leave_a_valid_signature(self, root: Path, key: PrivateKey) -> None:
        stop = threading.Event()

        def append() -> None:
            with (root / TRACES).open("a", buffering=1) as file:
                while not stop.is_set():
                    file.write('{"definition": "gemm"}\n')

        thread = threading.Thread(target=append)
        thread.start()
        try:
            for _ in range(20):
                sign(root, key)
                assert set(states(root, key).values()) <= {"grown"}
        finally:
            stop.set()
            thread.join()


class TestVerify:
    def test_lists_every_kind_of_difference(self, root: Path, key: PrivateKey) -> None:
        sign(root, key)
        assert states(root, key) == {}
        (root / "definitions/gemm/gemm.json").write_text("[]")
        (root / "solutions/ada/gemm/gemm/fast.json").unlink()
        (root / "solutions/new.json").touch()
        with (root / TRACES).open("a") as file:
            file.write("{}\n")
        with (root / "blob/workloads/gemm/gemm/a.safetensors").open("a") as file:
            file.write("more")
        assert states(root, key) == {
            "blob/workloads/gemm/gemm/a.safetensors": "changed",
            "definitions/gemm/gemm.json": "changed",
            "solutions/ada/gemm/gemm/fast.json": "missing",
            "solutions/new.json": "added",
            TRACES: "grown",
        }

    def test_a_link_in_place_of_a_file_or_folder_is_a_difference(
        self, root: Path, key: PrivateKey, tmp_path: Path
    ) -> None:
        sign(root, key)
        shutil.move(root / "definitions/gemm/gemm.json", tmp_path / "gemm.json")
        (root / "definitions/gemm/gemm.json").symlink_to(tmp_path / "gemm.json")
        (root / "solutions/linked").symlink_to(tmp_path)
        assert states(root, key) == {"definitions/gemm/gemm.json": "changed", "solutions/linked": "added"}

    def test_appended_lines_and_new_files_can_be_allowed(self, root: Path, key: PrivateKey) -> None:
        sign(root, key)
        with (root / TRACES).open("a") as file:
            file.write("{}\n")
        (root / "solutions/new.json").touch()
        found = verify(root, [key.public])
        assert not found.is_ok()
        assert found.is_ok(allows_appended=True)
        (root / TRACES).write_text("")
        assert not verify(root, [key.public]).is_ok(allows_appended=True)

    def test_an_unsigned_set_is_an_error(self, root: Path, key: PrivateKey) -> None:
        with pytest.raises(NotSigned, match="it has no signature by SHA256:"):
            verify(root, [key.public])
        with pytest.raises(NotSigned):
            verify(root, [])


class TestSignedFiles:
    def test_reads_the_signed_part(self, root: Path, key: PrivateKey) -> None:
        sign(root, key)
        before = (root / TRACES).read_bytes()
        with (root / TRACES).open("a") as file:
            file.write("{}\n")
        signed = SignedFiles.open(root, [key.public])
        assert signed.read(TRACES) == before
        assert signed.paths("traces", ".jsonl") == [TRACES]
        with pytest.raises(NotAsSigned, match="not signed: added after signing"):
            signed.read("README.md")

    def test_never_returns_unsigned_bytes_while_somebody_writes(self, root: Path, key: PrivateKey) -> None:
        path = root / "solutions/ada/gemm/gemm/fast.json"
        good = b"x" * 100_000
        path.write_bytes(good)
        sign(root, key)
        signed = SignedFiles.open(root, [key.public])
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                for content in (good, b"y" * 100_000, good[:500], good + b"z"):
                    path.write_bytes(content)

        thread = threading.Thread(target=write)
        thread.start()
        read = refused = 0
        try:
            while read < 20 or refused < 20:
                try:
                    assert signed.read("solutions/ada/gemm/gemm/fast.json") == good
                    read += 1
                except NotAsSigned:
                    refused += 1
        finally:
            stop.set()
            thread.join()


class TestCommands:
    def test_an_owner_makes_a_key_signs_and_verifies(
        self, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        key, public = str(tmp_path / "key"), str(tmp_path / "key.pub")
        (tmp_path / "passphrase").write_text("secret\n")
        secret = ["--passphrase-file", str(tmp_path / "passphrase")]
        assert main(["keygen", key, *secret, "--comment", "ada"]) == 0
        assert main(["sign", str(root), "--key", key, *secret, "--dry-run"]) == 0
        assert main(["verify", str(root), "--signer", public]) == 2
        assert main(["sign", str(root), "--key", key, *secret]) == 0
        assert "added     traces/ada/gemm/gemm.jsonl\n" in capsys.readouterr().out
        assert main(["verify", str(root), "--signer", public, "--min-serial", "1"]) == 0
        assert capsys.readouterr().out.startswith("5 unchanged; signed by SHA256:")
        assert main(["verify", str(root), "--signer", public, "--min-serial", "2"]) == 1
        assert "serial 1 is older than 2" in capsys.readouterr().out
        (root / "traces/new.jsonl").touch()
        assert main(["verify", str(root), "--signer", Path(public).read_text()]) == 1
        assert "added     traces/new.jsonl\n" in capsys.readouterr().out
        assert main(["verify", str(root), "--signer", public, "--allow-appended"]) == 0

    def test_a_key_in_the_data_set_is_refused(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        PrivateKey.generate(root / "key")
        assert main(["sign", str(root), "--key", str(root / "key")]) == 2
        assert "lies in the data set, which others can read" in capsys.readouterr().err

    @pytest.mark.parametrize("command", [["sign", "--key"], ["verify", "--signer"]])
    def test_a_missing_folder_or_key_is_an_error(
        self, root: Path, capsys: pytest.CaptureFixture[str], command: list[str]
    ) -> None:
        assert main([command[0], str(root / "no"), *command[1:], "key"]) == 2
        assert main([command[0], str(root), *command[1:], "no-key"]) == 2
        assert capsys.readouterr().err.count("\n") == 2

    def test_names_cannot_control_the_terminal(
        self, root: Path, key: PrivateKey, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sign(root, key)
        (root / "traces/\x1b[2J\u202e").touch()
        assert main(["verify", str(root), "--signer", key.public.text]) == 1
        assert r"traces/\x1b[2J\u202e" in capsys.readouterr().out


def test_the_signature_file_is_a_dsse_envelope(root: Path, key: PrivateKey) -> None:
    dsse = pytest.importorskip("securesystemslib.dsse")
    sign(root, key)
    (path,) = (root / "signatures").iterdir()
    plain = json.loads(path.read_bytes())
    assert plain["payloadType"] == "application/vnd.fib.data-set-manifest.v1+json"
    assert json.loads(dsse.Envelope.from_dict(plain).payload)["format"] == 1


def test_values_are_compared_by_content(key: PrivateKey) -> None:
    assert attrs.evolve(key.public) == key.public
    assert "PRIVATE" not in repr(key)


@pytest.mark.parametrize("missing", ["cryptography", "securesystemslib"])
def test_a_missing_extra_is_named(
    root: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sign(root, key)
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["verify", str(root), "--signer", key.public.text]) == 2
    assert "pip install 'fib-schema[signing]'" in capsys.readouterr().err
