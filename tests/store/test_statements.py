"""The statements are SQL of every dialect."""

from __future__ import annotations

import pytest
from sqlalchemy import Executable
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from onefold.store import schema, statements

DIALECTS = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


def all_statements(dialect: str) -> list[Executable]:
    constants = [value for name, value in vars(statements).items() if name.isupper()]
    plain = [statement for value in constants for statement in (value if isinstance(value, list) else [value])]
    return [
        *(statement for statement in plain if isinstance(statement, Executable)),
        *(statements.upsert(dialect, table) for table in (schema.trials, schema.rungs, schema.surfaces)),
        statements.upsert(dialect, schema.candidates, "key"),
        statements.insert_if_absent(dialect, schema.epochs),
        *(CreateTable(table) for table in schema.metadata.sorted_tables),
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_can_be_compiled(dialect: str) -> None:
    compiled = [str(statement.compile(dialect=DIALECTS[dialect]())) for statement in all_statements(dialect)]
    assert len(compiled) > 40


def test_a_replaced_row_keeps_its_primary_key() -> None:
    sql = str(statements.upsert("postgresql", schema.candidates, "key").compile(dialect=postgresql.dialect()))
    assert "ON CONFLICT (key) DO UPDATE SET operator" in " ".join(sql.split())
    assert "SET id" not in sql
