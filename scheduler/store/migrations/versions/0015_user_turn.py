"""When users last had their turns in the queue."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "user_turn",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("led_s", sa.Double, nullable=False),
        sa.Column("led", sa.BigInteger, nullable=False),
        sa.Column("started_s", sa.Double, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("owner", "priority", name="pk_user_turn"),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("user_turn")
