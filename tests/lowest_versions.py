"""Print the lowest permitted version of every dependency as constraints of pip: `make test-lowest` tests with them."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest_versions() -> list[str]:
    """Return a constraint `name==version` for each dependency that has a lower bound."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["kernels"]]
    lines += project["optional-dependencies"]["server"]
    matches = (re.match(r"([\w-]+)(?:\[\w+\])?(?:>=|==)([\w.]+)", line) for line in lines)
    return [f"{match[1]}=={match[2]}" for match in matches if match]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest_versions()) + "\n")
