"""The highest step that a job has told of."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column."""
    op.add_column("job", sa.Column("reached_step", sa.Double))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("job", "reached_step")
