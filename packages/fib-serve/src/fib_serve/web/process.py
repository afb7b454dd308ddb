"""Process of the HTTP server. Arguments: the settings as JSON, and the descriptor of the listening socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys

from fib_schema import FibError

from ..database import open_database
from ..errors import DatabaseUnreachable
from ..logs import configure_logs
from ..processes import REFUSED, end_with_parent, freeze_objects
from ..settings import Settings
from ..users.accounts import local_principal
from .app import make_app
from .server import Server
from .state import Service

_LOG = logging.getLogger(__name__)


def main() -> int:
    """Run the server; returns the exit code."""
    end_with_parent()
    supervisor = os.getppid()
    settings = Settings.from_json(sys.argv[1])
    configure_logs(settings.log_level, "api")
    listener = socket.socket(fileno=int(sys.argv[2]))
    try:
        database = open_database(settings)
        local = None if settings.has_auth else local_principal(database, settings)
        service = Service.open(settings, database, local, lambda: os.kill(supervisor, signal.SIGTERM))
    except DatabaseUnreachable as error:
        _LOG.error("%s", error)
        return 1  # it is tried again
    except FibError as error:
        _LOG.error("%s", error)
        return REFUSED
    server = Server(make_app(service), service)
    freeze_objects()
    asyncio.run(server.serve([listener]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
