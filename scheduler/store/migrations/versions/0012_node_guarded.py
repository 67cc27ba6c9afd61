"""Whether the agent of a node kills what runs there when its lease runs out."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column."""
    op.add_column("node", sa.Column("guarded", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("node", "guarded")
