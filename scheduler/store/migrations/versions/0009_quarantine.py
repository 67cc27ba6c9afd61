"""The table of quarantines."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
STANDS = sa.text("cleared_s IS NULL")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "quarantine",
        sa.Column("seq", SERIAL, nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("gpu", sa.Integer, nullable=False),
        sa.Column("other_node", sa.Text, nullable=False),
        sa.Column("other_gpu", sa.Integer, nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
        sa.Column("symptom_s", sa.Double, nullable=False),
        sa.Column("check_name", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("clears", sa.String(16), nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("boot_id", sa.Text, nullable=False),
        sa.Column("not_before_s", sa.Double, nullable=False),
        sa.Column("checked", sa.Text, nullable=False),
        sa.Column("cleared_s", sa.Double),
        sa.Column("cleared_by", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_quarantine"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_quarantine_since_s", "quarantine", ["since_s"])
    op.create_index(
        "uq_quarantine_open", "quarantine", ["node", "gpu", "other_node", "other_gpu", "cause"], unique=True,
        sqlite_where=STANDS, postgresql_where=STANDS,
    )  # fmt: skip


def downgrade() -> None:
    """Delete it."""
    op.drop_table("quarantine")
