"""Standalone HTML pages: a template with the style and the script that all pages share."""

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

STYLES = ("style.css", "table.css")
SCRIPT = "script.js"


def render_page(template: str, *styles: str, **content: Any) -> str:
    """Render a page that loads nothing and runs only our script.

    Args:
        template: The template's path below `onefold.report`.
        styles: Further style sheets, for this page only.
        content: The variables of the template.
    """
    environment = Environment(
        loader=PackageLoader("onefold.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(phrases=phrases, quantities=quantities, shades=SHADES)
    script = _resource(SCRIPT)
    return environment.get_template(template).render(
        style=Markup("".join(map(_resource, (*STYLES, *styles)))),
        script=Markup(script),
        script_hash=_digest(script),
        **content,
    )


def _resource(name: str) -> str:
    return files("onefold.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """Return the hash by which the content security policy allows this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
