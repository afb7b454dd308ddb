"""Triton: as many programs as the device has multiprocessors, each of which loops over rows."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, rows, columns, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    inside = place < columns
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        values = tl.load(x + row * columns + place, mask=inside, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(y + row * columns + place, powers / tl.sum(powers, axis=0), mask=inside)


def run(x, y):
    rows, columns = x.shape
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    kernel[(min(rows, programs),)](x, y, rows, columns, BLOCK=triton.next_power_of_2(columns))
