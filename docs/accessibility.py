"""Accessible names and focus for what the theme leaves out.

Captions of the navigation get the level that their role needs. Boxes that scroll sideways can be reached by keyboard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_AFTER_THE_THEME = 900


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handler; called by Sphinx."""
    app.connect("html-page-context", _complete, priority=_AFTER_THE_THEME)
    return {"parallel_read_safe": True}


def _complete(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    del app, page, template, doctree
    if "furo_navigation_tree" in context:
        captions = '<p class="caption" role="heading">'
        tree = str(context["furo_navigation_tree"])
        context["furo_navigation_tree"] = tree.replace(captions, captions.replace(">", ' aria-level="2">'))
    if "body" in context:
        body = str(context["body"]).replace('<div class="highlight"><pre>', '<div class="highlight"><pre tabindex="0">')
        context["body"] = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
