"""All tables of a store."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_STATE_NAME = sa.String(16)
_SERIAL_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WHERE_OPEN = sa.text("state IN ('draining', 'launched', 'reserved', 'running')")
_WHERE_ENDED = sa.text("ended_s IS NOT NULL AND attempt > 0")
_WHERE_NOT_CLEARED = sa.text("cleared_s IS NULL")


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
        _checkpoint,
        _pruned,
        _quarantine,
        _compute_record,
        _replacement,
        _user_turn,
    ):
        make()


def downgrade() -> None:
    """Delete all tables, those that refer to others first."""
    for table in (
        "user_turn",
        "replacement",
        "compute_record",
        "quarantine",
        "pruned",
        "checkpoint",
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
        sa.Column("seq", _SERIAL_NUMBER, nullable=False),
        sa.Column("job_id", sa.Text),
        sa.Column("number", sa.Integer),
        sa.Column("version", sa.Integer),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("was", sa.Text, nullable=False),
        sa.Column("now", sa.Text, nullable=False),
        sa.Column("writer", sa.Text, nullable=False),
        sa.Column("fence", sa.BigInteger),
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
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("response", sa.JSON, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_at_s", "idempotency", ["at_s"])


def _job() -> None:
    op.create_table(
        "job",
        sa.Column("submit_seq", _SERIAL_NUMBER, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("desired", _STATE_NAME, nullable=False),
        sa.Column("state", _STATE_NAME, nullable=False),
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
        sa.Column("stops_again", sa.Integer, nullable=False),
        sa.Column("stops_ambiguous", sa.Integer, nullable=False),
        sa.Column("no_progress", sa.Integer, nullable=False),
        sa.Column("saved_s", sa.Double, nullable=False),
        sa.Column("guess_s", sa.Double, nullable=False),
        sa.Column("wait_s", sa.Double, nullable=False),
        sa.Column("entered_s", sa.Double, nullable=False),
        sa.Column("after_stop", _STATE_NAME),
        sa.Column("cause_class", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("ended_s", sa.Double),
        sa.Column("reached_step", sa.Double),
        sa.Column("checkpoint_events", sa.Integer, nullable=False, server_default="0"),
        sa.Column("estimate_from", sa.Text, nullable=False, server_default="given"),
        sa.Column("estimate_jobs", sa.Integer, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("submit_seq", name="pk_job"),
        sa.UniqueConstraint("id", name="uq_job_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_state_submit_seq", "job", ["state", "submit_seq"])
    op.create_index("ix_job_owner_state_submit_seq", "job", ["owner", "state", "submit_seq"])
    op.create_index("ix_job_owner_submit_seq", "job", ["owner", "submit_seq"])
    op.create_index("ix_job_ended_s_submit_seq", "job", ["ended_s", "submit_seq"])
    for columns in (("owner", "name"), ("owner", "gpus"), ("gpus",)):
        name = f"ix_job_ended_{'_'.join(columns)}"
        op.create_index(name, "job", [*columns, "ended_s"], sqlite_where=_WHERE_ENDED, postgresql_where=_WHERE_ENDED)


def _lease() -> None:
    op.create_table(
        "lease",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("expires_s", sa.Double, nullable=False),
        sa.Column("takeovers", sa.Integer, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("name", name="pk_lease"),
    )


def _node() -> None:
    op.create_table(
        "node",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("slots", sa.Boolean, nullable=False),
        sa.Column("liveness", _STATE_NAME, nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
        sa.Column("seen_s", sa.Double, nullable=False),
        sa.Column("misses", sa.Integer, nullable=False),
        sa.Column("agent_s", sa.Double),
        sa.Column("out_of_service", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False, server_default=""),
        sa.Column("boot_id", sa.Text, nullable=False, server_default=""),
        sa.Column("agent_version", sa.Text, nullable=False, server_default=""),
        sa.Column("guarded", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("verdict", _STATE_NAME, nullable=False, server_default=""),
        sa.Column("found", sa.Text, nullable=False, server_default=""),
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
        sa.Column("node", sa.Text),
        sa.PrimaryKeyConstraint("digest", name="pk_user_token"),
    )
    op.create_index("ix_user_token_owner", "user_token", ["owner"])


def _attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("state", _STATE_NAME, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("placement", sa.JSON, nullable=False),
        sa.Column("slowdown", sa.Double, nullable=False),
        sa.Column("overhead_s", sa.Double, nullable=False),
        sa.Column("opened_s", sa.Double, nullable=False),
        sa.Column("started_s", sa.Double),
        sa.Column("ended_s", sa.Double),
        sa.Column("contact", _STATE_NAME, nullable=False),
        sa.Column("contact_since_s", sa.Double, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("ends", sa.JSON, nullable=False),
        sa.Column("cleanup_error", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_attempt_job"),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_attempt"),
    )
    op.create_index("ix_attempt_state", "attempt", ["state"])
    op.create_index(
        "uq_attempt_open", "attempt", ["job_id"], unique=True, sqlite_where=_WHERE_OPEN, postgresql_where=_WHERE_OPEN
    )


def _decision() -> None:
    op.create_table(
        "decision",
        sa.Column("seq", _SERIAL_NUMBER, nullable=False),
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


def _checkpoint() -> None:
    op.create_table(
        "checkpoint",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "number", "step", name="pk_checkpoint"),
        sa.ForeignKeyConstraint(
            ["job_id", "number"], ["attempt.job_id", "attempt.number"], name="fk_checkpoint_attempt"
        ),
    )


def _pruned() -> None:
    op.create_table(
        "pruned",
        sa.Column("one", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("estimates_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("one", name="pk_pruned"),
    )


def _quarantine() -> None:
    op.create_table(
        "quarantine",
        sa.Column("seq", _SERIAL_NUMBER, nullable=False),
        sa.Column("scope", _STATE_NAME, nullable=False),
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
        sa.Column("clears", _STATE_NAME, nullable=False),
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
        sqlite_where=_WHERE_NOT_CLEARED, postgresql_where=_WHERE_NOT_CLEARED,
    )  # fmt: skip


def _compute_record() -> None:
    op.create_table(
        "compute_record",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("iterations", sa.BigInteger, nullable=False),
        sa.Column("mean_s", sa.Double, nullable=False),
        sa.Column("last_s", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "kind", name="pk_compute_record"),
    )


def _replacement() -> None:
    op.create_table(
        "replacement",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("gpu", sa.Integer, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("choice", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "number", "rank", name="pk_replacement"),
        sa.ForeignKeyConstraint(
            ["job_id", "number"], ["attempt.job_id", "attempt.number"], name="fk_replacement_attempt"
        ),
    )


def _user_turn() -> None:
    op.create_table(
        "user_turn",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("led_s", sa.Double, nullable=False),
        sa.Column("led", sa.BigInteger, nullable=False),
        sa.Column("started_s", sa.Double, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("owner", "priority", name="pk_user_turn"),
    )
