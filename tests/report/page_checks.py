"""Checks for every page: it is well-formed and self-contained."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}
REACHING = ("src", "href", "srcset", "action", "formaction", "data", "poster", "xlink:href", "background", "ping")


class Page(HTMLParser):
    """A parsed page with what the tests ask about."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.ids: Counter[str] = Counter()
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of <{tag}> is there twice"
        for name, value in attrs:
            if name in REACHING:
                self.references.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "id":
                self.ids[value or ""] += 1


def checked(html: str) -> Page:
    """Parse a page and check it."""
    page = Page(html)
    assert html.startswith("<!doctype html>")
    assert page.tags["script"] == 1
    assert page.handlers == []
    assert [reference for reference in page.references if reference != "data:,"] == []
    assert not re.search(r"@import|url\(|https?://", html)
    assert max(page.ids.values()) == 1
    for drawing in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        root = ElementTree.fromstring(drawing)
        for element in root.iter():
            for value in element.attrib.values():
                assert not re.search(r"\b(nan|inf)\b", value), ElementTree.tostring(element)
    return page
