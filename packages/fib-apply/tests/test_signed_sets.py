"""Attacks on a signed data set that an engine uses with `require_signed_by`.

The set has three solutions of ``scale``: *good*, which is signed and wins; *flawed*, which is signed, faster and
excluded by one failing trace; and *evil*, an attacker's, which leaves a mark when it is executed. After each attack an
engine enables the set and makes a call. Acceptable are a call served by *good* or by the fallback, and a refusal of
the set. The attacker never has the owner's private key, except where a test says that the owner signs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import torch
from apply_samples import new_definition, new_solution, new_trace, write_set
from fib_apply import ApplyConfig, ApplyConfigRegistry, ApplyRuntime
from fib_apply.cli import main
from fib_apply.errors import InvalidSetting
from fib_apply.selection.table import ApplyTable
from fib_schema import (
    InvalidRecord,
    Solution,
    Trace,
    TraceSet,
    format_json,
    signing,
    to_plain,
)
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
    """A key pair."""

    path: Path
    public: str

    @classmethod
    def generate(cls, path: Path) -> Owner:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        return cls(path, read_public_keys(path.with_suffix(".pub"))[0])

    def sign(self, root: Path) -> None:
        """Sign all files, as the documentation says."""
        (root / "signatures").mkdir(exist_ok=True)
        (root / signing.SIGNATURE).unlink(missing_ok=True)
        listing = "find definitions solutions traces -type f | sort | xargs -d '\\n' sha256sum"
        sums = subprocess.run(["sh", "-c", listing], cwd=root, capture_output=True, check=True).stdout
        (root / signing.SUMS).write_bytes(sums)
        words = ["ssh-keygen", "-q", "-Y", "sign", "-n", signing.NAMESPACE, "-f", self.path, root / signing.SUMS]
        subprocess.run(words, capture_output=True, check=True)


@attrs.frozen
class Kit:
    """A signed set under attack."""

    root: Path
    owner: Owner
    other: Owner
    """A second owner whose key some engines accept."""
    attacker: Owner
    mark: Path
    evil: Solution
    earlier: Path
    """A copy of the set as it was when the owner signed it before."""

    def path(self, relative: str) -> Path:
        return self.root / relative

    def write(self, relative: str, content: str | bytes) -> Path:
        path = self.path(relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def append(self, relative: str, *traces: Trace) -> None:
        with self.path(relative).open("ab") as file:
            file.write(b"".join(line_of(trace) for trace in traces))

    def evil_named(self, name: str) -> bytes:
        return format_json(attrs.evolve(self.evil, name=name)).encode()

    @property
    def signature(self) -> Path:
        return self.root / signing.SIGNATURE


def line_of(trace: Trace) -> bytes:
    return json.dumps(to_plain(trace)).encode() + b"\n"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    base = tmp_path_factory.mktemp("template")
    owner, other, attacker = (Owner.generate(base / name) for name in ("owner", "other", "attacker"))

    def solution(name: str, author: str, source: str) -> Solution:
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
def kit(template: Kit, tmp_path: Path) -> Iterator[Kit]:
    shutil.copytree(template.root, tmp_path / "set")
    yield attrs.evolve(template, root=tmp_path / "set")
    template.mark.unlink(missing_ok=True)


def enable(kit: Kit, *signers: Owner) -> ApplyRuntime:
    keys = [key.public for key in signers or (kit.owner,)]
    return ApplyRuntime(kit.root, ApplyConfig(require_signed_by=keys))


def call(runtime: ApplyRuntime, mark: Path) -> str:
    """Name of the solution that served a call."""
    served = runtime.dispatch("scale", (torch.ones(1, 4),), fallback=lambda x: 0 * x)
    return "evil" if mark.exists() else {0: "fallback", 2: "good", 3: "flawed", 7: "evil"}[int(served[0, 0])]


def outcome(kit: Kit, *signers: Owner) -> str:
    """The calls of an engine that uses the set."""
    try:
        runtime = enable(kit, *signers)
    except NotSigned:
        return "refused"
    with runtime:
        return call(runtime, kit.mark)


# -- the attacks -------------------------------------------------------------------------------------

Attack = Callable[[Kit], object]
ATTACKS: list[tuple[str, Attack]] = []


def attack(expected: str) -> Callable[[Attack], Attack]:
    def register(function: Attack) -> Attack:
        ATTACKS.append((expected, function))
        return function

    return register


@attack("good")
def nothing(kit: Kit) -> None: ...


@attack("fallback")
def change_a_solution(kit: Kit) -> None:
    kit.write(GOOD, kit.evil_named("good"))


@attack("fallback")
def change_a_byte_and_keep_size_and_time(kit: Kit) -> None:
    path = kit.path(GOOD)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"2 * x", b"7 * x"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@attack("fallback")
def add_a_solution_with_fast_traces(kit: Kit) -> None:
    kit.write("solutions/eve/elementwise/scale/evil.json", kit.evil_named("evil"))
    kit.write("traces/eve/elementwise/scale.jsonl", line_of(new_trace("evil", 0.001)))
    kit.append(TRACES, new_trace("evil", 0.001))


@attack("good")
def add_a_solution_of_the_same_name(kit: Kit) -> None:
    kit.write("solutions/a/good.json", kit.evil_named("good"))
    kit.write("solutions/z/good.json", kit.evil_named("good"))


@attack("fallback")
def replace_a_solution_by_a_link_to_another(kit: Kit) -> None:
    outside = kit.root.parent / "evil.json"
    outside.write_bytes(kit.evil_named("good"))
    kit.path(GOOD).unlink()
    kit.path(GOOD).symlink_to(outside)


@attack("fallback")
def replace_a_solution_by_a_pipe(kit: Kit) -> None:
    kit.path(GOOD).unlink()
    os.mkfifo(kit.path(GOOD))


@attack("fallback")
def remove_a_solution(kit: Kit) -> None:
    kit.path(GOOD).unlink()


@attack("fallback")
def change_a_definition(kit: Kit) -> None:
    path = kit.path(DEFINITION)
    path.write_bytes(path.read_bytes().replace(b"elementwise", b"elementwisf"))


@attack("good")
def add_a_definition_of_the_same_name(kit: Kit) -> None:
    content = kit.path(DEFINITION).read_bytes().replace(b"float32", b"float16")
    kit.write("definitions/a/scale.json", content)
    kit.write("definitions/z/scale.json", content)


@attack("fallback")
def remove_a_failure(kit: Kit) -> None:
    kit.path(FAILURE).unlink()


@attack("fallback")
def remove_a_failure_in_the_file_of_another_definition(kit: Kit) -> None:
    kit.path(STRAY_FAILURE).unlink()


@attack("fallback")
def remove_a_failure_in_a_file_of_no_definition(kit: Kit) -> None:
    kit.path(ODD_FAILURE).unlink()


@attack("fallback")
def remove_all_traces(kit: Kit) -> None:
    shutil.rmtree(kit.path("traces"))


@attack("fallback")
def append_a_later_success_of_a_flawed_solution(kit: Kit) -> None:
    for relative, uuid in ((FAILURE, "other"), (STRAY_FAILURE, "stray"), (ODD_FAILURE, "odd")):
        kit.append(relative, new_trace("flawed", 0.001, uuid=uuid, timestamp="2030-01-01T00:00:00"))


@attack("fallback")
def append_a_failure_of_the_winner(kit: Kit) -> None:
    kit.append(TRACES, new_trace("good", status="REWARD_HACK", timestamp="2030-01-01T00:00:00"))


@attack("refused")
def remove_the_signature(kit: Kit) -> None:
    kit.signature.unlink()


@attack("refused")
def sign_with_another_key(kit: Kit) -> None:
    change_a_solution(kit)
    kit.attacker.sign(kit.root)


@attack("refused")
def change_the_list(kit: Kit) -> None:
    sums = kit.root / signing.SUMS
    sums.write_bytes(sums.read_bytes() + sums.read_bytes().splitlines()[0].replace(b"definitions", b"solutions"))


@pytest.mark.parametrize(("expected", "attack"), ATTACKS, ids=[function.__name__ for _, function in ATTACKS])
def test_an_attack_on_the_files_executes_nothing_unsigned(kit: Kit, expected: str, attack: Attack) -> None:
    attack(kit)
    assert outcome(kit) == expected
    assert not kit.mark.exists()


@pytest.mark.parametrize(
    ("expected", "attack"),
    [("evil", add_a_solution_with_fast_traces), ("flawed", append_a_later_success_of_a_flawed_solution)],
)
def test_the_same_attack_succeeds_without_the_setting(kit: Kit, expected: str, attack: Attack) -> None:
    attack(kit)
    with ApplyRuntime(kit.root) as runtime:
        assert call(runtime, kit.mark) == expected


def test_each_ignored_file_is_reported_once(
    kit: Kit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_a_solution(kit)
    kit.write("solutions/eve/elementwise/scale/evil.json", kit.evil_named("evil"))
    kit.path(STRAY_FAILURE).unlink()
    monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", kit.owner.public)
    for command in (["table"], ["explain", "--definition", "scale"]):
        assert main([command[0], str(kit.root), *command[1:], "--hardware", "cpu"]) in (0, 2)
        lines = capsys.readouterr().err.replace(f"{kit.root}/", "").splitlines()
        assert sorted(
            line.removeprefix("error: ").partition(" is ")[0] for line in lines if "hardware" not in line
        ) == [
            "idle: not routed: traces/zoe/elementwise/idle.jsonl",
            "scale: not routed: traces/zoe/elementwise/idle.jsonl",
            f"{GOOD}: ignored: changed after signing: its sha256",
            "solutions/eve/elementwise/scale/evil.json: ignored: not signed: added after signing",
            "traces/zoe/elementwise/idle.jsonl: ignored: signed, but missing",
        ]


def test_names_of_files_cannot_control_the_terminal(kit: Kit) -> None:
    kit.write("solutions/eve/\x1b[2Jgreen\u202e.json", b"{}")
    problems = ApplyTable.load_or_build(kit.root, ApplyConfig(require_signed_by=kit.owner.public)).problems
    assert any(r"\x1b[2Jgreen\u202e.json" in str(problem) for problem in problems)
    assert all(str(problem).isprintable() for problem in problems)


def test_the_reason_is_in_the_log_and_in_the_explanation(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    remove_a_failure(kit)
    with enable(kit) as runtime:
        assert "is not as signed, and may hold traces of any definition" in runtime.explain("scale")
    assert f"{kit.path(FAILURE)}: ignored: signed, but missing" in caplog.text


# -- races -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [replace_a_solution_by_a_pipe, replace_a_solution_by_a_link_to_another])
def test_a_solution_that_is_replaced_after_the_table_was_made_is_not_waited_for(kit: Kit, replace: Attack) -> None:
    runtime = enable(kit)
    replace(kit)
    with pytest.raises(InvalidRecord):
        runtime.table.solution("good")
    with runtime:
        assert call(runtime, kit.mark) == "fallback"


@pytest.mark.parametrize("victim", [GOOD, DEFINITION, TRACES, FAILURE])
def test_the_bytes_that_are_used_are_those_that_were_verified(
    kit: Kit, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker changes a file right after each of its verifications."""
    original = signing.SignedFiles.read

    def read(self: signing.SignedFiles, path: str, limit_bytes: int) -> bytes:
        data = original(self, path, limit_bytes)
        if path == victim:
            kit.write(victim, kit.evil_named("good") if victim == GOOD else b"")
        return data

    monkeypatch.setattr(signing.SignedFiles, "read", read)
    assert outcome(kit) == ("good" if victim in (TRACES, FAILURE) else "fallback")
    assert outcome(kit) == "fallback"
    assert not kit.mark.exists()


