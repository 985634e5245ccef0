"""Migrations of the store, run by Alembic when an older store is opened.

A new revision is a file `versions/NNNN_TITLE.py` (see the ones there) with `revision = "NNNN"`, and that number in
`schema.REVISION`. Revisions never import the current schema or records: they must do the same in years to come.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def migrate(connection: Connection, revision: str) -> None:
    """Upgrade the database to `revision`, inside the transaction that the caller has begun."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
