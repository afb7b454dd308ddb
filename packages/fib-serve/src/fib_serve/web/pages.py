"""Pages for browsers. They show what the API shows to the same user; only logging in and out changes anything.

Templates escape whatever they insert, and control characters of strangers' text are made visible.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import jinja2
from fastapi import APIRouter, Query, Request
from fib_bench.report.ratios import bounds_of, latency_range, latency_with_bounds, speedup_of
from fib_schema import Trace, parse_json
from fib_schema.display import escape_controls
from fib_schema.trace_facts import shown_latency_of
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ..database import LARGEST_ID
from ..errors import Refused
from ..submissions import (
    State,
    Submission,
    count_by_state,
    find_submission,
    get_solution,
    list_submissions,
    list_traces,
    ranked,
    ranked_hardware,
)
from ..users import Principal, get_user
from .access import COOKIE, Gate, OfContest, Viewer, check_origin, contest_of
from .api import view_of

router = APIRouter(include_in_schema=False)
_LIMIT = 100
_NEWEST = 10
_MAX_TRACES = 1000
_MAX_SOURCE = 60_000
_MAX_LOG = 20_000
_WAIT_SECONDS = 30
_COOKIE_SECONDS = 30 * 86_400


def error_page(request: Request, status: int, title: str, detail: str) -> Response:
    """The page for an error; without a token, the one to log in."""
    if status == 401:
        return RedirectResponse(f"/login?next={request.url.path}", 303)
    return _page(request, getattr(request.state, "viewer", None), "error.html", title, status, detail=detail)


@router.get("/leaderboard")
def leaderboards(request: Request, contest: OfContest, viewer: Viewer) -> Response:
    """All definitions with their best results."""
    rows = []
    with contest.database.read() as connection:
        for name, definition in contest.public.definitions.items():
            hardware = next(iter(ranked_hardware(connection, name)), "")
            best = next(iter(ranked(connection, name, hardware, 0, 1)), None)
            rows.append({"name": name, "op_type": definition.op_type, "best": best})
    return _page(request, viewer, "leaderboards.html", "Leaderboards", rows=rows)


@router.get("/leaderboard/{definition}")
def leaderboard(
    definition: str,
    request: Request,
    contest: OfContest,
    viewer: Viewer,
    hardware: Annotated[str | None, Query(max_length=200)] = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """The leaderboard of a definition."""
    found = contest.public.definitions.get(definition)
    if found is None:
        raise Refused(404, f"no definition is named {definition[:200]!r}")
    with contest.database.read() as connection:
        devices = ranked_hardware(connection, definition)
        chosen = hardware or next(iter(devices), "")
        items = ranked(connection, definition, chosen, offset, _LIMIT)
        newest = list_submissions(connection, _NEWEST, definition=definition)
    fields: dict[str, Any] = {"devices": devices, "hardware": chosen, "items": items, "offset": offset, "limit": _LIMIT}
    return _page(request, viewer, "leaderboard.html", definition, definition=found, newest=newest, **fields)


@router.get("/submissions")
def submissions(
    request: Request,
    contest: OfContest,
    viewer: Viewer,
    user: Annotated[str | None, Query(max_length=40)] = None,
    cursor: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
) -> Response:
    """All submissions, or those of a user."""
    with contest.database.read() as connection:
        if user is not None:
            get_user(connection, user)
        items = list_submissions(connection, _LIMIT, before=cursor, user=user)
    following = items[-1].number if len(items) == _LIMIT else None
    title = user or "Submissions"
    return _page(request, viewer, "submissions.html", title, items=items, following=following, user=user)


@router.get("/submissions/{identifier}")
def submission(identifier: str, request: Request, contest: OfContest, viewer: Viewer) -> Response:
    """A submission with its timings, and for those who may see them with its log and source."""
    rows = files = None
    with contest.database.read() as connection:
        found = find_submission(connection, identifier)
        may_see = viewer is not None and viewer.may_see(found.user_id)
        if may_see:
            lines = list_traces(connection, identifier, 0, _MAX_TRACES)
            rows = [_workload_row(parse_json(line, Trace)) for _, line in lines]
        if may_see or contest.settings.publish_sources:
            sources = get_solution(connection, identifier).sources
            files = [(source.path, _shortened(source.content, _MAX_SOURCE)) for source in sources]
    fields: dict[str, Any] = {"submission": found, "view": view_of(found, viewer), "rows": rows, "files": files}
    public = (found.summary or {}).get("public") or {}
    if viewer is not None and not found.state.is_final:
        fields["changes"] = f"/v1/submissions/{identifier}?timeout={_WAIT_SECONDS}"
    return _page(request, viewer, "submission.html", found.solution_name, flags=public.get("flags", []), **fields)


@router.get("/queue")
def queue(request: Request, contest: OfContest, viewer: Viewer) -> Response:
    """The queue and the devices."""
    with contest.database.read() as connection:
        running = list_submissions(connection, _LIMIT, state=State.RUNNING)
        queued = list_submissions(connection, _LIMIT, state=State.QUEUED)
        counts = count_by_state(connection)
    fields: dict[str, Any] = {"devices": contest.devices.all(), "counts": counts, "items": [*running, *queued]}
    return _page(request, viewer, "queue.html", "Queue", **fields)


@router.get("/login")
async def login_form(request: Request, next: str = "/leaderboard") -> Response:
    """The form to log in."""
    return _page(request, None, "login.html", "Log in", next=_local(next), problem="")


@router.post("/login")
async def login(request: Request) -> Response:
    """Check a token and open a session, whose cookie scripts cannot read and other sites cannot send."""
    check_origin(request)
    form = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=5)
    token, target = form.get("token", [""])[0].strip(), _local(form.get("next", [""])[0])
    contest, address = contest_of(request), request.client.host if request.client is not None else ""
    gate: Gate = request.app.state.gate
    if gate.principal(contest, token, address) is None:
        problem = "This token is not valid: it is unknown, expired or revoked."
        return _page(request, None, "login.html", "Log in", 401, next=target, problem=problem)
    answer = RedirectResponse(target, 303)
    is_secure = request.url.scheme == "https"
    answer.set_cookie(
        COOKIE, gate.open_session(token), _COOKIE_SECONDS, httponly=True, samesite="strict", secure=is_secure
    )
    return answer


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the session."""
    check_origin(request)
    request.app.state.gate.sessions.pop(request.cookies.get(COOKIE), None)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _local(path: str) -> str:
    """A path on this site, whatever a link says."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/leaderboard"


def _page(
    request: Request, principal: Principal | None, template: str, title: str, status: int = 200, **fields: Any
) -> Response:
    settings = contest_of(request).settings
    shared = {
        "title": title,
        "principal": principal,
        "has_auth": settings.has_auth,
        "has_hidden": settings.hidden is not None,
        "allow_unranked": settings.allow_unranked,
        "changes": None,
        "offers_login": template != "login.html",
    }
    return HTMLResponse(_TEMPLATES.get_template(template).render({**shared, **fields}), status)


# -- rendering ---------------------------------------------------------------------------------------


def _make_environment() -> jinja2.Environment:
    """The templates; whatever they insert is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=_visible,
    )
    environment.filters["time"] = _format_time
    environment.filters["latency"] = _format_latency
    environment.filters["breakable"] = _with_breaks
    return environment


