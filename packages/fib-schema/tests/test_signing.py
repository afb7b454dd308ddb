"""Keys, and data sets that are signed by sha256sum and ssh-keygen."""

import shutil
import subprocess

import pytest
from fib_schema import InvalidField, signing
from fib_schema.signing import NotAsSigned, NotSigned, SignedFiles, read_public_keys

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
TRACES = "traces/ada/gemm/gemm.jsonl"
SOLUTION = "solutions/ada/gemm/gemm/fast.json"
LIMIT = 1 << 20


def new_key(path, kind="ed25519"):
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "me", "-f", path], check=True)
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("keys") / "owner")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("keys") / "other")


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "set"
    for path, content in {
        "definitions/gemm/gemm.json": "{}",
        SOLUTION: '{"name": "fast"}',
        TRACES: '{"definition": "gemm"}\n',
        "traces/.hidden.jsonl": "no reader of a data set takes it",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    (root / "signatures").mkdir()
    return root


def sign(root, key, namespace=signing.NAMESPACE, more=""):
    paths = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]
    listed = subprocess.run(["sha256sum", *paths], cwd=root, capture_output=True, text=True, check=True).stdout
    (root / signing.SUMS).write_text(listed + more)
    words = ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", key, root / signing.SUMS]
    subprocess.run(words, capture_output=True, check=True)


def public(*keys):
    return [text for key in keys for text in read_public_keys(key.with_suffix(".pub"))]


class TestKeys:
    @pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
    def test_keys_of_all_kinds_verify(self, root, tmp_path, kind):
        own = new_key(tmp_path / kind, kind)
        sign(root, own)
        assert SOLUTION in SignedFiles.open(root, public(own)).hashes

    def test_several_keys_with_comments_are_read_once_each(self, key, other):
        texts = [key.with_suffix(".pub").read_text(), other.with_suffix(".pub").read_text()]
        found = read_public_keys(f"# owners\n\n{texts[0]}{texts[1]}{texts[0]}")
        assert list(found) == public(key, other)
        assert read_public_keys(texts[0].strip()) == found[:1]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("ssh-ed25519 AAAA", "is no OpenSSH public key"),
            ("ssh-ed25519 !", "is no OpenSSH public key"),
            ("\n", "holds no key"),
            ("no-such-file.pub", "cannot be read: No such file"),
        ],
    )
    def test_what_is_no_key_is_named(self, text, message):
        with pytest.raises(InvalidField, match=message):
            read_public_keys(text)

    def test_a_private_key_is_refused(self, key):
        with pytest.raises(InvalidField, match="is no OpenSSH public key"):
            read_public_keys(key)


class TestSignedFiles:
    def test_the_signed_bytes_are_read(self, root, key):
        sign(root, key)
        signed = SignedFiles.open(root, public(key))
        assert signed.read(TRACES, LIMIT) == (root / TRACES).read_bytes()
        assert signed.paths("traces", ".jsonl") == [TRACES]

    @pytest.mark.parametrize("line", ["../x", "x", "/etc/passwd", "a//b", "traces/.x", "traces/a\\b"])
    def test_paths_that_no_set_has_are_not_signed(self, root, key, line):
        sign(root, key, more=f"{'0' * 64}  {line}\n")
        assert sorted(SignedFiles.open(root, public(key)).hashes) == ["definitions/gemm/gemm.json", SOLUTION, TRACES]

    def test_files_that_changed_are_refused(self, root, key):
        sign(root, key)
        (root / SOLUTION).unlink()
        with (root / TRACES).open("a") as file:
            file.write("{}\n")
        signed = SignedFiles.open(root, public(key))
        for path, problem in {
            SOLUTION: "signed, but missing",
            TRACES: "changed after signing: its sha256 is",
            "traces/new.jsonl": "not signed: added after signing",
        }.items():
            with pytest.raises(NotAsSigned, match=problem):
                signed.read(path, LIMIT)
        with pytest.raises(NotAsSigned, match="at most 1 are read"):
            signed.read("definitions/gemm/gemm.json", 1)

    def test_one_of_several_signers_is_enough(self, root, key, other):
        sign(root, key)
        assert SignedFiles.open(root, public(other, key)).hashes
        with pytest.raises(NotSigned, match="is no signature of"):
            SignedFiles.open(root, public(other))

    def test_a_changed_list_or_signature_is_refused(self, root, key):
        sign(root, key)
        sums, signature = root / signing.SUMS, root / signing.SIGNATURE
        good = sums.read_bytes()
        sums.write_bytes(good + good)
        with pytest.raises(NotSigned, match="is no signature of"):
            SignedFiles.open(root, public(key))
        sums.write_bytes(good)
        for content in (b"", b"x", b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"):
            signature.write_bytes(content)
            with pytest.raises(NotSigned, match="is no signature of"):
                SignedFiles.open(root, public(key))
        signature.unlink()
        with pytest.raises(NotSigned, match=r"there is no signatures/sha256sums.sig"):
            SignedFiles.open(root, public(key))

    def test_a_signature_for_another_purpose_is_refused(self, root, key):
        sign(root, key, namespace="git")
        with pytest.raises(NotSigned):
            SignedFiles.open(root, public(key))

    def test_a_missing_program_is_named(self, root, key, monkeypatch):
        sign(root, key)
        monkeypatch.setenv("PATH", "")
        with pytest.raises(NotSigned, match=r"ssh-keygen is not installed; install OpenSSH's client"):
            SignedFiles.open(root, public(key))
