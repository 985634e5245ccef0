"""Which model folders this home wrote: their code may run without being trusted explicitly.

HOME/written/DIGEST.json     one file per generation: the digest is that of the folder's manifest
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from platformdirs import user_data_dir

from onefold.model_folder.manifest import Manifest

WRITTEN = "written"


def home_path(path: str | Path | None = None) -> Path:
    """Return the folder of studies: `path`, or else $ONEFOLD_HOME, or else the user's data folder."""
    return Path(path or os.environ.get("ONEFOLD_HOME") or user_data_dir("onefold")).expanduser().absolute()


def record_written(home: Path, manifest: Manifest, folder: Path) -> None:
    """Record that this home wrote a folder with this manifest."""
    records = home / WRITTEN
    records.mkdir(parents=True, exist_ok=True)
    content = {"folder": str(folder), "written_at": datetime.now(UTC).isoformat(timespec="seconds")}
    new = records / f"{manifest.digest}.{os.getpid()}.new"
    new.write_text(json.dumps(content) + "\n", encoding="utf-8")
    new.replace(records / f"{manifest.digest}.json")


def is_recorded(home: Path, manifest: Manifest) -> bool:
    """Return whether this home wrote a folder with this manifest."""
    return (home / WRITTEN / f"{manifest.digest}.json").is_file()
