"""Environment of alembic: runs migrations on the connection that `database.migrate` hands over."""

from __future__ import annotations

from alembic import context
from fib_serve.database.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
