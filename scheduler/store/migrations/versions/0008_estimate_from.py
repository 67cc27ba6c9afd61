"""Where the estimate of a job is from, and indexes of ended jobs by what they may have in common with a new one."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

ENDED_RUN = sa.text("ended_s IS NOT NULL AND attempt > 0")
INDEXES = (("owner", "name"), ("owner", "gpus"), ("gpus",))


def upgrade() -> None:
    """Add the columns and the indexes."""
    op.add_column("job", sa.Column("estimate_from", sa.Text, nullable=False, server_default="given"))
    op.add_column("job", sa.Column("estimate_jobs", sa.Integer, nullable=False, server_default="0"))
    for columns in INDEXES:
        name = f"ix_job_ended_{'_'.join(columns)}"
        op.create_index(name, "job", [*columns, "ended_s"], sqlite_where=ENDED_RUN, postgresql_where=ENDED_RUN)


def downgrade() -> None:
    """Remove them."""
    for columns in INDEXES:
        op.drop_index(f"ix_job_ended_{'_'.join(columns)}", "job")
    op.drop_column("job", "estimate_jobs")
    op.drop_column("job", "estimate_from")
