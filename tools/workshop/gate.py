"""The gate: what the jobs of a workflow came to, as one answer."""

import json
from collections.abc import Mapping
from typing import Any

from workshop.errors import Usage

PLANNER = "affected"


def parse_needs(text: str) -> Mapping[str, Any]:
    """Read the `needs` of a job, as JSON: for each job its `result` and its `outputs`.

    Raises:
        Usage: The text is something else.
    """
    try:
        needs = json.loads(text)
    except ValueError as error:
        raise Usage(f"the needs of the gate are not JSON: {error}") from None
    if not isinstance(needs, dict) or not needs or not all(_is_job(job) for job in needs.values()):
        raise Usage(f"the needs of the gate hold no jobs with results: {text}")
    return needs


def objections(needs: Mapping[str, Any]) -> list[str]:
    """The jobs that keep the gate shut. A job may be skipped only where no package is affected."""
    idle = needs.get(PLANNER, {}).get("outputs", {}).get("packages") == "[]"
    passing = {"success", "skipped"} if idle else {"success"}
    return [f"{name}: {job['result']}" for name, job in needs.items() if job["result"] not in passing]


def _is_job(job: object) -> bool:
    return isinstance(job, dict) and isinstance(job.get("result"), str)
