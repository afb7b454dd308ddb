"""Templates of HTML pages: one file that needs no network.

Text of solutions is data and never markup: it is stored in JSON blocks without ``<``, and the script inserts it as
text nodes, logs under a heading that marks them as untrusted. A content security policy allows only the page's own
scripts, and no loading.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from fib_schema.display import escape_line, escape_values, finite_values

from .charts import bundle


def fill_page(name: str, title: str, blocks: Mapping[str, Mapping[str, Any]]) -> str:
    """Fill a template with data and scripts.

    Args:
        name: The name of the template and of its script.
        title: The title; it may hold data.
        blocks: The data by the identifier of its block.

    Raises:
        ChartsUnavailable: vl-convert is not installed.
    """
    script = f"(() => {{\n{_asset('shared.js')}\n{_asset(f'{name}.js')}\n}})();"  # Vega's script has globals of its own
    scripts = [_closed(bundle()), _closed(script)]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'",
        "title": html.escape(escape_line(title)),
        "style": _asset("page.css"),
        "blocks": "\n".join(json_block(key, value) for key, value in blocks.items()),
        "vega": scripts[0],
        "script": scripts[1],
    }
    page = []
    for index, piece in enumerate(_asset(f"{name}.html").split("%%")):
        page.append(parts[piece] if index % 2 else piece)  # one pass: inserted text is not searched for markers
    return "".join(page)


def json_block(name: str, value: Mapping[str, Any]) -> str:
    """Data as an element that a script reads; no character of it is markup."""
    # in ASCII, so no separator of lines is in it
    text = json.dumps(finite_values(escape_values(value)), separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _closed(script: str) -> str:
    """A script that cannot close its own element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
