"""What was found at the agent of a node that is silent."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("node", sa.Column("verdict", sa.String(16), nullable=False, server_default=""))
    op.add_column("node", sa.Column("found", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Remove them."""
    for name in ("found", "verdict"):
        op.drop_column("node", name)
