"""Generated parts of pages. A line `<!-- generated: NAME -->` is replaced by Markdown made from code and data.

The functions that make it are in `GENERATORS`, by name; an unknown name is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from adapter_table import adapter_table
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

GENERATORS: Mapping[str, Callable[[], str]] = MappingProxyType({"adapters": adapter_table})
_MARK = re.compile(r"^<!-- generated: (\S+) -->$", re.MULTILINE)
_LOG = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handler, before that of `repository_links`; called by Sphinx."""
    app.connect("source-read", _replace, priority=400)
    return {"parallel_read_safe": True}


def _replace(app: Sphinx, page: str, content: list[str]) -> None:
    del app

    def text(match: re.Match[str]) -> str:
        if match[1] not in GENERATORS:
            _LOG.warning("%s: nothing generates %r (available: %s)", page, match[1], ", ".join(GENERATORS))
            return match[0]
        return GENERATORS[match[1]]()

    content[0] = _MARK.sub(text, content[0])
