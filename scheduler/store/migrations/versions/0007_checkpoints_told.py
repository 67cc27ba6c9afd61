"""How many events there are of the checkpoints of a job."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

COUNT = """
UPDATE job SET checkpoints_told = (SELECT count(*) FROM event WHERE event.job_id = job.id AND event.kind = 'checkpoint')
"""


def upgrade() -> None:
    """Add the column, and count once for the jobs that there are."""
    op.add_column("job", sa.Column("checkpoints_told", sa.Integer, nullable=False, server_default="0"))
    op.execute(COUNT)


def downgrade() -> None:
    """Remove it."""
    op.drop_column("job", "checkpoints_told")
