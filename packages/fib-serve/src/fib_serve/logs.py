"""Structured logs: one JSON object per line on stderr. Control characters of strangers' text are escaped by JSON."""

from __future__ import annotations

import json
import logging
import sys

from .identifiers import iso_time

LEVELS = ("debug", "info", "warning", "error")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of ASCII JSON.

    Args:
        process: The name of the process.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = {
            "time": iso_time(record.created),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_logs(level: str, process: str) -> None:
    """Send all log records to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.captureWarnings(True)
