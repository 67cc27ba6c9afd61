"""The table of checkpoints."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "checkpoint",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "number", "step", name="pk_checkpoint"),
        sa.ForeignKeyConstraint(
            ["job_id", "number"], ["attempt.job_id", "attempt.number"], name="fk_checkpoint_attempt"
        ),
    )


def downgrade() -> None:
    """Delete it."""
    op.drop_table("checkpoint")
