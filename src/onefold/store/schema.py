"""The tables, in every dialect.

Keys and states are columns, so that the database can check and order them; documents are JSON text (`rows.py`). A
change of a table or of a stored document is a new revision in `migrations/versions/`, and its number is REVISION here.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

REVISION = "0005"  # of the newest migration that this code understands
LEGACY_VERSION = "9"  # what `meta` says at that revision, for versions before 0.2.0, which read only that

metadata = MetaData()

alembic_version = Table(
    "alembic_version",
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),  # as Alembic names it
)

meta = Table(
    "meta",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

studies = Table(
    "studies",
    metadata,
    Column("id", Integer, primary_key=True),  # in the order of creation
    Column("name", Text, nullable=False, unique=True),
    Column("created", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("spec", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("checksum", Integer),  # of what decides (rows.py), as in the two tables below
)

trials = Table(
    "trials",
    metadata,
    Column("study", ForeignKey(studies.c.name), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("refusals", Text, nullable=False),
    Column("redraws", Integer, nullable=False),
    Column("checksum", Integer),
)

rungs = Table(
    "rungs",
    metadata,
    Column("study", Text, primary_key=True),
    Column("decision", Integer, primary_key=True),
    Column("trial", Integer, nullable=False),
    Column("rung", Integer, nullable=False),
    Column("bracket", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("started_s", Float),
    Column("ended_s", Float),
    Column("grant", Text, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("measurement", Text, nullable=False),
    Column("failure", Text),
    Column("checksum", Integer),
    ForeignKeyConstraint(["study", "trial"], [trials.c.study, trials.c.number]),
)

epochs = Table(
    "epochs",
    metadata,
    Column("study", Text, primary_key=True),
    Column("trial", Integer, primary_key=True),
    Column("rung", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("metrics", Text, nullable=False),
    Column("measurement", Text, nullable=False),
    ForeignKeyConstraint(["study", "trial"], [trials.c.study, trials.c.number]),
)

surfaces = Table(
    "surfaces",
    metadata,
    Column("key", Text, primary_key=True),
    Column("content", Text, nullable=False),
)

servings = Table(
    "servings",
    metadata,
    Column("study", Text, primary_key=True),
    Column("trial", Integer, primary_key=True),
    Column("device", Text, primary_key=True),
    Column("key", ForeignKey(surfaces.c.key), nullable=False),
    Column("recalled", Integer, nullable=False),
    ForeignKeyConstraint(["study", "trial"], [trials.c.study, trials.c.number]),
)

steered = Table(
    "steered",
    metadata,
    Column("study", Text, primary_key=True),
    Column("trial", Integer, primary_key=True),
    Column("rung", Integer, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("content", Text, nullable=False),
    ForeignKeyConstraint(["study", "trial"], [trials.c.study, trials.c.number]),
)

remembered = Table(
    "remembered",
    metadata,
    Column("key", Text, primary_key=True),
    Column("machine", Text, nullable=False),
    Column("content", Text, nullable=False),
)

lessons = Table(
    "lessons",
    metadata,
    Column("id", Integer, primary_key=True),  # in the order they were saved
    Column("machine", Text, nullable=False),
    Column("key", Text, nullable=False, unique=True),
    Column("content", Text, nullable=False),
)

operators = Table(
    "operators",
    metadata,
    Column("key", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("loops", Text, nullable=False),  # serialized by the compiler; empty where there are none
)

candidates = Table(
    "candidates",
    metadata,
    Column("id", Integer, primary_key=True),  # in the order they were first saved
    Column("key", Text, nullable=False, unique=True),
    Column("operator", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("trace", Text, nullable=False),  # JSON already; inside the document every quote would be escaped
    Column("content", Text, nullable=False),
    Index("candidates_by_operator", "operator", "target"),
)

compilations = Table(
    "compilations",
    metadata,
    Column("id", Integer, primary_key=True),  # in the order they were first saved
    Column("key", Text, nullable=False, unique=True),
    Column("created", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("spec", Text, nullable=False),
    Column("rounds", Text, nullable=False),
    Column("spent", Text, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Integer, primary_key=True),  # in the order of submission
    Column("study", ForeignKey(studies.c.name), nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("folder", Text, nullable=False),  # the working directory of the submitter
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
