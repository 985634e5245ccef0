"""The tables, as every database has them.

Keys and states are columns, so that a database can check and order them; documents are JSON text (`rows.py`). A change
here is a new VERSION. Version 2 added surfaces and servings, version 3 steered, remembered and submissions, version 4
lessons, version 5 operators, candidates and compilations.
"""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, ForeignKeyConstraint, Index, Integer, MetaData, Table, Text

VERSION = 5

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

studies = Table(
    "studies",
    metadata,
    Column("id", Integer, primary_key=True),  # the order they were created in
    Column("name", Text, nullable=False, unique=True),
    Column("created", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("spec", Text, nullable=False),
    Column("result", Text, nullable=False),
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
    Column("id", Integer, primary_key=True),  # the order they were saved in
    Column("machine", Text, nullable=False),
    Column("key", Text, nullable=False, unique=True),
    Column("content", Text, nullable=False),
)

operators = Table(
    "operators",
    metadata,
    Column("key", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("loops", Text, nullable=False),  # as the compiler packs them; empty where nobody gave them
)

candidates = Table(
    "candidates",
    metadata,
    Column("id", Integer, primary_key=True),  # the order they were first saved in
    Column("key", Text, nullable=False, unique=True),
    Column("operator", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("trace", Text, nullable=False),  # JSON already: inside the document every quote would be written twice
    Column("content", Text, nullable=False),
    Index("candidates_by_operator", "operator", "target"),
)

compilations = Table(
    "compilations",
    metadata,
    Column("id", Integer, primary_key=True),  # the order they were first saved in
    Column("key", Text, nullable=False, unique=True),
    Column("created", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("spec", Text, nullable=False),
    Column("rounds", Text, nullable=False),
    Column("spent", Text, nullable=False),
)

submissions = Table(
    "submissions",
    metadata,
    Column("study", ForeignKey(studies.c.name), primary_key=True),
    Column("folder", Text, nullable=False),  # that it was submitted from
    Column("submitted", Float, nullable=False),  # seconds since 1970, like the two below
    Column("began", Float),
    Column("ended", Float),
)
