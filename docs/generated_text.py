"""Generated parts of pages. A line `<!-- generated: NAME -->` is replaced by Markdown made from code and data.

The functions that make it are in `GENERATORS`, by name; an unknown name is a warning.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from adapter_table import adapter_table
from data_format import FILES, record_reference, settings_reference
from op_type_reference import op_type_reference, role_table
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

GENERATORS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "adapters": adapter_table,
        "op-types": op_type_reference,
        "roles": role_table,
        "config": settings_reference,
        **{kind: functools.partial(record_reference, kind) for kind in FILES},
    }
)
_MARK = re.compile(r"^<!-- generated: (\S+) -->$", re.MULTILINE)
_LOG = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handler, before that of `repository_links`; called by Sphinx."""
    app.connect("source-read", _replace, priority=400)
    return {"parallel_read_safe": True}


def replaced(text: str) -> str:
    """A page with its generated parts.

    Raises:
        KeyError: A mark has an unknown name.
    """
    return _MARK.sub(lambda match: GENERATORS[match[1]](), text)


def _replace(app: Sphinx, page: str, content: list[str]) -> None:
    del app
    try:
        content[0] = replaced(content[0])
    except KeyError as error:
        _LOG.warning("%s: nothing generates %s (available: %s)", page, error, ", ".join(GENERATORS))
