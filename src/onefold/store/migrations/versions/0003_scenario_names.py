"""Give the scenarios server and multi-stream of studies their names in MLPerf LoadGen, which were swapped."""

from __future__ import annotations

import json
from typing import Any

from alembic import op
from sqlalchemy import column, table

revision = "0003"
down_revision = "0002"

SWAPPED = {"server": "multi-stream", "multi-stream": "server"}

studies = table("studies", column("id"), column("spec"))
meta = table("meta", column("name"), column("value"))


def upgrade() -> None:
    connection = op.get_bind()
    for study, document in connection.execute(studies.select()).all():
        spec = json.dumps(upgraded_spec(json.loads(document)), separators=(",", ":"))
        connection.execute(studies.update().where(studies.c.id == study), {"spec": spec})
    connection.execute(meta.update().where(meta.c.name == "version"), {"value": "7"})


def upgraded_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a study specification with the names of LoadGen."""
    serving = spec.get("serving", {})
    if not serving.get("scenarios"):
        return spec
    return {**spec, "serving": {**serving, "scenarios": [upgraded_scenario(text) for text in serving["scenarios"]]}}


def upgraded_scenario(text: str) -> str:
    """Return `server:8@20` as `multi-stream:8@20`, `multi-stream:100` as `server:100`, and others unchanged."""
    name, colon, load = text.partition(":")
    return SWAPPED.get(name, name) + colon + load
