"""Pages for browsers. They show what the API shows to the same user; only logging in and out changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import attrs
from fastapi import APIRouter, FastAPI, Query, Request
from fib_schema import Trace, parse_json
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ..database.tables import LARGEST_ID
from ..errors import NotFound
from ..identifiers import iso_time, now
from ..queue.reading import (
    Filter,
    best_by_definition,
    count_by_state,
    get_solution,
    get_submission,
    list_devices,
    list_submissions,
    list_traces,
    ranked,
    ranked_hardware,
    records_over_time,
)
from ..queue.submission import State
from ..users.accounts import find_user
from ..users.roles import Principal
from .access import COOKIE, OfService, Viewer, check_origin
from .bodies import view_of
from .rendering import chart_of, highlighted, make_environment, workload_row
from .state import Service, service_of
from .static_files import WholeFiles

router = APIRouter(include_in_schema=False)
_TEMPLATES = make_environment()
_LOGIN_TEMPLATES = ("login.html", "logged_in.html")
_LIMIT = 100
_NEWEST = 10
_MAX_TRACES = 1000
_COOKIE_SECONDS = 30 * 86_400
_Cursor = Annotated[int | None, Query(ge=1, le=LARGEST_ID)]


def add_pages(app: FastAPI) -> None:
    """Add the pages, their files, and the page for errors."""
    app.include_router(router)
    app.mount("/static", WholeFiles(directory=Path(__file__).parent / "static"))
    app.state.error_page = error_page
    app.state.logged_in_page = lambda request: _page(request, None, "logged_in.html", "Logged in")


def error_page(request: Request, status: int, title: str, detail: str) -> Response:
    """The page for an error; without a token, the one to log in."""
    if status == 401:
        return RedirectResponse(f"/login?next={request.url.path}", 303)
    return _page(request, getattr(request.state, "viewer", None), "error.html", title, status, detail=detail)


@router.get("/leaderboard")
async def leaderboards(request: Request, service: OfService, viewer: Viewer) -> Response:
    """All definitions with their best results."""

    def read(connection: Connection) -> Response:
        best = best_by_definition(connection)
        rows = []
        for name, definition in service.catalog.definitions.items():
            users, first = best.get(name, (0, None))
            rows.append({"name": name, "op_type": definition.op_type, "users": users, "best": first})
        return _page(request, viewer, "leaderboards.html", "Leaderboards", rows=rows)

    return await _read(service, read)


@router.get("/leaderboard/{definition}")
async def leaderboard(
    definition: str,
    request: Request,
    service: OfService,
    viewer: Viewer,
    hardware: Annotated[str | None, Query(max_length=200)] = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """The leaderboard of a definition."""
    found = service.catalog.definitions.get(definition)
    if found is None:
        raise NotFound(f"no definition is named {definition[:200]!r}")

    def read(connection: Connection) -> Response:
        devices = ranked_hardware(connection, definition)
        chosen = hardware or next(iter(devices), "")
        records = records_over_time(connection, definition, chosen)
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
            records=records,
            chart=chart_of(records),
            newest=list_submissions(connection, Filter(definition=definition), _NEWEST),
            reference=highlighted("reference.py", found.reference),
        )

    return await _read(service, read)


@router.get("/submissions")
async def submissions(request: Request, service: OfService, viewer: Viewer, cursor: _Cursor = None) -> Response:
    """All submissions."""
    return await _list(request, service, viewer, Filter(before=cursor), "Submissions")


@router.get("/users/{name}")
async def user(name: str, request: Request, service: OfService, viewer: Viewer, cursor: _Cursor = None) -> Response:
    """The submissions of a user."""
    with service.database.read() as connection:
        if find_user(connection, name) is None:
            raise NotFound(f"no user is named {name[:200]!r}")
    return await _list(request, service, viewer, Filter(user=name, before=cursor), name, with_user=False)


@router.get("/submissions/{identifier}")
async def submission(identifier: str, request: Request, service: OfService, viewer: Viewer) -> Response:
    """A submission with its timings, and for those who may see them with its log and source."""

    def read(connection: Connection) -> Response:
        found = get_submission(connection, identifier)
        if found is None:
            raise NotFound(f"no submission has the id {identifier[:100]!r}")
        may_see = viewer is not None and viewer.may_see(found.user_id)
        rows = files = None
        if may_see:
            lines = list_traces(connection, identifier, 0, _MAX_TRACES)
            rows = [workload_row(parse_json(line, Trace)) for _, line in lines]
        if may_see or service.settings.publish_sources:
            solution = get_solution(connection, identifier)
            assert solution is not None
            files = [(source.path, highlighted(source.path, source.content)) for source in solution.sources]
        public = (found.summary or {}).get("public") or {}
        events = None if found.state.is_final or viewer is None else f"/v1/submissions/{identifier}/events"
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
            events=events,
        )

    return await _read(service, read)


@router.get("/queue")
async def queue(request: Request, service: OfService, viewer: Viewer) -> Response:
    """The queue and the devices."""

    def read(connection: Connection) -> Response:
        oldest = now() - 3 * service.settings.lease_seconds
        devices = [
            {**attrs.asdict(device), "is_healthy": device.is_healthy(oldest)} for device in list_devices(connection)
        ]
        waiting = [
            *list_submissions(connection, Filter(state=State.RUNNING), _LIMIT),
            *list_submissions(connection, Filter(state=State.QUEUED), _LIMIT),
        ]
        counts = count_by_state(connection)
        return _page(request, viewer, "queue.html", "Queue", devices=devices, counts=counts, items=waiting)

    return await _read(service, read)


@router.get("/feed.json")
async def feed(request: Request, service: OfService, viewer: Viewer) -> dict[str, Any]:
    """The newest records of all definitions as a JSON Feed 1.1."""
    del viewer
    base = str(request.base_url).rstrip("/")

    def read() -> list[dict[str, Any]]:
        with service.database.read() as connection:
            found = [
                each
                for name in service.catalog.definitions
                for hardware in ranked_hardware(connection, name)
                for each in records_over_time(connection, name, hardware)[-_NEWEST:]
            ]
        newest = sorted(found, key=lambda each: -each.created_at)[:_LIMIT]
        return [
            {
                "id": each.id,
                "url": f"{base}/submissions/{each.id}",
                "title": f"{each.user} is first on {each.definition}",
                "content_text": f"{each.solution_name}: score {each.score:.3f} on {each.hardware}",
                "date_published": iso_time(each.finished_at),
                "authors": [{"name": each.user}],
            }
            for each in newest
        ]

    items = await run_in_threadpool(read)
    return {
        "version": "https://jsonfeed.org/version/1.1",
        "title": "New best results",
        "home_page_url": f"{base}/leaderboard",
        "feed_url": f"{base}/feed.json",
        "items": items,
    }


@router.get("/docs")
async def docs(request: Request, viewer: Viewer) -> Response:
    """All routes of the API."""
    paths = request.app.openapi()["paths"]
    routes = [
        (method.upper(), path, route.get("description", ""))
        for path, methods in paths.items()
        for method, route in methods.items()
    ]
    return _page(request, viewer, "docs.html", "API", routes=routes)


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
    service, address = service_of(request), request.client.host if request.client is not None else ""
    if request.app.state.gate.principal(service, token, address) is None:
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


async def _read(service: Service, make: Any) -> Response:
    """Make a page from a consistent view of the database, outside of the event loop."""

    def read() -> Response:
        with service.database.read() as connection:
            page: Response = make(connection)
            return page

    return await run_in_threadpool(read)


async def _list(
    request: Request, service: Service, viewer: Principal | None, chosen: Filter, title: str, *, with_user: bool = True
) -> Response:
    def read(connection: Connection) -> Response:
        items = list_submissions(connection, chosen, _LIMIT)
        following = items[-1].number if len(items) == _LIMIT else None
        fields: dict[str, Any] = {"items": items, "following": following, "with_user": with_user}
        return _page(request, viewer, "submissions.html", title, caption="The newest first", **fields)

    return await _read(service, read)


def _page(
    request: Request, principal: Principal | None, template: str, title: str, status: int = 200, **fields: Any
) -> Response:
    settings = service_of(request).settings
    shared = {
        "title": title,
        "principal": principal,
        "has_auth": settings.has_auth,
        "has_hidden": settings.hidden is not None,
        "allow_unranked": settings.allow_unranked,
        "has_oidc": settings.oidc_issuer is not None,
        "events": None,
        "offers_login": template not in _LOGIN_TEMPLATES,
    }
    return HTMLResponse(_TEMPLATES.get_template(template).render({**shared, **fields}), status)
