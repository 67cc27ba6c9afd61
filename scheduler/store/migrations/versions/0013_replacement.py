"""GPUs that took an empty seat of a ring, and why."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "replacement",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("rank", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("gpu", sa.Integer, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("choice", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "number", "rank", name="pk_replacement"),
        sa.ForeignKeyConstraint(
            ["job_id", "number"], ["attempt.job_id", "attempt.number"], name="fk_replacement_attempt"
        ),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("replacement")
