"""Links to files of the repository, rewritten for the site: those of pages, and of included files such as READMEs.

Links are relative to the folder of the file that holds them. A link to a file that has a page becomes a link to that
page, a link to another file becomes a download, and a broken link stays as it is, so that the build reports it.
A link to a published report becomes one to its copy on the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "/index.md", "ARCHITECTURE.md": "/architecture.md", "CONTRIBUTING.md": "/contributing.md"}
REPORTS = ROOT / "docs" / "published"
_REPORT = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]*published/[\w.-]+\.html)\)")
_LINK = re.compile(r"(?P<open>\]\()(?P<target>(?![a-z]+:|#)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers; called by Sphinx."""
    app.connect("include-read", _rewrite)
    app.connect("source-read", _rewrite_page)
    return {"parallel_read_safe": True}


def _rewrite(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """Replace the links of a file that is being included."""
    included = (Path(app.srcdir) / path).resolve()
    content[0] = rewritten(content[0], included, page)


def _rewrite_page(app: Sphinx, page: str, content: list[str]) -> None:
    """Replace the links of a page."""
    content[0] = rewritten(content[0], Path(app.env.doc2path(page)).resolve(), page)


def rewritten(text: str, file: Path, page: str, reports: Path = REPORTS) -> str:
    """The text of a file with rewritten links.

    Args:
        text: Markdown.
        file: Its path.
        page: The name of the page that shows it, such as ``manual/reports``.
        reports: The folder of published reports, which are no pages of Sphinx.
    """

    def replace(match: re.Match[str]) -> str:
        target = page_of(file.parent / match["target"])
        return f"{match['open']}{target or match['target']}{match['anchor'] or ''})"

    def report(match: re.Match[str]) -> str:
        path = (file.parent / match["target"]).resolve()
        if path.parent != reports or not path.exists():
            return match[0]
        return f'<a href="{"../" * page.count("/")}published/{path.name}">{match["text"]}</a>'

    return _LINK.sub(replace, _REPORT.sub(report, text))


def page_of(path: Path) -> str | None:
    """The link target for a file of the repository; None if the file does not exist."""
    resolved = path.resolve()
    if not resolved.exists() or not resolved.is_relative_to(ROOT):
        return None
    inside = resolved.relative_to(ROOT)
    if str(inside) in PAGES:
        return PAGES[str(inside)]
    if inside.parts[0] == "packages" and (len(inside.parts) == 2 or inside.parts[2:] == ("README.md",)):
        return f"/packages/{inside.parts[1]}.md"
    if inside.parts[0] == "docs":
        return "/" + "/".join(inside.parts[1:])
    return f"path:/../{inside}"
