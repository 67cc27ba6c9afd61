"""${message}."""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Add it."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Take it away."""
    ${downgrades if downgrades else "pass"}
