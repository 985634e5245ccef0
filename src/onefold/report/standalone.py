"""One HTML file that stands alone: a template with the style and the script of all pages inside it."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from onefold.report import phrases
from onefold.report.plots.marks import SHADES
from onefold.vocabulary import quantities


def rendered(template: str, *more_style: str, **content: Any) -> str:
    """The page of a template, which names what it shows; `more_style` are files with what only this page needs."""
    environment = Environment(
        loader=PackageLoader("onefold.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(phrases=phrases, quantities=quantities, shades=SHADES)
    script = _resource("page.js")
    return environment.get_template(template).render(
        style=Markup("".join(map(_resource, ("page.css", *more_style)))),
        script=Markup(script),
        script_hash=_digest(script),
        **content,
    )


def _resource(name: str) -> str:
    return files("onefold.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """What lets the browser run this script and no other, whatever else may have found its way into the page."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