def test_reloading_a_set_without_its_signature_keeps_the_table(kit: Kit) -> None:
    with enable(kit) as runtime:
        remove_the_signature(kit)
        with pytest.raises(NotSigned, match=r"there is no signatures/sha256sums.sig"):
            runtime.reload()
        assert call(runtime, kit.mark) == "good"


def test_an_earlier_state_is_accepted_as_a_whole(kit: Kit) -> None:
    """The known limit: nothing tells that a signed state is not the last one."""
    shutil.rmtree(kit.root)
    shutil.copytree(kit.earlier, kit.root)
    assert outcome(kit) == "flawed"


# -- caches ------------------------------------------------------------------------------------------


def test_a_table_that_was_cached_without_the_setting_is_not_used_with_it(kit: Kit) -> None:
    append_a_later_success_of_a_flawed_solution(kit)
    with ApplyRuntime(kit.root) as runtime:
        assert call(runtime, kit.mark) == "flawed"
    assert outcome(kit) == "fallback"


def test_a_table_that_was_cached_for_one_signer_is_not_used_for_another(kit: Kit) -> None:
    assert outcome(kit) == "good"
    add_a_solution_with_fast_traces(kit)
    kit.attacker.sign(kit.root)
    theirs = ApplyTable.load_or_build(kit.root, ApplyConfig(require_signed_by=kit.attacker.public))
    assert "evil" in theirs.def_best.values()
    assert outcome(kit) == "refused"


