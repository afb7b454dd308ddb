"""Static files of the pages, always whole."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send


class WholeFiles(StaticFiles):
    """Static files without range requests: the files are small, and lists of thousands of ranges cost time."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = MutableHeaders(scope=scope)
        del headers["range"]
        await super().__call__({**scope, "headers": headers.raw}, receive, send)
