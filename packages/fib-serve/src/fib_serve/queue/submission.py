"""Value of a submission, as a row of the database."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs
from sqlalchemy import RowMapping, Select, select

from ..database.tables import submissions, users


class State(StrEnum):
    """The state of a submission."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    """Every workload was evaluated, whatever the verdict."""
    FAILED = "failed"
    """It could not be evaluated; `Submission.error` gives the reason."""
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether it does not change any more."""
        return self not in (State.QUEUED, State.RUNNING)


@attrs.frozen
class Submission:
    """One submission; times are seconds since 1970 (UTC)."""

    number: int
    id: str
    user_id: int
    user: str
    definition: str
    solution_name: str
    content_hash: str
    workloads: tuple[str, ...] | None
    """Uuids of the public workloads to run on; None means all."""
    priority: int
    deadline: float | None
    state: State
    is_cancelling: bool
    error: str | None
    attempts: int
    device: str | None
    hardware: str | None
    harness: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    planned: int
    passed: int
    verdict: str | None
    summary: Mapping[str, Any] | None
    is_ranked: bool
    score: float | None
    rejection: str | None

    @classmethod
    def from_row(cls, row: RowMapping) -> Submission:
        """The value of a row of `select_submissions`."""
        fields = dict(row)
        fields["state"] = State(fields["state"])
        fields["workloads"] = None if fields["workloads"] is None else tuple(fields["workloads"])
        return cls(**fields)


_COLUMNS = [
    users.c.name.label("user") if name == "user" else submissions.c[name]
    for name in (field.name for field in attrs.fields(Submission))
]


def select_submissions() -> Select[Any]:
    """The query for rows of `Submission.from_row`, without the sources, which may be large."""
    return select(*_COLUMNS).join(users, users.c.id == submissions.c.user_id)
