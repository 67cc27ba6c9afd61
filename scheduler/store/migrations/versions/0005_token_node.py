"""The node that an agent's token is for."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; tokens of agents from before have none, and their reports are refused."""
    op.add_column("user_token", sa.Column("node", sa.Text))


def downgrade() -> None:
    """Delete it."""
    op.drop_column("user_token", "node")
