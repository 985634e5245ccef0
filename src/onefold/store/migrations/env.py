"""Run by Alembic for every upgrade: use the connection that `migrate` passes, and its transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
