"""The agent as one file that runs on a board."""

from __future__ import annotations

import zipfile
from importlib.resources import files
from pathlib import Path

from onefold.vocabulary.errors import InputError

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same agent is the same file
_MAIN = """import sys

if sys.version_info < (3, 9):
    raise SystemExit("onefold agent: Python 3.9 or later is needed, this is " + sys.version.split()[0])

from onefold.agent.program import main

main()
"""


def pack_agent(file: Path) -> None:
    """Write the agent to a file that Python runs: `python3 onefold-agent.pyz serve`. Raises InputError."""
    sources = {
        "__main__.py": _MAIN,
        "onefold/__init__.py": '"""The part of Onefold that runs on a board."""\n',
        **{
            f"onefold/agent/{source.name}": source.read_text(encoding="utf-8")
            for source in sorted(files("onefold.agent").iterdir(), key=lambda source: source.name)
            if source.name.endswith(".py")
        },
    }
    new = file.with_name(f"{file.name}.new")
    try:
        with new.open("wb") as opened:
            opened.write(b"#!/usr/bin/env python3\n")
            with zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, text in sources.items():
                    archive.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED)
        new.chmod(0o755)
        new.replace(file)
    except OSError as error:
        raise InputError(f"the agent cannot be written to {file}: {error.strerror}; choose another file") from error
