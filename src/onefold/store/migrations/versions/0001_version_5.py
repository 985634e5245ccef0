"""The tables of version 5, which is what 0.1.0 wrote; adds those that an older version lacks."""

from alembic import op
from sqlalchemy import Column, Float, ForeignKey, ForeignKeyConstraint, Index, Integer, MetaData, Table, Text

revision = "0001"
down_revision = None

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
    Column("id", Integer, primary_key=True),
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
    Column("id", Integer, primary_key=True),
    Column("machine", Text, nullable=False),
    Column("key", Text, nullable=False, unique=True),
    Column("content", Text, nullable=False),
)

operators = Table(
    "operators",
    metadata,
    Column("key", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("loops", Text, nullable=False),
)

candidates = Table(
    "candidates",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("operator", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("trace", Text, nullable=False),
    Column("content", Text, nullable=False),
    Index("candidates_by_operator", "operator", "target"),
)

compilations = Table(
    "compilations",
    metadata,
    Column("id", Integer, primary_key=True),
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
    Column("folder", Text, nullable=False),
    Column("submitted", Float, nullable=False),
    Column("began", Float),
    Column("ended", Float),
)


def upgrade() -> None:
    connection = op.get_bind()
    metadata.create_all(connection)
    connection.execute(meta.delete().where(meta.c.name == "version"))
    connection.execute(meta.insert(), {"name": "version", "value": "5"})
