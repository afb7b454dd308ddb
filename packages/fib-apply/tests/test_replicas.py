"""Replicas route alike: four processes with gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_apply import ApplyConfig, ApplyRuntime, ApplyTable, InvalidSetting, ReplicaGroup
from fib_apply.replicas import Agreement, NoAgreement, ReplicaState
from fib_schema import Definition, Solution, Trace, TraceSet

pytest.importorskip("torch")
from torch.distributed import HashStore

SIZE = 4
WORKER = Path(__file__).with_name("replica_worker.py")


def source(number: int, before: str = "", inside: str = "") -> str:
    return f"import os\n{before}\n\ndef run(x, y):\n    {inside}\n    y.copy_(x + {number})\n"


@pytest.fixture(scope="session")
def write_set(
    definition: Definition, new_solution: Callable[..., Solution], new_trace: Callable[..., Trace]
) -> Callable[..., Path]:
    def write(root: Path, fast: str = source(1), *, newest: float = 9.0) -> Path:
        root.mkdir(parents=True)
        found = TraceSet.from_path(root)
        found.add_definitions([definition])
        contents = {"fast": fast, "second": source(2), "newest": source(3)}
        found.add_solutions([new_solution(name, content=content) for name, content in contents.items()])
        found.add_traces([new_trace("fast", 1.0), new_trace("second", 2.0), new_trace("newest", newest)])
        return root

    return write


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory, write_set: Callable[..., Path], new_trace: Callable[..., Trace]
) -> list[dict[str, Any]]:
    """Results of each rank; the last one is killed in the last scenario."""
    folder = tmp_path_factory.mktemp("replicas")
    write_set(folder / "plain")
    write_set(folder / "newer", newest=0.1)
    rank = "os.environ['RANK']"
    write_set(folder / "fails on rank 2", source(1, before=f"assert {rank} != '2', 'no such library'"))
    raising = f"if {rank} == '1': raise RuntimeError('illegal instruction')"
    write_set(folder / "raises on rank 1", source(1, inside=raising))
    for number in range(SIZE):
        own = write_set(folder / f"reloaded {number}")
        scratch = TraceSet.from_path(write_set(folder / f"scratch {number}"))
        scratch.add_traces([new_trace("newest", 0.1, timestamp="2027-01-01T00:00:00")])
        lines = next((folder / f"scratch {number}" / "traces").rglob("*.jsonl")).read_text().splitlines()
        (own / "newest.jsonl").write_text(lines[-1] + "\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = []
    for number in range(SIZE):
        own = {"RANK": str(number), "FIB_CACHE_PATH": str(folder / f"cache {number}"), "OMP_NUM_THREADS": "1"}
        with (folder / f"{number}.log").open("w") as log:
            command = [sys.executable, str(WORKER), str(folder), str(port)]
            workers.append(subprocess.Popen(command, env={**os.environ, **own}, stderr=log))
    codes = [worker.wait(timeout=300) for worker in workers]
    logs = "\n".join((folder / f"{rank}.log").read_text()[-2000:] for rank in range(SIZE))
    assert codes == [0, 0, 0, -signal.SIGKILL], logs
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(SIZE)]


@pytest.mark.slow
class TestFourProcesses:
    def test_nothing_is_routed_before_all_agree(self, results: list[dict[str, Any]]) -> None:
        assert [found["agree"] for found in results] == [["fallback", True, "", "fast"]] * SIZE

    def test_another_table_on_one_rank_keeps_all_on_the_fallback(self, results: list[dict[str, Any]]) -> None:
        for found in results:
            is_agreed, problem, served_by = found["other table"]
            assert (is_agreed, served_by) == (False, "fallback")
            assert problem.startswith("tables differ: rank 0: ")
            assert ", rank 1: " in problem

    def test_a_failing_build_on_one_rank_leaves_the_solution_out_on_all(self, results: list[dict[str, Any]]) -> None:
        assert [found["failing build"] for found in results] == [[True, "", "second"]] * SIZE

    def test_a_quarantine_on_one_rank_takes_effect_on_all_together(self, results: list[dict[str, Any]]) -> None:
        for found in results:
            before, meanwhile, after, left_out = found["quarantine"]
            assert (before, meanwhile, after) == ([True, "", "fast"], "fast", [True, "", "second"])
            assert left_out["fast"] == "it is wrong (on rank 1)"

    def test_an_error_on_one_rank_is_raised_and_not_served_by_the_fallback(self, results: list[dict[str, Any]]) -> None:
        firsts = [found["error"][0] for found in results]
        assert firsts == ["fast", "illegal instruction", "fast", "fast"]
        assert [found["error"][1:] for found in results] == [[True, "", "second"]] * SIZE

    def test_a_reload_on_one_rank_only_changes_nothing(self, results: list[dict[str, Any]]) -> None:
        for found in results:
            before, meanwhile, refused, staged, after = found["reload"]
            assert (before, meanwhile) == ([True, "", "fast"], "fast")
            assert (refused[0], refused[2], staged) == (False, "fast", "fast")
            assert after == [True, "", "newest"]

    def test_a_late_rank_keeps_all_on_the_fallback_for_a_bounded_time(self, results: list[dict[str, Any]]) -> None:
        for rank, found in enumerate(results):
            first, waited, _ = found["late"]
            assert (first[0], first[2]) == (False, "fallback")
            assert waited < 30.0
            assert "ranks did not come in time: " in first[1]
            assert rank == 3 or first[1].endswith(": 3")
        assert [found["late"][2] for found in results] == [[True, "", "fast"]] * SIZE

    def test_a_rank_that_is_killed_in_the_barrier_keeps_the_others_on_the_fallback(
        self, results: list[dict[str, Any]]
    ) -> None:
        for found in results[:3]:
            first, waited = found["killed"]
            assert first == [False, "ranks did not come in time: 3", "fallback"]
            assert waited < 30.0
        assert "killed" not in results[3]


class TestTableHash:
    def hash_of(self, root: Path, hardware: str = "cpu", **settings: Any) -> str:
        return ApplyTable.load_or_build(root, ApplyConfig(**settings)).replica_hash([hardware])

    def test_equal_content_elsewhere_has_the_same(self, tmp_path: Path, write_set: Callable[..., Path]) -> None:
        one, other = write_set(tmp_path / "one"), write_set(tmp_path / "two" / "other", newest=8.0)
        assert self.hash_of(one) == self.hash_of(other)

    def test_it_covers_choices_code_settings_and_hardware(self, tmp_path: Path, write_set: Callable[..., Path]) -> None:
        one = write_set(tmp_path / "one")
        hashes = {
            self.hash_of(one),
            self.hash_of(write_set(tmp_path / "choice", newest=0.1)),
            self.hash_of(write_set(tmp_path / "code", source(4))),
            self.hash_of(one, on_miss_policy="use_def_best"),
            self.hash_of(one, nearest={"M": 2.0}),
            self.hash_of(one, "NVIDIA H200"),
        }
        assert len(hashes) == 6

    def test_sets_in_memory_have_one(self, definition: Definition) -> None:
        def of(changed: Definition) -> str:
            table = ApplyTable.load_or_build(TraceSet(None, {"scale": changed}, {}, {}, {}))
            return table.replica_hash(["cpu"])

        assert of(definition) == of(definition)
        assert of(definition) != of(attrs.evolve(definition, reference="def run(x):\n    return 3 * x\n"))


class TestExchange:
    def exchanged(self, groups: list[ReplicaGroup], timeout_seconds: float = 20.0) -> list[Any]:
        found: list[Any] = [None] * len(groups)

        def run(rank: int) -> None:
            try:
                found[rank] = groups[rank].exchange(str(rank).encode(), timeout_seconds)
            except NoAgreement as error:
                found[rank] = str(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(groups))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def test_each_gets_the_states_of_all(self) -> None:
        store = HashStore()
        groups = [ReplicaGroup.of_store(store, rank, 3) for rank in range(3)]
        for _ in range(3):
            assert self.exchanged(groups) == [[b"0", b"1", b"2"]] * 3

    def test_a_late_replica_learns_at_once_that_the_others_went_on(self) -> None:
        store = HashStore()
        groups = [ReplicaGroup.of_store(store, rank, 2) for rank in range(2)]
        absent = "ranks did not come in time: 1"
        assert self.exchanged(groups[:1], 0.05) == [absent]
        with pytest.raises(NoAgreement, match=absent):
            groups[1].exchange(b"1", 1000.0)
        assert self.exchanged(groups) == [[b"0", b"1"]] * 2

    def test_a_replica_that_is_out_of_step_gets_no_agreement(self) -> None:
        store = HashStore()
        groups = [ReplicaGroup.of_store(store, rank, 2) for rank in range(2)]
        self.exchanged(groups[:1], 0.05)
        found = self.exchanged(groups, 0.2)
        assert found[1] == "ranks did not come in time: 1"
        assert found[0] == "ranks did not come in time: 1"

    def test_later_groups_do_not_read_what_earlier_ones_wrote(self) -> None:
        store = HashStore()
        for _ in range(2):
            groups = [ReplicaGroup.of_store(store, rank, 2) for rank in range(2)]
            assert self.exchanged(groups) == [[b"0", b"1"]] * 2


class TestAgreement:
    def test_what_one_lacks_is_not_agreed(self) -> None:
        states = [
            ReplicaState("t", {"a": "1", "b": "1", "c": "1"}, runs=["r", "s"]),
            ReplicaState("t", {"a": "1", "b": "2"}, ["c"], [("d", "a", "wrong")], ["s"]),
        ]
        found = Agreement.of([state.to_json() for state in states])
        assert (found.solutions, found.excluded, found.runs) == ({"a"}, {"a", "c"}, {"s"})
        assert found.quarantined == {"d": {"a": "wrong (on rank 1)"}}

    def test_an_invalid_state_is_no_agreement(self) -> None:
        with pytest.raises(NoAgreement, match="a state is invalid"):
            Agreement.of([b"{"])


def test_settings_that_replicas_cannot_keep_are_refused(tmp_path: Path, write_set: Callable[..., Path]) -> None:
    root = write_set(tmp_path / "set")
    group = ReplicaGroup.of_store(HashStore(), 0, 1)
    with pytest.raises(InvalidSetting, match="shadow_ratio"):
        ApplyRuntime(root, ApplyConfig(shadow_ratio=0.5), replicas=group)
    with pytest.raises(InvalidSetting, match="ReplicaGroup"):
        ApplyRuntime(root).synchronize()
