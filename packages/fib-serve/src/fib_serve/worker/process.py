"""Process of device workers. Arguments: the settings as JSON, the device, and the name of the worker.

With Ray the settings are the only argument, and the process has the workers of all devices of the cluster.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import TYPE_CHECKING

from fib_schema import FibError

from ..database import Database, open_database
from ..errors import ClusterUnreachable, DatabaseUnreachable
from ..logs import configure_logs
from ..processes import REFUSED, end_with_parent
from ..settings import Settings
from .device_worker import DeviceWorker, local_worker

if TYPE_CHECKING:
    from .cluster_workers import ClusterWorkers

_LOG = logging.getLogger(__name__)


def main() -> int:
    """Run the worker; returns the exit code."""
    end_with_parent()
    settings = Settings.from_json(sys.argv[1])
    configure_logs(settings.log_level, f"worker {sys.argv[3] if settings.executor == 'local' else 'ray'}")
    try:
        database = open_database(settings)
    except DatabaseUnreachable as error:
        _LOG.error("%s", error)
        return 1  # it is tried again
    try:
        worker = _make_worker(settings, database)
        signal.signal(signal.SIGTERM, lambda *_: worker.drain())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor gets it too, and drains
        worker.run()
    except ClusterUnreachable as error:
        _LOG.error("%s", error)
        return 1  # it is tried again
    except FibError as error:
        _LOG.error("%s", error)
        return REFUSED
    finally:
        database.close()
    return 0


def _make_worker(settings: Settings, database: Database) -> DeviceWorker | ClusterWorkers:
    if settings.executor == "local":
        return local_worker(settings, sys.argv[2], sys.argv[3], database)
    from .cluster_workers import ClusterWorkers  # imports Ray

    return ClusterWorkers(settings, database)


if __name__ == "__main__":
    sys.exit(main())
