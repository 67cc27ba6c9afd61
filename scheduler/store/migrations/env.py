"""What Alembic runs for each command: the migrations, in the transaction of the caller."""

from alembic import context

from longshore.scheduler.store.database import VERSION_TABLE
from longshore.scheduler.store.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite changes a column only by copying the table
)
context.run_migrations()
