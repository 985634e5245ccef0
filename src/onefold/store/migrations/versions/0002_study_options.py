"""Group the options of study specifications, and name them in the field's terms."""

from __future__ import annotations

import json
from typing import Any

from alembic import op
from sqlalchemy import column, table

revision = "0002"
down_revision = "0001"

RENAMED = {"sittings": "trial_batches", "quality": "workload_objective"}
SERVING = {
    "serve_for": "optimize_for",
    "serving_search": "search",
    "serving_space": "space",
    "scenarios": "scenarios",
    "scenario_goal": "scenario_goal",
}
PARALLELISM = {
    "engine": "engine",
    "accelerator": "accelerator",
    "parallel": "parallel",
    "threads": "threads",
    "threads_of_few": "threads_of_few",
    "memory_bytes": "memory_bytes",
    "patience_s": "hang_timeout_s",
}
KNOBS = {"aim": "optimize_for"}

studies = table("studies", column("id"), column("spec"))
meta = table("meta", column("name"), column("value"))


def upgrade() -> None:
    connection = op.get_bind()
    for study, document in connection.execute(studies.select()).all():
        spec = json.dumps(upgraded_spec(json.loads(document)), separators=(",", ":"))
        connection.execute(studies.update().where(studies.c.id == study), {"spec": spec})
    # Versions before 0.2.0 read only this number, and must refuse the store.
    connection.execute(meta.update().where(meta.c.name == "version"), {"value": "6"})


def upgraded_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a study specification with the new names. Options that it lacks stay out and get their defaults."""
    grouped = {name for names in (SERVING, PARALLELISM) for name in names}
    upgraded = {RENAMED.get(name, name): value for name, value in spec.items() if name not in grouped}
    upgraded["serving"] = _renamed(spec, SERVING)
    upgraded["parallelism"] = _renamed(spec, PARALLELISM)
    knobs = upgraded.get("knobs", {})
    upgraded["knobs"] = {KNOBS.get(name, name): value for name, value in knobs.items()}
    return upgraded


def _renamed(spec: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {new: spec[old] for old, new in names.items() if old in spec}
