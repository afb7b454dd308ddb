"""Pages for browsers. They show what the API shows to the same user; only logging in and out changes anything.

Templates escape whatever they insert, and control characters of strangers' text are made visible.
"""

from __future__ import annotations

from collections.abc import Callable
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
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ..contest import Contest
from ..database import LARGEST_ID
from ..errors import NotFound
from ..submissions import (
    Filter,
    State,
    Submission,
    best_by_definition,
    count_by_state,
    get_solution,
    get_submission,
    list_submissions,
    list_traces,
    ranked,
    ranked_hardware,
)
from ..users import Principal, find_user
from .access import COOKIE, OfContest, Viewer, check_origin, contest_of
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
async def leaderboards(request: Request, contest: OfContest, viewer: Viewer) -> Response:
    """All definitions with their best results."""

    def read(connection: Connection) -> Response:
        best = best_by_definition(connection)
        rows = []
        for name, definition in contest.public.definitions.items():
            users, first = best.get(name, (0, None))
            rows.append({"name": name, "op_type": definition.op_type, "users": users, "best": first})
        return _page(request, viewer, "leaderboards.html", "Leaderboards", rows=rows)

    return await _read(contest, read)


@router.get("/leaderboard/{definition}")
async def leaderboard(
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
        raise NotFound(f"no definition is named {definition[:200]!r}")

    def read(connection: Connection) -> Response:
        devices = ranked_hardware(connection, definition)
        chosen = hardware or next(iter(devices), "")
        return _page(
            request,
            viewer,
            "leaderboard.html",
            definition,
            definition=found,
            devices=devices,
            hardware=chosen,
            items=ranked(connection, definition, chosen, offset, _LIMIT),
            offset=offset,
            limit=_LIMIT,
            newest=list_submissions(connection, Filter(definition=definition), _NEWEST),
            reference=_highlighted("reference.py", found.reference),
        )

    return await _read(contest, read)


@router.get("/submissions")
async def submissions(
    request: Request,
    contest: OfContest,
    viewer: Viewer,
    user: Annotated[str | None, Query(max_length=40)] = None,
    cursor: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
) -> Response:
    """All submissions, or those of a user."""

    def read(connection: Connection) -> Response:
        if user is not None and find_user(connection, user) is None:
            raise NotFound(f"no user is named {user!r}")
        items = list_submissions(connection, Filter(user=user, before=cursor), _LIMIT)
        following = items[-1].number if len(items) == _LIMIT else None
        return _page(
            request, viewer, "submissions.html", user or "Submissions", items=items, following=following, user=user
        )

    return await _read(contest, read)


@router.get("/submissions/{identifier}")
async def submission(identifier: str, request: Request, contest: OfContest, viewer: Viewer) -> Response:
    """A submission with its timings, and for those who may see them with its log and source."""

    def read(connection: Connection) -> Response:
        found = get_submission(connection, identifier)
        if found is None:
            raise NotFound(f"no submission has the id {identifier[:100]!r}")
        may_see = viewer is not None and viewer.may_see(found.user_id)
        rows = files = None
        if may_see:
            lines = list_traces(connection, identifier, 0, _MAX_TRACES)
            rows = [_workload_row(parse_json(line, Trace)) for _, line in lines]
        if may_see or contest.settings.publish_sources:
            solution = get_solution(connection, identifier)
            assert solution is not None
            files = [(source.path, _highlighted(source.path, source.content)) for source in solution.sources]
        public = (found.summary or {}).get("public") or {}
        changes = (
            None if found.state.is_final or viewer is None else f"/v1/submissions/{identifier}?timeout={_WAIT_SECONDS}"
        )
        return _page(
            request,
            viewer,
            "submission.html",
            found.solution_name,
            submission=found,
            view=view_of(found, viewer),
            rows=rows,
            files=files,
            flags=public.get("flags", []),
            changes=changes,
        )

    return await _read(contest, read)


@router.get("/queue")
async def queue(request: Request, contest: OfContest, viewer: Viewer) -> Response:
    """The queue and the devices."""

    def read(connection: Connection) -> Response:
        devices = contest.devices.all()
        waiting = [
            *list_submissions(connection, Filter(state=State.RUNNING), _LIMIT),
            *list_submissions(connection, Filter(state=State.QUEUED), _LIMIT),
        ]
        counts = count_by_state(connection)
        return _page(request, viewer, "queue.html", "Queue", devices=devices, counts=counts, items=waiting)

    return await _read(contest, read)


@router.get("/login")
async def login_form(request: Request, next: str = "/leaderboard") -> Response:
    """The form to log in."""
    return _page(request, None, "login.html", "Log in", next=_local(next), problem="")


@router.post("/login")
async def login(request: Request) -> Response:
    """Check a token and keep it in a cookie, which scripts cannot read and other sites cannot send."""
    check_origin(request)
    form = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=5)
    token, target = form.get("token", [""])[0].strip(), _local(form.get("next", [""])[0])
    contest, address = contest_of(request), request.client.host if request.client is not None else ""
    if request.app.state.gate.principal(contest, token, address) is None:
        problem = "This token is not valid: it is unknown, expired or revoked."
        return _page(request, None, "login.html", "Log in", 401, next=target, problem=problem)
    answer = RedirectResponse(target, 303)
    is_secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token, _COOKIE_SECONDS, httponly=True, samesite="strict", secure=is_secure)
    return answer


@router.post("/logout")
async def logout(request: Request) -> Response:
    """Forget the token."""
    check_origin(request)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _local(path: str) -> str:
    """A path on this site, whatever a link says."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/leaderboard"


async def _read(contest: Contest, make: Callable[[Connection], Response]) -> Response:
    """Make a page from a consistent view of the database, outside of the event loop."""

    def read() -> Response:
        with contest.database.read() as connection:
            return make(connection)

    return await run_in_threadpool(read)


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


def _highlighted(path: str, text: str) -> Markup:
    """A source file with highlighting; a long one is cut."""
    kept = escape_controls(text[:_MAX_SOURCE])
    try:
        lexer = get_lexer_for_filename(path, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    html = highlight(kept, lexer, HtmlFormatter(nowrap=True))  # escapes the text
    return Markup('<pre tabindex="0">{}{}</pre>').format(Markup(html), _rest_of(text, _MAX_SOURCE))


def _rest_of(text: str, shown: int) -> str:
    """A line that says how much of a text is not shown; empty if all of it is."""
    return f"\n[{len(text) - shown} more characters]" if len(text) > shown else ""


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
    return {**row, "log": evaluation.log[:_MAX_LOG] + _rest_of(evaluation.log, _MAX_LOG)}


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
