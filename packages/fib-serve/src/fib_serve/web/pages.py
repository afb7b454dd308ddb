"""Pages for browsers. They show what the API shows to the same user; only the forms for logins and kernels change it.

Templates escape whatever they insert, and control characters of strangers' text are made visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import attrs
import jinja2
from fastapi import APIRouter, Query, Request
from fib_bench.report import error_line
from fib_bench.report.ratios import bounds_of, latency_range, latency_with_bounds, speedup_of
from fib_schema import Definition, SupportedLanguages, Trace, Workload, parse_json
from fib_schema.display import escape_controls
from fib_schema.trace_facts import shown_latency_of
from markupsafe import Markup
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from .. import submissions as store
from ..contest import Contest
from ..database import LARGEST_ID
from ..errors import Refused
from ..starter import signature_of, starter_of
from ..submissions import Record, Submission
from ..users import Principal
from .access import COOKIE, Gate, OfContest, User, Viewer, check_origin, contest_of
from .api import SubmitRequest, accept, definition_of, view_of

router = APIRouter(include_in_schema=False)
_LIMIT = 100
_NEWEST = 10
_MAX_TRACES = 1000
_MAX_SOURCE, _MAX_SOURCES = 60_000, 300_000  # characters of a file, and of all files of a page
_MAX_LOG, _MAX_LOGS = 20_000, 300_000
_MAX_FIELDS = 20  # of a form
_WAIT_SECONDS = 5  # a page misses a change that happens before it begins to wait
_COOKIE_SECONDS = 30 * 86_400


def error_page(request: Request, status: int, title: str, detail: str) -> Response:
    """The page for an error; without a token, the one to log in."""
    if status == 401:
        return RedirectResponse("/login", 303)
    viewer = getattr(request.state, "principal", None)
    return _page(request, viewer if isinstance(viewer, Principal) else None, "error.html", title, status, detail=detail)


@router.get("/leaderboard")
def leaderboards(
    request: Request, contest: OfContest, viewer: Viewer, search: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """The contest: its rules, and its definitions with their best results, all or those with a text."""
    rows = []
    with contest.database.read() as connection:
        for name, definition in contest.public.definitions.items():
            if search.lower() not in f"{name} {definition.op_type} {definition.description}".lower():
                continue
            hardware = next(iter(store.ranked_hardware(connection, name)), "")
            best = next(iter(store.ranked(connection, name, hardware, 1)), None)
            rows.append({"name": name, "op_type": definition.op_type, "best": best})
    fields: dict[str, Any] = {"search": search, "rows": rows, "count": len(contest.public.definitions)}
    return _page(request, viewer, "leaderboards.html", contest.settings.title, **fields)


@router.get("/leaderboard/{definition}")
def leaderboard(
    definition: str,
    request: Request,
    contest: OfContest,
    viewer: Viewer,
    hardware: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """The leaderboard of a definition."""
    found = definition_of(contest, definition)
    with contest.database.read() as connection:
        devices = store.ranked_hardware(connection, definition)
        chosen = hardware or next(iter(devices), "")
        items = store.ranked(connection, definition, chosen)
        newest = store.list_submissions(connection, _NEWEST, definition=definition)
        history = _history_of(store.records(connection, definition, chosen, _LIMIT))
    fields: dict[str, Any] = {"devices": devices, "hardware": chosen, "items": items, "newest": newest}
    fields |= {"definition": found, "history": history, **_task_of(contest, found, viewer)}
    return _page(request, viewer, "leaderboard.html", definition, **fields)


def _history_of(found: Sequence[Record]) -> list[dict[str, Any]]:
    """Records with their places in a chart, in percent of its size from the left and from the top."""
    if not found:
        return []
    (_, begin, low), (_, end, high) = found[0], found[-1]
    return [
        {
            "user": user,
            "time": time,
            "score": score,
            "x": round(16 + 80 * (time - begin) / max(end - begin, 1e-9), 1),
            "y": round(90 - 80 * (score - low) / max(high - low, 1e-9), 1),
        }
        for user, time, score in found
    ]


def _task_of(contest: Contest, definition: Definition, viewer: Principal | None) -> dict[str, Any]:
    """A definition as a page shows it to those who want to submit for it."""
    evaluation = contest.public.config.resolve_eval_config(definition)
    workloads = contest.public.workloads[definition.name]
    return {
        "signature": signature_of(definition),
        "workloads": [_sizes(workload) for workload in workloads[:_LIMIT]],
        "workload_count": len(workloads),
        "tolerances": {spec.dtype: evaluation.tolerance(spec.dtype) for spec in definition.outputs.values()},
        "starter": starter_of(definition),
        "may_submit": viewer is not None and not contest.settings.is_over,
        "languages": [str(language) for language in SupportedLanguages],
    }


@router.get("/leaderboard/{definition}/kernel.py")
def starter(definition: str, contest: OfContest, _: Viewer) -> Response:
    """A file to begin with, for a definition."""
    return PlainTextResponse(starter_of(definition_of(contest, definition)))


@router.post("/leaderboard/{definition}")
def upload(definition: str, request: Request, contest: OfContest, principal: User) -> Response:
    """Accept the form of the page of a definition."""
    form = _form(request)
    path = form.get("path", "")
    plain = {
        "name": form.get("name", ""),
        "definition": definition_of(contest, definition).name,
        "author": principal.name,
        "spec": {
            "language": form.get("language", ""),
            "target_hardware": ["cpu" if contest.settings.devices[0] == "cpu" else "cuda"],
            "entry_point": f"{path}::{form.get('function', '')}",
            "destination_passing_style": form.get("style") == "destination",
        },
        "sources": [{"path": path, "content": form.get("source", "").replace("\r\n", "\n")}],
    }
    submission, _ = accept(contest, principal, SubmitRequest(solution=plain))
    return RedirectResponse(f"/submissions/{submission.id}", 303)


@router.get("/submissions")
def submissions(
    request: Request,
    contest: OfContest,
    viewer: Viewer,
    user: Annotated[str | None, Query(max_length=40)] = None,
    cursor: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
) -> Response:
    """All submissions and the devices, or the submissions of a user."""
    with contest.database.read() as connection:
        items = store.list_submissions(connection, _LIMIT, before=cursor, user=user)
        counts = store.count_by_state(connection)
    following = items[-1].number if len(items) == _LIMIT else None
    fields: dict[str, Any] = {"items": items, "following": following, "user": user, "counts": counts}
    fields["devices"] = contest.devices.all()
    return _page(request, viewer, "submissions.html", user or "Submissions", **fields)


@router.get("/submissions/{identifier}")
def submission(identifier: str, request: Request, contest: OfContest, viewer: Viewer) -> Response:
    """A submission with its timings, and for those who may see them with its log and source."""
    rows = files = following = None
    with contest.database.read() as connection:
        found = store.find_submission(connection, identifier)
        may_see = viewer is not None and viewer.may_see(found.user_id)
        if may_see:
            lines, following = store.list_traces(connection, identifier, 0, _MAX_TRACES)
            logs = _Excerpts(_MAX_LOG, _MAX_LOGS)
            rows = [_workload_row(parse_json(line, Trace), logs) for line in lines]
        if may_see or contest.settings.publish_sources:
            texts = _Excerpts(_MAX_SOURCE, _MAX_SOURCES)
            sources = store.get_solution(connection, identifier).sources
            files = [(source.path, texts.of(source.content)) for source in sources]
    fields: dict[str, Any] = {"submission": found, "view": view_of(found, viewer), "rows": rows, "files": files}
    fields["is_cut"] = following is not None
    public = (found.summary or {}).get("public") or {}
    if viewer is not None and not found.state.is_final:
        fields["changes"] = f"/v1/submissions/{identifier}?timeout={_WAIT_SECONDS}"
    return _page(request, viewer, "submission.html", found.solution_name, flags=public.get("flags", []), **fields)


@router.get("/login")
def login_form(request: Request) -> Response:
    """The form to log in."""
    return _page(request, None, "login.html", "Log in", problem="")


@router.post("/login")
def login(request: Request) -> Response:
    """Check a token and open a session, whose cookie scripts cannot read and other sites cannot send."""
    check_origin(request)
    token = _form(request).get("token", "").strip()
    gate: Gate = request.app.state.gate
    if gate.principal(contest_of(request), token) is None:
        problem = "This token is not valid: it is unknown, expired or revoked."
        return _page(request, None, "login.html", "Log in", 401, problem=problem)
    answer = RedirectResponse("/leaderboard", 303)
    https = request.url.scheme == "https"
    answer.set_cookie(COOKIE, gate.open_session(token), _COOKIE_SECONDS, httponly=True, samesite="strict", secure=https)
    return answer


@router.post("/logout")
def logout(request: Request) -> Response:
    """End the session."""
    check_origin(request)
    request.app.state.gate.sessions.pop(request.cookies.get(COOKIE), None)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _form(request: Request) -> dict[str, str]:
    """The fields of a form that a page has sent."""
    try:
        found = parse_qs(request.state.body.decode(errors="replace"), max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise Refused(422, f"the form has more than {_MAX_FIELDS} fields") from None
    return {name: values[0] for name, values in found.items()}


def _page(
    request: Request, principal: Principal | None, template: str, title: str, status: int = 200, **fields: Any
) -> Response:
    contest = contest_of(request)
    shared = {
        "title": title,
        "principal": principal,
        "settings": contest.settings,
        "hidden": contest.hidden_definitions,
        "changes": None,
        "base_url": str(request.base_url).rstrip("/"),
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


@attrs.define
class _Excerpts:
    """Shortens texts of a page, each to a bound and all together to another one."""

    most: int
    left: int

    def of(self, text: str) -> str:
        """The text, cut with a line that says how much is not shown."""
        shown = text[: min(self.most, self.left)]
        self.left -= len(shown)
        rest = len(text) - len(shown)
        return text if rest == 0 else f"{shown}\n[{rest} more characters]"


def _workload_row(trace: Trace, logs: _Excerpts) -> dict[str, str]:
    """The line of the table of workloads for a trace."""
    evaluation = trace.evaluation
    assert evaluation is not None
    performance, latency = evaluation.performance, shown_latency_of(evaluation)
    row = {"axes": _sizes(trace.workload), "status": str(evaluation.status), "latency": "-", "speedup": "-"}
    if performance is not None:
        row["speedup"] = speedup_of(performance).text
        if latency is not None:
            row["latency"] = latency_with_bounds(latency, bounds_of(performance))
    reason = "" if trace.is_successful() else error_line(evaluation)
    return {**row, "reason": reason, "log": logs.of(evaluation.log)}


def _sizes(workload: Workload) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in workload.axes.items()) or workload.uuid


def _visible(value: object) -> object:
    """A value for a template, its control characters escaped."""
    return escape_controls(value) if type(value) is str else value


def _format_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return Markup(datetime.fromtimestamp(seconds, UTC).strftime("<time>%Y-%m-%d %H:%M UTC</time>"))


def _with_breaks(name: str) -> Markup:
    """A name that may continue on the next line behind each underscore."""
    return Markup("_<wbr>").join(escape_controls(name).split("_"))


def _format_latency(submission: Submission) -> str:
    part: dict[str, Any] = (submission.summary or {}).get("public") or {}
    bounds = part.get("latency_ms")
    return latency_range(tuple(bounds)) if bounds else "-"


_TEMPLATES = _make_environment()
