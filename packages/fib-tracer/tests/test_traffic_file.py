"""Traffic files of processes: ranks, kills, forks, full disks, and counts that are saved without a flush."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fib_tracer import TracingConfig, enable_tracing
from fib_tracer.cli import main
from fib_tracer.counts import current_rank

from .test_call_counts import by_rows
from .test_processes import run, start


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_counts_are_saved_when_the_process_ends(root: Path, end: str) -> None:
    code = """
enable_tracing(sys.argv[1], TracingConfig("dump_all", filter_policy="keep_first"))
for index in range(9):
    call(index)
"""
    start(root, code + end).communicate(timeout=120)
    assert by_rows(root) == {2: 9}


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_counts_and_a_later_flush_saves_all(root: Path) -> None:
    """Files of the process are limited, as on a disk that is full."""
    out = run(
        root,
        """
import resource
from fib_schema.traffic import load_traffic
runtime = enable_tracing(sys.argv[1], TracingConfig("dump_all", filter_policy="keep_first"))
call(1)
runtime.flush()
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, most))
call(2)
runtime.flush()
print(load_traffic(sys.argv[1]).definitions["silu_h8"].calls, runtime.error_counts()["traffic counts: writing"])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
runtime.flush()
""",
    )
    assert out.split() == ["1", "1"]
    assert by_rows(root) == {2: 2}
    assert not list(root.rglob("*.tmp"))


def test_statistics_show_the_share_of_calls_that_workloads_stand_for(
    root: Path, silu: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with enable_tracing(root, TracingConfig("dump_all", filter_policy="keep_first")):
        for rows in (2, 2, 2, 3):
            silu(torch.ones(rows, 8))
    assert main(["stats", str(root)]) == 0
    assert "4 calls were counted, 75.0% of them with the sizes and layout of a workload" in capsys.readouterr().out
    (root / "traffic" / "damaged.json").write_text("{")
    assert main(["stats", str(root)]) == 1
    assert "traffic/damaged.json: cannot be read as counts" in capsys.readouterr().err


class TestRank:
    @pytest.fixture(autouse=True)
    def _no_rank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)

    def test_without_a_group_it_is_the_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert current_rank() == (None, None)
        monkeypatch.setenv("RANK", "no number")
        assert current_rank() == (None, None)

    def test_the_environment_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCAL_RANK", "1")
        assert current_rank() == (1, None)
        monkeypatch.setenv("RANK", "5")
        monkeypatch.setenv("WORLD_SIZE", "8")
        assert current_rank() == (5, 8)

    def test_an_initialized_group_counts_before_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "5")
        store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            assert current_rank() == (0, 1)
        finally:
            torch.distributed.destroy_process_group()
