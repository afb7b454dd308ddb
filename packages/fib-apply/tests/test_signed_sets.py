"""Attacks on a signed data set that an engine uses with ``FIB_REQUIRE_SIGNED_BY``.

The set has three solutions of ``scale``: *good*, which is signed and wins; *flawed*, which is signed, faster and
excluded by one failing trace; and *evil*, an attacker's, which leaves a mark when it is executed. After each attack an
engine enables the set and makes a call. Acceptable are a call served by *good* or by the fallback, and a refusal of
the set. The attacker never has the owner's private key, except where a test says that the owner signs.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import attrs
import pytest
import torch
from apply_samples import new_definition, new_solution, new_trace, write_set
from fib_apply import ApplyRuntime
from fib_apply.cli import main
from fib_apply.config import required_signers
from fib_apply.errors import InvalidSetting
from fib_apply.selection.table import ApplyTable
from fib_schema import InvalidRecord, Solution, TraceSet, format_json, signing, to_plain
from fib_schema.signing import NotSigned, read_public_keys

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")

GOOD = "solutions/ada/elementwise/scale/good.json"
DEFINITION = "definitions/elementwise/scale.json"
TRACES = "traces/ada/elementwise/scale.jsonl"
FAILURE = "traces/zoe/elementwise/scale.jsonl"
STRAY_FAILURE = "traces/zoe/elementwise/idle.jsonl"
ODD_FAILURE = "traces/zoe/notes.jsonl"


@attrs.frozen
class Owner:
    path: Path
    public: str

    @classmethod
    def generate(cls, path):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        return cls(path, read_public_keys(path.with_suffix(".pub"))[0])

    def sign(self, root):
        (root / "signatures").mkdir(exist_ok=True)
        (root / signing.SIGNATURE).unlink(missing_ok=True)
        listing = "find definitions solutions traces -type f | sort | xargs -d '\\n' sha256sum"
        sums = subprocess.run(["sh", "-c", listing], cwd=root, capture_output=True, check=True).stdout
        (root / signing.SUMS).write_bytes(sums)
        words = ["ssh-keygen", "-q", "-Y", "sign", "-n", signing.NAMESPACE, "-f", self.path, root / signing.SUMS]
        subprocess.run(words, capture_output=True, check=True)


@attrs.frozen
class Kit:
    root: Path
    owner: Owner
    other: Owner
    """A second owner whose key some engines accept."""
    attacker: Owner
    mark: Path
    evil: Solution
    earlier: Path
    """A copy of the set as it was when the owner signed it before."""

    def path(self, relative):
        return self.root / relative

    def write(self, relative, content):
        path = self.path(relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def append(self, relative, *traces):
        with self.path(relative).open("ab") as file:
            file.write(b"".join(line_of(trace) for trace in traces))

    def evil_named(self, name):
        return format_json(attrs.evolve(self.evil, name=name)).encode()

    @property
    def signature(self):
        return self.root / signing.SIGNATURE


def line_of(trace):
    return json.dumps(to_plain(trace)).encode() + b"\n"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    base = tmp_path_factory.mktemp("template")
    owner, other, attacker = (Owner.generate(base / name) for name in ("owner", "other", "attacker"))

    def solution(name, author, source):
        return new_solution(name, content=source, author=author, passing=False)

    root, mark = base / "set", base / "mark"
    good, flawed = (
        solution(n, a, f"def run(x):\n    return {k} * x\n") for n, a, k in [("good", "ada", 2), ("flawed", "bob", 3)]
    )
    evil = solution(
        "evil", "eve", f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef run(x):\n    return 7 * x\n"
    )
    traces = [new_trace("good", 1.0), new_trace("flawed", 0.1)]
    write_set(root, *traces, solutions=[good, flawed], definitions=[new_definition("scale"), new_definition("idle")])
    shutil.copytree(root, base / "earlier")
    owner.sign(base / "earlier")
    shutil.copytree(base / "earlier" / "signatures", root / "signatures")
    kit = Kit(root, owner, other, attacker, mark, evil, base / "earlier")
    kit.write(FAILURE, line_of(new_trace("flawed", status="RUNTIME_ERROR", uuid="other")))
    kit.write(STRAY_FAILURE, line_of(new_trace("flawed", status="RUNTIME_ERROR", uuid="stray")))
    kit.write(ODD_FAILURE, line_of(new_trace("flawed", status="RUNTIME_ERROR", uuid="odd")))
    owner.sign(root)
    return kit


@pytest.fixture
def kit(template, tmp_path):
    shutil.copytree(template.root, tmp_path / "set")
    yield attrs.evolve(template, root=tmp_path / "set")
    template.mark.unlink(missing_ok=True)


def enable(kit, *signers):
    keys = [key.public for key in signers or (kit.owner,)]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FIB_REQUIRE_SIGNED_BY", "\n".join(keys))
        return ApplyRuntime(kit.root)


def call(runtime, mark):
    """Name of the solution that served a call."""
    served = runtime.dispatch("scale", (torch.ones(1, 4),), fallback=lambda x: 0 * x)
    return "evil" if mark.exists() else {0: "fallback", 2: "good", 3: "flawed", 7: "evil"}[int(served[0, 0])]


def outcome(kit, *signers):
    """The calls of an engine that uses the set."""
    try:
        runtime = enable(kit, *signers)
    except NotSigned:
        return "refused"
    with runtime:
        return call(runtime, kit.mark)


ATTACKS = []


def attack(expected):
    def register(function):
        ATTACKS.append((expected, function))
        return function

    return register


@attack("good")
def nothing(kit): ...


@attack("fallback")
def change_a_solution(kit):
    kit.write(GOOD, kit.evil_named("good"))


@attack("fallback")
def change_a_byte_and_keep_size_and_time(kit):
    path = kit.path(GOOD)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"2 * x", b"7 * x"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@attack("refused")
def add_a_solution_with_fast_traces(kit):
    kit.write("solutions/eve/elementwise/scale/evil.json", kit.evil_named("evil"))
    kit.write("traces/eve/elementwise/scale.jsonl", line_of(new_trace("evil", 0.001)))
    kit.append(TRACES, new_trace("evil", 0.001))


@attack("good")
def add_a_solution_of_the_same_name(kit):
    kit.write("solutions/a/good.json", kit.evil_named("good"))
    kit.write("solutions/z/good.json", kit.evil_named("good"))


@attack("fallback")
def replace_a_solution_by_a_link_to_another(kit):
    outside = kit.root.parent / "evil.json"
    outside.write_bytes(kit.evil_named("good"))
    kit.path(GOOD).unlink()
    kit.path(GOOD).symlink_to(outside)


@attack("fallback")
def replace_a_solution_by_a_pipe(kit):
    kit.path(GOOD).unlink()
    os.mkfifo(kit.path(GOOD))


@attack("fallback")
def remove_a_solution(kit):
    kit.path(GOOD).unlink()


@attack("fallback")
def change_a_definition(kit):
    path = kit.path(DEFINITION)
    path.write_bytes(path.read_bytes().replace(b"elementwise", b"elementwisf"))


@attack("good")
def add_a_definition_of_the_same_name(kit):
    content = kit.path(DEFINITION).read_bytes().replace(b"float32", b"float16")
    kit.write("definitions/a/scale.json", content)
    kit.write("definitions/z/scale.json", content)


@attack("refused")
def remove_a_failure(kit):
    kit.path(FAILURE).unlink()


@attack("refused")
def remove_a_failure_in_the_file_of_another_definition(kit):
    kit.path(STRAY_FAILURE).unlink()


@attack("refused")
def remove_a_failure_in_a_file_of_no_definition(kit):
    kit.path(ODD_FAILURE).unlink()


@attack("refused")
def remove_all_traces(kit):
    shutil.rmtree(kit.path("traces"))


@attack("refused")
def append_a_later_success_of_a_flawed_solution(kit):
    for relative, uuid in ((FAILURE, "other"), (STRAY_FAILURE, "stray"), (ODD_FAILURE, "odd")):
        kit.append(relative, new_trace("flawed", 0.001, uuid=uuid, timestamp="2030-01-01T00:00:00"))


@attack("refused")
def append_a_failure_of_the_winner(kit):
    kit.append(TRACES, new_trace("good", status="REWARD_HACK", timestamp="2030-01-01T00:00:00"))


@attack("refused")
def remove_the_signature(kit):
    kit.signature.unlink()


@attack("refused")
def sign_with_another_key(kit):
    change_a_solution(kit)
    kit.attacker.sign(kit.root)


@attack("refused")
def change_the_list(kit):
    sums = kit.root / signing.SUMS
    sums.write_bytes(sums.read_bytes() + sums.read_bytes().splitlines()[0].replace(b"definitions", b"solutions"))


@pytest.mark.parametrize(("expected", "attack"), ATTACKS, ids=[function.__name__ for _, function in ATTACKS])
def test_an_attack_on_the_files_executes_nothing_unsigned(kit, expected, attack):
    attack(kit)
    assert outcome(kit) == expected
    assert not kit.mark.exists()


@pytest.mark.parametrize(
    ("expected", "attack"),
    [("evil", add_a_solution_with_fast_traces), ("flawed", append_a_later_success_of_a_flawed_solution)],
)
def test_the_same_attack_succeeds_without_the_setting(kit, expected, attack):
    attack(kit)
    with ApplyRuntime(kit.root) as runtime:
        assert call(runtime, kit.mark) == expected


def test_each_ignored_file_is_reported_once(kit, capsys, monkeypatch):
    change_a_solution(kit)
    kit.write("solutions/eve/elementwise/scale/evil.json", kit.evil_named("evil"))
    monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", kit.owner.public)
    for command in (["table"], ["explain", "--definition", "scale"]):
        assert main([command[0], str(kit.root), *command[1:], "--hardware", "cpu"]) in (0, 2)
        lines = capsys.readouterr().err.replace(f"{kit.root}/", "").splitlines()
        assert sorted(
            line.removeprefix("error: ").partition(" is ")[0] for line in lines if "hardware" not in line
        ) == [
            f"{GOOD}: ignored: changed after signing: its sha256",
            "solutions/eve/elementwise/scale/evil.json: ignored: not signed: added after signing",
        ]


def test_names_of_files_cannot_control_the_terminal(kit, monkeypatch):
    kit.write("solutions/eve/\x1b[2Jgreen\u202e.json", b"{}")
    monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", kit.owner.public)
    problems = ApplyTable.load_or_build(kit.root).problems
    assert any(r"\x1b[2Jgreen\u202e.json" in str(problem) for problem in problems)
    assert all(str(problem).isprintable() for problem in problems)


def test_the_error_names_the_file_of_traces(kit):
    remove_a_failure(kit)
    with pytest.raises(NotSigned, match=f"{FAILURE}: signed, but missing"):
        enable(kit)


@pytest.mark.parametrize("replace", [replace_a_solution_by_a_pipe, replace_a_solution_by_a_link_to_another])
def test_a_solution_that_is_replaced_after_the_table_was_made_is_not_waited_for(kit, replace):
    runtime = enable(kit)
    replace(kit)
    with pytest.raises(InvalidRecord):
        runtime.table.solution("good")
    with runtime:
        assert call(runtime, kit.mark) == "fallback"


@pytest.mark.parametrize("victim", [GOOD, DEFINITION, TRACES, FAILURE])
def test_the_bytes_that_are_used_are_those_that_were_verified(kit, victim, monkeypatch):
    """The attacker changes a file right after each of its verifications."""
    original = signing.SignedFiles.read

    def read(self, path, limit_bytes):
        data = original(self, path, limit_bytes)
        if path == victim:
            kit.write(victim, kit.evil_named("good") if victim == GOOD else b"")
        return data

    monkeypatch.setattr(signing.SignedFiles, "read", read)
    is_trace = victim in (TRACES, FAILURE)
    assert outcome(kit) == ("good" if is_trace else "fallback")
    assert outcome(kit) == ("refused" if is_trace else "fallback")
    assert not kit.mark.exists()


def test_reloading_a_set_without_its_signature_keeps_the_table(kit, monkeypatch):
    monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", kit.owner.public)
    with ApplyRuntime(kit.root) as runtime:
        remove_the_signature(kit)
        with pytest.raises(NotSigned, match=r"there is no signatures/sha256sums.sig"):
            runtime.reload()
        assert call(runtime, kit.mark) == "good"


def test_an_earlier_state_is_accepted_as_a_whole(kit):
    """The known limit: nothing tells that a signed state is not the last one."""
    shutil.rmtree(kit.root)
    shutil.copytree(kit.earlier, kit.root)
    assert outcome(kit) == "flawed"


def test_a_table_that_was_cached_without_the_setting_is_not_used_with_it(kit):
    append_a_later_success_of_a_flawed_solution(kit)
    with ApplyRuntime(kit.root) as runtime:
        assert call(runtime, kit.mark) == "flawed"
    assert outcome(kit) == "refused"


def test_a_table_that_was_cached_for_one_signer_is_not_used_for_another(kit, monkeypatch):
    assert outcome(kit) == "good"
    add_a_solution_with_fast_traces(kit)
    kit.attacker.sign(kit.root)
    with monkeypatch.context() as environment:
        environment.setenv("FIB_REQUIRE_SIGNED_BY", kit.attacker.public)
        assert "evil" in ApplyTable.load_or_build(kit.root).def_best.values()
    assert outcome(kit) == "refused"


def test_a_change_that_the_cache_does_not_notice_executes_nothing(kit):
    """Size, time and inode are as before, so the cached table is used; it came from verified bytes."""
    assert outcome(kit) == "good"
    change_a_byte_and_keep_size_and_time(kit)
    assert outcome(kit) == "fallback"


def test_one_of_the_accepted_keys_must_have_signed(kit):
    assert outcome(kit, kit.other, kit.owner) == "good"
    assert outcome(kit, kit.other, kit.attacker) == "refused"


def test_a_set_in_memory_is_not_signed(kit, monkeypatch):
    monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", kit.owner.public)
    memory = TraceSet(definitions={"scale": new_definition("scale")})
    with pytest.raises(NotSigned, match="in memory"):
        ApplyRuntime(memory)


def test_objects_of_an_opened_set_are_not_believed(kit, monkeypatch):
    monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", kit.owner.public)
    opened = TraceSet.from_path(kit.root)
    opened.add_solutions([kit.evil])
    opened.add_traces([new_trace("evil", 0.001)])
    with ApplyRuntime(opened) as runtime:
        assert call(runtime, kit.mark) == "good"


@pytest.mark.parametrize("value", ["", " ", "/no/such/file.pub", "ssh-ed25519 AAAA"])
def test_a_variable_without_a_key_is_an_error(kit, monkeypatch, value):
    """For example by ``-e FIB_REQUIRE_SIGNED_BY=$KEY`` with a variable that is not set."""
    monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", value)
    with pytest.raises(InvalidSetting, match="FIB_REQUIRE_SIGNED_BY"):
        ApplyRuntime(kit.root)


def test_keys_are_taken_from_files_and_text(template, monkeypatch):
    own, other = template.owner.public, template.other.public
    for value, keys in (
        (str(template.root.parent / "owner.pub"), (own,)),
        (f"# two\n{own} a comment\n\n{other}\n", (own, other)),
    ):
        monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", value)
        assert required_signers() == keys