def test_a_change_that_the_cache_does_not_notice_executes_nothing(kit: Kit) -> None:
    """Size, time and inode are as before, so the cached table is used; it came from verified bytes."""
    assert outcome(kit) == "good"
    change_a_byte_and_keep_size_and_time(kit)
    assert outcome(kit) == "fallback"


# -- several signers and settings --------------------------------------------------------------------


def test_one_of_the_accepted_keys_must_have_signed(kit: Kit) -> None:
    assert outcome(kit, kit.other, kit.owner) == "good"
    assert outcome(kit, kit.other, kit.attacker) == "refused"


def test_settings_of_a_definition_cannot_name_another_key(kit: Kit) -> None:
    own, other = (ApplyConfig(require_signed_by=key.public) for key in (kit.owner, kit.attacker))
    with pytest.raises(InvalidSetting, match="count for the whole data set"):
        ApplyConfigRegistry(own, {"scale": other})
    with pytest.raises(InvalidSetting, match="count for the whole data set"):
        ApplyConfigRegistry(own).register("scale", other)
    with pytest.raises(InvalidSetting, match="count for the whole data set"):
        ApplyConfigRegistry(per_definition={"scale": own})


@pytest.mark.parametrize(
    "value", ["", [], (), [""], ["ssh-ed25519 AAAA"], 3, b"key", "no-such-file.pub", {"a": 1}, [None]]
)
def test_a_setting_without_a_key_is_an_error(value: object) -> None:
    with pytest.raises(InvalidSetting, match="require_signed_by"):
        ApplyConfig(require_signed_by=value)  # type: ignore[arg-type]


