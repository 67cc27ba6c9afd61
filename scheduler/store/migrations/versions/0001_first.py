"""The tables of jobs and attempts, of what they hold, and of who may write."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

WORD = sa.String(16)
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
OPEN = sa.text("state IN ('draining', 'launched', 'reserved', 'running')")


def upgrade() -> None:
    """Make all tables."""
    for make in (
        _event,
        _idempotency,
        _job,
        _lease,
        _node,
        _user_token,
        _attempt,
        _decision,
        _gpu,
        _reservation,
    ):
        make()


def downgrade() -> None:
    """Delete all tables, those that refer to others first."""
    for table in (
        "reservation",
        "gpu",
        "decision",
        "attempt",
        "user_token",
        "node",
        "lease",
        "job",
        "idempotency",
        "event",
    ):
        op.drop_table(table)


def _event() -> None:
    op.create_table(
        "event",
        sa.Column("seq", SERIAL, nullable=False),
        sa.Column("job_id", sa.Text),
        sa.Column("number", sa.Integer),
        sa.Column("version", sa.Integer),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("was", sa.Text, nullable=False),
        sa.Column("now", sa.Text, nullable=False),
        sa.Column("writer", sa.Text, nullable=False),
        sa.Column("fence", sa.Integer),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("data", sa.JSON),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_event"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_event_job_id_seq", "event", ["job_id", "seq"])


def _idempotency() -> None:
    op.create_table(
        "idempotency",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("response", sa.JSON, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_at_s", "idempotency", ["at_s"])


def _job() -> None:
    op.create_table(
        "job",
        sa.Column("submit_seq", SERIAL, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("desired", WORD, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("estimate_s", sa.Double, nullable=False),
        sa.Column("submitted_s", sa.Double, nullable=False),
        sa.Column("not_before_s", sa.Double, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("stops_infra", sa.Integer, nullable=False),
        sa.Column("stops_resource", sa.Integer, nullable=False),
        sa.Column("stops_user", sa.Integer, nullable=False),
        sa.Column("stops_asked", sa.Integer, nullable=False),
        sa.Column("stops_ambiguous", sa.Integer, nullable=False),
        sa.Column("no_progress", sa.Integer, nullable=False),
        sa.Column("saved_s", sa.Double, nullable=False),
        sa.Column("guess_s", sa.Double, nullable=False),
        sa.Column("wait_s", sa.Double, nullable=False),
        sa.Column("entered_s", sa.Double, nullable=False),
        sa.Column("after_stop", WORD),
        sa.Column("cause_class", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("ended_s", sa.Double),
        sa.PrimaryKeyConstraint("submit_seq", name="pk_job"),
        sa.UniqueConstraint("id", name="uq_job_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_state_submit_seq", "job", ["state", "submit_seq"])
    op.create_index("ix_job_owner_state", "job", ["owner", "state"])


def _lease() -> None:
    op.create_table(
        "lease",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("expires_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lease"),
    )


def _node() -> None:
    op.create_table(
        "node",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("slots", sa.Boolean, nullable=False),
        sa.Column("liveness", WORD, nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
        sa.Column("seen_s", sa.Double, nullable=False),
        sa.Column("misses", sa.Integer, nullable=False),
        sa.Column("agent_s", sa.Double),
        sa.Column("out_of_service", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_node"),
    )


def _user_token() -> None:
    op.create_table(
        "user_token",
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("made_s", sa.Double, nullable=False),
        sa.Column("expires_s", sa.Double),
        sa.Column("used_s", sa.Double),
        sa.PrimaryKeyConstraint("digest", name="pk_user_token"),
    )
    op.create_index("ix_user_token_owner", "user_token", ["owner"])


def _attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("placement", sa.JSON, nullable=False),
        sa.Column("slowdown", sa.Double, nullable=False),
        sa.Column("overhead_s", sa.Double, nullable=False),
        sa.Column("opened_s", sa.Double, nullable=False),
        sa.Column("started_s", sa.Double),
        sa.Column("ended_s", sa.Double),
        sa.Column("contact", WORD, nullable=False),
        sa.Column("contact_since_s", sa.Double, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("ends", sa.JSON, nullable=False),
        sa.Column("cleanup_error", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_attempt_job"),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_attempt"),
    )
    op.create_index("ix_attempt_state", "attempt", ["state"])
    op.create_index("uq_attempt_open", "attempt", ["job_id"], unique=True, sqlite_where=OPEN, postgresql_where=OPEN)


def _decision() -> None:
    op.create_table(
        "decision",
        sa.Column("seq", SERIAL, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("policy_version", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("placement", sa.JSON),
        sa.Column("fallback", sa.JSON),
        sa.Column("explanation", sa.JSON, nullable=False),
        sa.Column("observation", sa.LargeBinary),
        sa.Column("mask", sa.LargeBinary),
        sa.Column("log_probability", sa.LargeBinary),
        sa.Column("past", sa.LargeBinary),
        sa.Column("took_s", sa.Double, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_decision_job"),
        sa.PrimaryKeyConstraint("seq", name="pk_decision"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_decision_job_id_seq", "decision", ["job_id", "seq"])


def _gpu() -> None:
    op.create_table(
        "gpu",
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("gpu", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("healthy", sa.Boolean, nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name="fk_gpu_node"),
        sa.PrimaryKeyConstraint("node", "gpu", name="pk_gpu"),
    )


def _reservation() -> None:
    op.create_table(
        "reservation",
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("gpu", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "number"], ["attempt.job_id", "attempt.number"], name="fk_reservation_attempt"
        ),
        sa.PrimaryKeyConstraint("node", "gpu", name="pk_reservation"),
    )
    op.create_index("ix_reservation_job_id_number", "reservation", ["job_id", "number"])
