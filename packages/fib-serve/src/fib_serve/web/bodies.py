"""Bodies of requests and answers below ``/v1``, with examples for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from ..identifiers import iso_time
from ..queue.reading import DeviceState
from ..queue.submission import State, Submission
from ..users.roles import Principal, Role

Name: TypeAlias = Annotated[str, Field(max_length=1000)]
"""An identifier in a request. The bound also refuses halves of surrogate pairs, which no answer can quote."""

_SOLUTION: JsonDict = {
    "name": "my_rmsnorm",
    "definition": "rmsnorm_h1024",
    "author": "ignored: the user of the token",
    "spec": {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "kernel.py::run",
        "destination_passing_style": False,
    },
    "sources": [{"path": "kernel.py", "content": "def run(x, weight):\n    ...\n"}],
}


class SubmitRequest(BaseModel):
    """A solution to evaluate."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"solution": _SOLUTION}]})

    solution: dict[str, Any]
    """In the format of flashinfer-trace."""
    workload_uuids: Annotated[list[Name], Field(max_length=10_000)] | None = None
    """Public workloads to run on; null means all. A choice does not rank."""
    priority: Annotated[int, Field(ge=-10, le=10)] = 0
    """Among the submissions of the same user."""
    deadline: AwareDatetime | None = None
    """If no device is free before, the submission fails."""
    force: bool = False
    """Evaluate it although an identical one has a result."""


class SubmissionView(BaseModel):
    """A submission."""

    id: str
    user: str
    definition: str
    solution: str
    state: State
    is_cancelling: bool
    verdict: str | None
    """The most serious status of all workloads."""
    is_ranked: bool
    score: float | None
    """The number that leaderboards order by."""
    passed: int
    planned: int
    """The number of public workloads."""
    summary: dict[str, Any] | None
    rejection: str | None
    """The reason of a maintainer who rejected the result."""
    error: str | None
    priority: int
    attempts: int
    device: str | None
    hardware: str | None
    harness: str | None
    created_at: str | None
    started_at: str | None
    finished_at: str | None


class SubmissionPage(BaseModel):
    """A page of submissions; `next_cursor` is null on the last one."""

    items: list[SubmissionView]
    next_cursor: int | None


class TracePage(BaseModel):
    """A page of traces; `next_cursor` is null on the last one."""

    items: list[dict[str, Any]]
    next_cursor: int | None


class Place(BaseModel):
    """A place on a leaderboard."""

    rank: int
    submission: SubmissionView


class Leaderboard(BaseModel):
    """The leaderboard of a definition on one kind of device."""

    definition: str
    hardware: str
    is_unranked: bool
    """Whether latencies without trusted timing (CPU) are shown in order."""
    items: list[Place]


class Quota(BaseModel):
    """The use of quotas."""

    user: str
    role: Role
    used: dict[str, int]
    limits: dict[str, int]


class Device(BaseModel):
    """A device with its worker."""

    name: str
    hardware: str
    harness: str
    isolation: int
    """The isolation level of workers: 0 to 3."""
    submission: str | None
    seen_at: str | None
    problem: str | None
    """The reason why the device is not used, if it is not."""

    @classmethod
    def of(cls, state: DeviceState) -> Device:
        """The body for a device."""
        return cls(
            name=state.name,
            hardware=state.hardware,
            harness=state.harness,
            isolation=state.isolation,
            submission=state.submission_id,
            seen_at=iso_time(state.seen_at),
            problem=state.problem,
        )


class RejectRequest(BaseModel):
    """The reason for rejecting a result."""

    reason: Annotated[str, Field(min_length=1, max_length=1000)]


class UserRequest(BaseModel):
    """A new account."""

    name: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]{0,38}$")]
    role: Role = Role.SUBMITTER


class UserChange(BaseModel):
    """Changes of an account; null leaves the present value."""

    model_config = ConfigDict(extra="forbid")

    role: Role | None = None
    is_active: bool | None = None
    weight: Annotated[float, Field(ge=0.01, le=100)] | None = None
    max_running: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    max_queued: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    max_per_day: Annotated[int, Field(ge=0, le=1_000_000)] | None = None


class TokenRequest(BaseModel):
    """A new token."""

    user: Annotated[str, Field(max_length=40)]
    scope: Role = Role.SUBMITTER
    label: Annotated[str, Field(max_length=100)] = ""
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] | None = None


class NewToken(BaseModel):
    """A token, which is shown once."""

    id: int
    token: str


def view_of(submission: Submission, principal: Principal | None) -> SubmissionView:
    """The parts of a submission that a user may see: texts of the solution are for its owner and for maintainers."""
    may_see = principal is not None and principal.may_see(submission.user_id)
    summary = None if submission.summary is None else dict(submission.summary)
    if summary is not None and summary.get("public") and not may_see:
        summary["public"] = {key: value for key, value in summary["public"].items() if key != "problem"}
    return SubmissionView(
        id=submission.id,
        user=submission.user,
        definition=submission.definition,
        solution=submission.solution_name,
        state=submission.state,
        is_cancelling=submission.is_cancelling,
        verdict=submission.verdict,
        is_ranked=submission.is_ranked,
        score=submission.score,
        passed=submission.passed,
        planned=submission.planned,
        summary=summary,
        rejection=submission.rejection,
        error=submission.error if may_see else None,
        priority=submission.priority,
        attempts=submission.attempts,
        device=submission.device,
        hardware=submission.hardware,
        harness=submission.harness,
        created_at=iso_time(submission.created_at),
        started_at=iso_time(submission.started_at),
        finished_at=iso_time(submission.finished_at),
    )
