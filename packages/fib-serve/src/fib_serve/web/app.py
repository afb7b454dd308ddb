"""The application: all routes, their errors, and the protection around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from .. import __version__
from . import administration, documented, oidc, operations, pages, v1
from .access import Gate
from .problems import add_handlers
from .protection import Protection
from .state import Service

_DESCRIPTION = "Evaluates solutions of GPU kernels and ranks them. Errors have the form of RFC 9457."


def make_app(service: Service) -> FastAPI:
    """The application of a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.changes.start()
        yield
        service.close()

    app = FastAPI(
        title="fib-serve",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.gate = Gate(service.settings.requests_per_second)
    add_handlers(app)
    for module in (documented, v1, administration, operations):
        app.include_router(module.router)
    pages.add_pages(app)
    oidc.add_oidc(app, service.settings)
    app.add_middleware(Protection, max_body_bytes=service.settings.max_body_bytes, metrics=service.metrics)
    return app
