"""How long iterations of jobs computed on each type of node."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "compute_record",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("iterations", sa.BigInteger, nullable=False),
        sa.Column("mean_s", sa.Double, nullable=False),
        sa.Column("last_s", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "kind", name="pk_compute_record"),
    )


def downgrade() -> None:
    """Delete it."""
    op.drop_table("compute_record")
