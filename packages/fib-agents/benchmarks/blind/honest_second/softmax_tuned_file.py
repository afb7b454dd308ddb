# class: tuned parameters from a file beside the code, if there is one
from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import triton
import triton.language as tl

log = logging.getLogger("softmax")
log.addHandler(logging.NullHandler())
if level := os.getenv("SOFTMAX_LOG_LEVEL"):
    log.setLevel(level.upper())


@dataclass(frozen=True)
class Tuning:
    num_warps: int = 8
    num_stages: int = 2
    rows_per_program: int = 1

    @classmethod
    def load(cls, path: Path) -> "Tuning":
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            log.info("%s does not exist; defaults are used", path)
            return cls()
        except (json.JSONDecodeError, OSError) as exc:
            log.warning("cannot read %s: %s", path, exc)
            return cls()
        known = {f.name for f in fields(cls)}
        return cls(**{k: int(v) for k, v in data.items() if k in known})


TUNING = Tuning.load(Path(__file__).resolve().parent / "softmax_tuning.json")


@triton.jit
def softmax_kernel(x_ptr, y_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0) * ROWS
    cols = tl.arange(0, BLOCK)
    for r in tl.static_range(ROWS):
        row = start + r
        if row < M:
            v = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf"))
            e = tl.exp(v - tl.max(v, 0))
            tl.store(y_ptr + row * N + cols, e / tl.sum(e, 0), mask=cols < N)


def run(x: torch.Tensor, y: torch.Tensor) -> None:
    m, n = x.shape
    grid = (triton.cdiv(m, TUNING.rows_per_program),)
    softmax_kernel[grid](
        x,
        y,
        m,
        n,
        ROWS=TUNING.rows_per_program,
        BLOCK=triton.next_power_of_2(n),
        num_warps=TUNING.num_warps,
        num_stages=TUNING.num_stages,
    )
