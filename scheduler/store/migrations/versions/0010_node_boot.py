"""What the agent of a node tells of it beside its GPUs."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

COLUMNS = ("address", "boot_id", "agent_version")


def upgrade() -> None:
    """Add the columns."""
    for name in COLUMNS:
        op.add_column("node", sa.Column(name, sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Remove them."""
    for name in reversed(COLUMNS):
        op.drop_column("node", name)