def test_keys_are_taken_from_files_and_text(template: Kit) -> None:
    own, other = template.owner.public, template.other.public
    folder = template.root.parent
    assert ApplyConfig(require_signed_by=folder / "owner.pub").require_signed_by == (own,)
    assert ApplyConfig(require_signed_by=f"# two\n{own} a comment\n\n{other}\n").require_signed_by == (own, other)
    both = ApplyConfig(require_signed_by=[str(folder / "owner.pub"), other, own])
    assert both.require_signed_by == (own, other)
    assert attrs.evolve(both, margin=0.1).require_signed_by == (own, other)


def test_a_set_in_memory_is_not_signed(kit: Kit) -> None:
    memory = TraceSet(definitions={"scale": new_definition("scale")})
    with pytest.raises(NotSigned, match="in memory"):
        ApplyRuntime(memory, ApplyConfig(require_signed_by=kit.owner.public))


def test_objects_of_an_opened_set_are_not_believed(kit: Kit) -> None:
    opened = TraceSet.from_path(kit.root)
    opened.add_solutions([kit.evil])
    opened.add_traces([new_trace("evil", 0.001)])
    with ApplyRuntime(opened, ApplyConfig(require_signed_by=kit.owner.public)) as runtime:
        assert call(runtime, kit.mark) == "good"


class TestEnvironment:
    def test_requires_a_signature(self, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", kit.owner.public)
        change_a_solution(kit)
        with ApplyRuntime(kit.root) as runtime:
            assert call(runtime, kit.mark) == "fallback"
        remove_the_signature(kit)
        with pytest.raises(NotSigned):
            ApplyRuntime(kit.root)

    @pytest.mark.parametrize("value", ["", " ", "/no/such/file.pub"])
    def test_names_no_key(self, kit: Kit, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        """For example by ``-e FIB_REQUIRE_SIGNED_BY=$KEY`` with a variable that is not set."""
        monkeypatch.setenv("FIB_REQUIRE_SIGNED_BY", value)
        with pytest.raises(InvalidSetting, match="FIB_REQUIRE_SIGNED_BY"):
            ApplyRuntime(kit.root)
