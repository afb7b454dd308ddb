"""Keys, signing and verification of data sets by ssh-keygen, and the commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_schema import signing
from fib_schema.cli import main
from fib_schema.signing import (
    CannotSign,
    InvalidKey,
    NotAsSigned,
    NotSigned,
    PublicKey,
    SignedFiles,
    read_public_keys,
    sign,
    verify,
)

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
TRACES = "traces/ada/gemm/gemm.jsonl"
SOLUTION = "solutions/ada/gemm/gemm/fast.json"


def new_key(path: Path, kind: str = "ed25519") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "me", "-f", path], check=True)
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("keys") / "owner")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("keys") / "other")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    for path, content in {
        "definitions/gemm/gemm.json": "{}",
        SOLUTION: '{"name": "fast"}',
        TRACES: '{"definition": "gemm"}\n{"definition": "other"}\nnothing\n',
        "workloads/gemm/gemm.jsonl": '{"definition": "gemm"}\n',
        "blob/workloads/gemm/gemm/a.safetensors": "tensor",
        "README.md": "not covered",
        "traces/.hidden.jsonl": "not covered",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


def public(key: Path) -> tuple[PublicKey, ...]:
    return read_public_keys(key.with_suffix(".pub"))


def states(root: Path, key: Path) -> dict[str, str]:
    return {file.path: str(file.state) for file in verify(root, public(key)).differences}


class TestKeys:
    def test_the_fingerprint_is_that_of_ssh_keygen(self, key: Path) -> None:
        shown = subprocess.run(["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True).stdout
        assert public(key)[0].fingerprint in shown

    def test_keys_are_texts_or_files_without_comments(self, key: Path, other: Path) -> None:
        texts = [path.with_suffix(".pub").read_text() for path in (key, other)]
        found = read_public_keys(f"# owners\n\n{texts[0]}{texts[1]}{texts[0]}")
        assert [one.text for one in found] == [" ".join(text.split()[:2]) for text in texts]
        assert read_public_keys(texts[0].strip()) == found[:1]

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ("", "cannot be read"),
            ("nowhere.pub", "cannot be read"),
            ("# nothing\n", "holds no key"),
            ("ssh-ed25519 AAAA\n", "is no OpenSSH public key"),
            ("ssh-ed25519 %%%\n", "is no OpenSSH public key"),
            ("ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAA\n", "is no OpenSSH public key"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "is a private key"),
        ],
    )
    def test_what_is_no_key_is_refused(self, given: str, problem: str) -> None:
        with pytest.raises(InvalidKey, match=problem):
            read_public_keys(given)

    def test_ssh_keygen_is_asked_for(self, root: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sign(root, key)
        monkeypatch.setenv("PATH", "")
        with pytest.raises(InvalidKey, match=r"ssh-keygen: is not installed.*install OpenSSH's client"):
            sign(root, key)
        with pytest.raises(NotSigned, match="ssh-keygen: is not installed"):
            verify(root, public(key))


class TestSigning:
    def test_a_signed_set_verifies(self, root: Path, key: Path) -> None:
        signed = sign(root, key)
        assert len(signed.files) == 5
        assert signed.files[TRACES].definitions == ("gemm", "other")
        assert verify(root, public(key)).differences == []

    def test_what_cannot_be_signed_is_named(self, root: Path, key: Path) -> None:
        (root / "traces/link.jsonl").symlink_to(root / TRACES)
        (root / "blob/pointer").write_text("version https://git-lfs.github.com/spec/v1\n")
        os.mkfifo(root / "traces/pipe")
        with pytest.raises(CannotSign) as refusal:
            sign(root, key)
        assert [problem.partition(":")[0] for problem in refusal.value.problems] == [
            "traces/link.jsonl", "traces/pipe", "blob/pointer",
        ]  # fmt: skip

    def test_an_empty_set_and_a_key_inside_the_set_are_refused(self, root: Path, tmp_path: Path, key: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(CannotSign, match="it has no files"):
            sign(tmp_path / "empty", key)
        shutil.copy(key, root / "key")
        with pytest.raises(CannotSign, match="lies in the data set"):
            sign(root, root / "key")


def append(root: Path, path: str) -> None:
    with (root / path).open("a") as file:
        file.write('{"definition": "gemm"}\n')


CHANGES: dict[str, tuple[Callable[[Path], object], dict[str, str]]] = {
    "a changed file": (lambda root: (root / SOLUTION).write_text("{}"), {SOLUTION: "changed"}),
    "a missing file": (lambda root: (root / SOLUTION).unlink(), {SOLUTION: "missing"}),
    "a grown file of lines": (lambda root: append(root, TRACES), {TRACES: "grown"}),
    "a grown solution": (lambda root: append(root, SOLUTION), {SOLUTION: "changed"}),
    "a cut file": (lambda root: (root / TRACES).write_text('{"definition": "gemm"}\n'), {TRACES: "changed"}),
    "an added file": (lambda root: (root / "traces/new.jsonl").write_text("{}"), {"traces/new.jsonl": "added"}),
    "a hidden file": (lambda root: (root / "traces/.x").write_text("{}"), {}),
}


class TestVerification:
    @pytest.mark.parametrize("case", CHANGES)
    def test_every_difference_is_found(self, root: Path, key: Path, case: str) -> None:
        change, expected = CHANGES[case]
        sign(root, key)
        change(root)
        assert states(root, key) == expected

    def test_the_signed_part_is_read(self, root: Path, key: Path) -> None:
        sign(root, key)
        before = (root / TRACES).read_bytes()
        append(root, TRACES)
        signed = SignedFiles.open(root, public(key))
        assert signed.read(TRACES) == before
        assert signed.paths("traces", ".jsonl") == [TRACES]
        with pytest.raises(NotAsSigned, match="not signed: added after signing"):
            signed.read("traces/new.jsonl")

    def test_one_of_several_accepted_signers_is_named(self, root: Path, key: Path, other: Path) -> None:
        sign(root, key)
        assert verify(root, (*public(other), *public(key))).signer == public(key)[0]
        with pytest.raises(NotSigned, match="is no signature of"):
            verify(root, public(other))

    def test_a_changed_manifest_or_signature_is_refused(self, root: Path, key: Path) -> None:
        sign(root, key)
        manifest = root / signing.MANIFEST
        good = manifest.read_bytes()
        manifest.write_bytes(good.replace(b'"size": ', b'"size": 1'))
        with pytest.raises(NotSigned, match="is no signature of"):
            verify(root, public(key))
        manifest.write_bytes(good)
        for content in (b"", b"x", b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"):
            (root / signing.SIGNATURE).write_bytes(content)
            with pytest.raises(NotSigned, match="is no signature of"):
                verify(root, public(key))
        (root / signing.SIGNATURE).unlink()
        with pytest.raises(NotSigned, match=r"there is no signatures/manifest.json.sig; sign it"):
            verify(root, public(key))

    @pytest.mark.parametrize("files", [[{"path": "../x", "size": 0, "sha256": ""}], 3])
    def test_a_signed_manifest_that_is_none_is_refused(self, root: Path, key: Path, files: object) -> None:
        sign(root, key)
        plain = {"format": 3, "files": files}
        (root / signing.MANIFEST).write_text(json.dumps(plain))
        (root / signing.SIGNATURE).unlink()
        subprocess.run(
            ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", signing.NAMESPACE, root / signing.MANIFEST], check=True
        )
        with pytest.raises(NotSigned, match="is not valid"):
            verify(root, public(key))

    def test_a_signature_for_another_purpose_is_refused(self, root: Path, key: Path) -> None:
        sign(root, key)
        (root / signing.SIGNATURE).unlink()
        subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "git", root / signing.MANIFEST], check=True)
        with pytest.raises(NotSigned):
            verify(root, public(key))


class TestCommands:
    def test_signing_and_verifying(self, root: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["sign", str(root), "--key", str(key)]) == 0
        assert "signed: 5 files, by SHA256:" in capsys.readouterr().out
        verify_words = ["verify", str(root), "--signer", f"{key}.pub"]
        assert main(verify_words) == 0
        assert "5 unchanged; signed by SHA256:" in capsys.readouterr().out
        append(root, TRACES)
        assert main(verify_words) == 1
        assert f"grown     {TRACES}: 23 bytes after the signed" in capsys.readouterr().out

    def test_errors_are_one_line(self, root: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", str(root), "--signer", f"{key}.pub"]) == 2
        assert capsys.readouterr().err.startswith(f"fib-schema: data set {str(root)!r} is not signed as required")
        assert main(["sign", str(root / "nothing"), "--key", str(key)]) == 2
        assert "no data set at" in capsys.readouterr().err
