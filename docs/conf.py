"""Settings of the documentation site: `python tools/dev.py docs` builds it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

project = "FIB"
author = "the FIB contributors"
copyright = "the FIB contributors, Apache-2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "accessibility",
    "generated_text",
    "public_names",
    "repository_links",
]
exclude_patterns = ["tests", "pictures", "examples", "published"]
html_theme = "furo"
pygments_dark_style = "github-dark"  # of the theme: its default underlines imported names, as if they were links
html_title = "FIB"
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_here_doc_delimiter = "EOF"
html_extra_path = [str(Path(__file__).parents[1] / ".dev" / "docs" / "files")]
for report in Path(__file__).with_name("published").glob("*.html"):  # finished pages, made by make_published.py
    copy = Path(html_extra_path[0]) / "published" / report.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(report.read_bytes())
suppress_warnings = [
    "myst.header",  # READMEs that are included begin below the page's own title
    "ref.python",  # `type` in a signature is Python's own, whatever fields are called so
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# -- the API reference ---------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {
    "members": True,
    "undoc-members": True,  # fields whose names say it all, and constants that another module documents
    "show-inheritance": True,
    "exclude-members": "__init__, __new__, __version__",
}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shapes", "Source"]
default_role = "py:obj"  # docstrings name things in single backticks; those that the reference knows become links

# Python names that have no page (private or of other projects) are shown without a link. `-n` checks links between
# pages and all other references.
nitpick_ignore_regex = [(r"py:.*", r".*")]

linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*"]  # made by scripts there


_ATTRIBUTES = ("attribute", "data", "property")
_set_aside: dict[str, list[str]] = {}


def _set_aside_attributes(_app: object, what: str, name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Hide attribute docstrings from napoleon, which reads text before a colon as a type."""
    if what in _ATTRIBUTES:
        _set_aside[name] = list(lines)
        lines.clear()


def _put_back(_app: object, what: str, name: str, _obj: object, _options: object, lines: list[str]) -> None:
    if what in _ATTRIBUTES:
        lines[:] = _set_aside.pop(name)


def _plain_signature(*found: object) -> tuple[object, object]:
    """Remove memory addresses of defaults from signatures, so that builds are reproducible."""
    signature, returned = found[-2:]
    if isinstance(signature, str):
        signature = re.sub(r" at 0x[0-9a-f]+", "", signature)
    return signature, returned


def setup(app: Any) -> None:
    """Register the event handlers of this file."""
    app.connect("autodoc-process-signature", _plain_signature)
    app.connect("autodoc-process-docstring", _set_aside_attributes, priority=400)
    app.connect("autodoc-process-docstring", _put_back, priority=600)  # napoleon has 500
