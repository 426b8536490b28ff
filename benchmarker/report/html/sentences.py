"""Sentences of ours as HTML. Names in them come from files: their escapes keep them text, and no link is made."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markupsafe import Markup

__all__ = ["Markup", "paragraphs", "sentence"]


def sentence(markdown: str) -> Markup:
    """A sentence; what is escaped in it stays text, and HTML in it is shown, not obeyed."""
    return Markup(_markdown().renderInline(markdown))


def paragraphs(markdown: str) -> Markup:
    """Paragraphs and tables."""
    return Markup(_markdown().render(markdown))


def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image", "autolink"])
