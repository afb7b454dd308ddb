"""Process of one device worker. Arguments: the settings as JSON, and the device."""

from __future__ import annotations

import logging
import signal
import sys

from fib_schema import FibError

from ..database.engine import Database
from ..logs import configure_logs
from ..processes import REFUSED, end_with_parent
from ..settings import Settings
from .device_worker import DeviceWorker

_LOG = logging.getLogger(__name__)


def main() -> int:
    """Run the worker; returns the exit code."""
    end_with_parent()
    settings, device = Settings.from_json(sys.argv[1]), sys.argv[2]
    configure_logs(settings.log_level, f"worker {device}")
    database = Database(settings.database_path)
    try:
        worker = DeviceWorker(settings, device, database)
        signal.signal(signal.SIGTERM, lambda *_: worker.drain())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor gets it too, and drains
        worker.run()
    except FibError as error:
        _LOG.error("%s", error)
        return REFUSED
    finally:
        database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
