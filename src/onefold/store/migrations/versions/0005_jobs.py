"""Jobs with tenants and attempts; submissions become jobs."""

from __future__ import annotations

import json

from alembic import op
from sqlalchemy import Column, Float, ForeignKey, Integer, MetaData, Table, Text, column, select, table

revision = "0005"
down_revision = "0004"

metadata = MetaData()
studies = Table("studies", metadata, Column("name", Text, primary_key=True))
jobs = Table(
    "jobs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("study", ForeignKey(studies.c.name), nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("folder", Text, nullable=False),
    Column("submitted", Text, nullable=False),
    Column("ended", Text),
)
attempts = Table(
    "attempts",
    metadata,
    Column("study", ForeignKey(jobs.c.study), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("cores", Integer, nullable=False),
    Column("epochs", Integer, nullable=False),
    Column("began", Text, nullable=False),
    Column("heartbeat", Text, nullable=False),
    Column("ended", Text),
    Column("outcome", Text),
)
tenants = Table(
    "tenants",
    metadata,
    Column("name", Text, primary_key=True),
    Column("share", Float, nullable=False),
)
submissions = table(
    "submissions", column("study"), column("folder"), column("submitted"), column("began"), column("ended")
)
meta = table("meta", column("name"), column("value"))


def upgrade() -> None:
    connection = op.get_bind()
    metadata.create_all(connection, tables=[jobs, attempts, tenants])
    known = submissions.c.study.in_(select(studies.c.name))
    for row in connection.execute(submissions.select().where(known).order_by(submissions.c.submitted)).all():
        submitted, began, ended = (_moment(wall_s) for wall_s in (row.submitted, row.began, row.ended))
        job = {"study": row.study, "tenant": "default", "folder": row.folder, "submitted": submitted, "ended": ended}
        connection.execute(jobs.insert(), job)
        if began is not None:
            attempt = {"study": row.study, "number": 1, "owner": "", "cores": 1, "epochs": 0, "began": began}
            outcome = "lost" if ended is None else "done"  # who ran the study, and how it ended, was not stored
            ending = {"heartbeat": ended or began, "ended": ended or began, "outcome": outcome}
            connection.execute(attempts.insert(), {**attempt, **ending})
    op.drop_table("submissions")
    connection.execute(meta.update().where(meta.c.name == "version"), {"value": "9"})


def _moment(wall_s: float | None) -> str | None:
    moment = {"wall_s": wall_s, "boot": "", "boot_s": 0.0}
    return None if wall_s is None else json.dumps(moment, separators=(",", ":"))
