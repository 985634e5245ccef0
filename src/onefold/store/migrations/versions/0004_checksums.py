"""Add checksums to the rows that decisions rest on."""

from __future__ import annotations

import zlib

from alembic import op
from sqlalchemy import Column, Integer, column, table

revision = "0004"
down_revision = "0003"

COVERED = {
    "studies": ("name", "spec"),
    "trials": ("study", "number", "config", "refusals", "redraws"),
    "rungs": (
        *("study", "decision", "trial", "rung", "bracket", "state", "threads", "attempts"),
        *("grant", "metrics", "measurement", "failure"),
    ),
}
KEYS = {"studies": ("name",), "trials": ("study", "number"), "rungs": ("study", "decision")}

meta = table("meta", column("name"), column("value"))


def upgrade() -> None:
    connection = op.get_bind()
    for name, columns in COVERED.items():
        op.add_column(name, Column("checksum", Integer))
        rows = table(name, *map(column, columns), column("checksum"))
        for row in connection.execute(rows.select()).mappings().all():
            checksum = zlib.crc32("\0".join(str(row[covered]) for covered in columns).encode())
            same = [rows.c[key] == row[key] for key in KEYS[name]]
            connection.execute(rows.update().where(*same), {"checksum": checksum})
    connection.execute(meta.update().where(meta.c.name == "version"), {"value": "8"})