def _shortened(text: str, characters: int) -> str:
    """A text, cut with a line that says how much is not shown."""
    rest = len(text) - characters
    return text if rest <= 0 else f"{text[:characters]}\n[{rest} more characters]"


def _workload_row(trace: Trace) -> dict[str, str]:
    """The line of the table of workloads for a trace."""
    evaluation = trace.evaluation
    assert evaluation is not None
    performance, latency = evaluation.performance, shown_latency_of(evaluation)
    sizes = ", ".join(f"{axis}={size}" for axis, size in trace.workload.axes.items())
    row = {"axes": sizes or trace.workload.uuid, "status": str(evaluation.status), "latency": "-", "speedup": "-"}
    if performance is not None:
        row["speedup"] = speedup_of(performance).text
        if latency is not None:
            row["latency"] = latency_with_bounds(latency, bounds_of(performance))
    return {**row, "log": _shortened(evaluation.log, _MAX_LOG)}


def _visible(value: object) -> object:
    """A value for a template, its control characters escaped."""
    return escape_controls(value) if type(value) is str else value


def _format_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _with_breaks(name: str) -> Markup:
    """A name that may continue on the next line behind each underscore."""
    return Markup("_<wbr>").join(escape_controls(name).split("_"))


def _format_latency(submission: Submission) -> str:
    part: dict[str, Any] = (submission.summary or {}).get("public") or {}
    bounds = part.get("latency_ms")
    return latency_range(tuple(bounds)) if bounds else "-"


_TEMPLATES = _make_environment()
