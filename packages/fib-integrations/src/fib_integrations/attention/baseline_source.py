"""Sources of the solutions that call an engine's own attention kernels."""

from __future__ import annotations

from collections.abc import Sequence

from fib_schema import Definition

_BASELINE = """\
import {module}
import torch

_WORKSPACE_BYTES = {workspace_mib} * 1024 * 1024


def setup({inputs}):
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = {wrapper}({arguments})
    wrapper.plan(
{plan}
        sm_scale=float(sm_scale),
    )
    return {{"wrapper": wrapper}}


def run({inputs}, output, lse, *, wrapper):
    wrapper.run({run}, out=output, lse=lse, return_lse=True)
"""


def baseline_source(
    definition: Definition,
    wrapper: str,
    *,
    plan: Sequence[str],
    run: str,
    workspace_mib: int,
    settings: Sequence[str] = (),
) -> str:
    """The source of a solution whose ``setup`` plans and whose ``run`` writes to both outputs.

    Args:
        definition: The definition of the solution.
        wrapper: The path of the wrapper class.
        plan: Arguments of ``plan`` other than the scale and dtypes, in terms of the definition's inputs.
        run: Arguments of ``run`` other than the outputs.
        workspace_mib: The size of the workspace buffer.
        settings: Further arguments of the wrapper class.
    """
    keys = "k_cache" if "k_cache" in definition.inputs else "k"
    planned = (*plan, "q_data_type=q.dtype", f"kv_data_type={keys}.dtype")
    return _BASELINE.format(
        module=wrapper.rpartition(".")[0],
        wrapper=wrapper,
        arguments=", ".join(("workspace", '"NHD"', *settings)),
        workspace_mib=workspace_mib,
        inputs=", ".join(definition.inputs),
        plan="\n".join(f"        {argument}," for argument in planned),
        run=run,
    )
