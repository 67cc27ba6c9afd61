"""What pruned jobs add to sums over all jobs, and indexes for long histories."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0002"


def upgrade() -> None:
    """Make the table and the indexes."""
    op.create_table(
        "pruned",
        sa.Column("one", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("estimates_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("one", name="pk_pruned"),
    )
    op.drop_index("ix_job_owner_state", "job")
    op.create_index("ix_job_owner_state_submit_seq", "job", ["owner", "state", "submit_seq"])
    op.create_index("ix_job_owner_submit_seq", "job", ["owner", "submit_seq"])
    op.create_index("ix_job_ended_s_submit_seq", "job", ["ended_s", "submit_seq"])


def downgrade() -> None:
    """Delete them."""
    for name in ("ended_s_submit_seq", "owner_submit_seq", "owner_state_submit_seq"):
        op.drop_index(f"ix_job_{name}", "job")
    op.create_index("ix_job_owner_state", "job", ["owner", "state"])
    op.drop_table("pruned")
