"""Traffic files of processes: full disks, and the share of calls that workloads stand for."""

import pytest
import torch
from fib_tracer import TracingConfig, enable_tracing
from fib_tracer.cli import main

from .test_call_counts import by_rows
from .test_processes import run


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_counts_and_a_later_flush_saves_all(root):
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


def test_statistics_show_the_share_of_calls_that_workloads_stand_for(root, silu, capsys):
    with enable_tracing(root, TracingConfig("dump_all", filter_policy="keep_first")):
        for rows in (2, 2, 2, 3):
            silu(torch.ones(rows, 8))
    assert main(["stats", str(root)]) == 0
    assert "4 calls were counted, 75.0% of them with the sizes and layout of a workload" in capsys.readouterr().out
    (root / "traffic" / "damaged.json").write_text("{")
    assert main(["stats", str(root)]) == 1
    assert "traffic/damaged.json: cannot be read as counts" in capsys.readouterr().err
