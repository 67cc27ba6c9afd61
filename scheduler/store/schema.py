"""Tables of the store, the types of their columns, and inserts that leave or replace a row that is there.

All times are Unix times in seconds.

Source: SPEC K7; what each state means is in `scheduler/model/states.py`. A change here needs a migration beside it, and
a test compares the two.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Enum,
    Executable,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    false,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from ...cluster.model.placement import Placement, Share
from ..model.gpu_index import Clears, Scope
from ..model.states import OPEN_ATTEMPTS, AfterStop, AttemptState, Contact, Desired, JobState, ProbeVerdict, RankEnd

ENUM_LENGTH = 16  # longer than any state's name

# SQLite numbers rows by itself only in a column that it knows as INTEGER, which holds 64 bits there.
BigSerial = BigInteger().with_variant(Integer, "sqlite")


def enum_column(kind: type[StrEnum]) -> Enum:
    """Return a text column that holds the values of an enumeration and reads as its members."""
    return Enum(
        kind,
        native_enum=False,
        length=ENUM_LENGTH,
        values_callable=lambda members: [member.value for member in members],
    )


class PlacementJson(TypeDecorator[Placement]):
    """A placement as a JSON list of (node, GPUs) pairs."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Placement | None, dialect: Dialect) -> list[list[object]] | None:
        """Return the list that stands for a placement."""
        return None if value is None else [[share.node, list(share.gpus)] for share in value]

    def process_result_value(self, value: list[tuple[str, list[int]]] | None, dialect: Dialect) -> Placement | None:
        """Return the placement that a list stands for."""
        return None if value is None else tuple(Share(node, tuple(gpus)) for node, gpus in value)


class EndsJson(TypeDecorator[tuple[RankEnd, ...]]):
    """How ranks ended, as a JSON list of (rank, code, signal, Unix time)."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: tuple[RankEnd, ...] | None, dialect: Dialect) -> list[list[float]]:
        """Return the list that stands for ends."""
        return [[end.rank, end.code, end.signal, end.ended_s] for end in value or ()]

    def process_result_value(
        self, value: list[tuple[int, int, int, float]] | None, dialect: Dialect
    ) -> tuple[RankEnd, ...]:
        """Return the ends that a list stands for."""
        return tuple(RankEnd(*end) for end in value or ())


class Liveness(StrEnum):
    """What is known of a node."""

    UP = "up"
    SUSPECT = "suspect"  # it has missed answers
    DOWN = "down"  # it has missed twice as many; what runs there may run on


# Named by rule, so that a migration can name what it changes on either database.
METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

job = Table(
    "job",
    METADATA,
    Column("submit_seq", BigSerial, primary_key=True),  # order of submission
    Column("id", Text, nullable=False, unique=True),  # ULID in lower case
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("spec", JSON, nullable=False),  # the job file, with all defaults filled in
    Column("desired", enum_column(Desired), nullable=False),
    Column("state", enum_column(JobState), nullable=False),
    Column("priority", Integer, nullable=False),  # higher goes first
    Column("gpus", Integer, nullable=False),  # that it asks for
    Column("estimate_s", Double, nullable=False),  # run time, as its owner estimates it
    Column("submitted_s", Double, nullable=False),
    Column("not_before_s", Double, nullable=False),  # it is not started earlier: the back-off after a fault
    Column("attempt", Integer, nullable=False),  # number of its last attempt, 0 before the first
    Column("version", Integer, nullable=False),  # 1 at first, 1 more with each change
    Column("stops_infra", Integer, nullable=False),  # ends charged to each budget
    Column("stops_resource", Integer, nullable=False),
    Column("stops_user", Integer, nullable=False),
    Column("stops_again", Integer, nullable=False),  # the program requested another run, exit code 75
    Column("stops_ambiguous", Integer, nullable=False),  # of unknown cause
    Column("no_progress", Integer, nullable=False),  # attempts in a row that saved nothing
    Column("saved_s", Double, nullable=False),  # work that checkpoints hold
    Column("guess_s", Double, nullable=False),  # the estimate, doubled whenever it was outlived
    Column("wait_s", Double, nullable=False),  # total time of its finished stays in the queue
    Column("entered_s", Double, nullable=False),  # when it last came into the queue
    Column("after_stop", enum_column(AfterStop)),  # what becomes of it once its attempt is released
    Column("cause_class", Text, nullable=False),  # exit class of its last end, "" before
    Column("cause", Text, nullable=False),  # of its last change, for people
    Column("ended_s", Double),  # when it came into a final state
    Column("reached_step", Double),  # the highest that an attempt has reported, none before
    Column("checkpoint_events", Integer, nullable=False, server_default="0"),  # events of its checkpoints
    # Source of the estimate: the owner, none, or ended jobs and what they have in common with it.
    Column("estimate_from", Text, nullable=False, server_default="given"),
    Column("estimate_jobs", Integer, nullable=False, server_default="0"),  # how many these are
    Index(None, "state", "submit_seq"),
    Index(None, "owner", "state", "submit_seq"),
    Index(None, "owner", "submit_seq"),
    Index(None, "ended_s", "submit_seq"),
    sqlite_autoincrement=True,  # never gives a number again
)

pruned = Table(  # one row, none before the first
    "pruned",
    METADATA,
    Column("one", Integer, primary_key=True, autoincrement=False),  # 1
    Column("jobs", BigInteger, nullable=False),  # that were deleted
    Column("estimates_s", Double, nullable=False),  # sum of theirs
)

attempt = Table(
    "attempt",
    METADATA,
    Column("job_id", ForeignKey("job.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # from 1, never used again
    Column("state", enum_column(AttemptState), nullable=False),
    Column("version", Integer, nullable=False),  # 1 at first, 1 more with each change
    Column("backend", Text, nullable=False),
    Column("placement", PlacementJson, nullable=False),
    Column("slowdown", Double, nullable=False),  # run time over work on its placement
    Column("overhead_s", Double, nullable=False),  # restart cost at its begin
    Column("opened_s", Double, nullable=False),  # when its GPUs were reserved
    Column("started_s", Double),  # when all its ranks ran
    Column("ended_s", Double),  # when the last of them was gone
    Column("contact", enum_column(Contact), nullable=False),
    Column("contact_since_s", Double, nullable=False),
    Column("outcome", Text, nullable=False),  # exit class, "" while it is open
    Column("cause", Text, nullable=False),
    Column("ends", EndsJson, nullable=False),  # of its ranks, as far as they are known when it is released
    Column("cleanup_error", Text, nullable=False),  # what could not be cleaned up; never changes the job's outcome
    Index(None, "state"),
)

ENDED_RUN = text("ended_s IS NOT NULL AND attempt > 0")
for columns in (("owner", "name"), ("owner", "gpus"), ("gpus",)):  # of ended jobs, by what they may have in common
    Index(
        f"ix_job_ended_{'_'.join(columns)}",
        *(job.c[name] for name in (*columns, "ended_s")),
        sqlite_where=ENDED_RUN,
        postgresql_where=ENDED_RUN,
    )

one_open_attempt = Index(
    "uq_attempt_open",
    attempt.c.job_id,
    unique=True,
    sqlite_where=attempt.c.state.in_(sorted(OPEN_ATTEMPTS)),
    postgresql_where=attempt.c.state.in_(sorted(OPEN_ATTEMPTS)),
)

checkpoint = Table(
    "checkpoint",
    METADATA,
    Column("job_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # of the attempt that wrote it
    Column("step", BigInteger, primary_key=True, autoincrement=False),  # the last one that it holds
    Column("path", Text, nullable=False),  # or URL
    Column("digest", Text, nullable=False),  # in hexadecimal, "" for none
    Column("at_s", Double, nullable=False),  # when it was registered
    ForeignKeyConstraint(["job_id", "number"], ["attempt.job_id", "attempt.number"]),
)

compute_record = Table(
    "compute_record",
    METADATA,
    Column("job_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),  # node type
    Column("iterations", BigInteger, nullable=False),
    Column("mean_s", Double, nullable=False),  # that they computed
    Column("last_s", JSON, nullable=False),  # the last 32 of them, the newest last
)

reservation = Table(
    "reservation",
    METADATA,
    Column("node", Text, primary_key=True),
    Column("gpu", Integer, primary_key=True, autoincrement=False),  # index on the node
    Column("job_id", Text, nullable=False),
    Column("number", Integer, nullable=False),  # of the attempt
    Column("since_s", Double, nullable=False),
    ForeignKeyConstraint(["job_id", "number"], ["attempt.job_id", "attempt.number"]),
    Index(None, "job_id", "number"),
)

replacement = Table(  # GPUs that a ring was given while it ran
    "replacement",
    METADATA,
    Column("job_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # of the attempt
    Column("rank", Integer, primary_key=True, autoincrement=False),  # behind those that the attempt began with
    Column("node", Text, nullable=False),
    Column("gpu", Integer, nullable=False),  # index on the node
    Column("at_s", Double, nullable=False),
    Column("choice", JSON, nullable=False),  # among whom it was chosen, and by what
    ForeignKeyConstraint(["job_id", "number"], ["attempt.job_id", "attempt.number"]),
)

user_turn = Table(  # the last turns of each user in the queue
    "user_turn",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("priority", Integer, primary_key=True, autoincrement=False),
    Column("led_s", Double, nullable=False),  # when a job of theirs last started that passed none
    Column("led", BigInteger, nullable=False),  # number of that turn, 0 for none
    Column("started_s", Double, nullable=False),  # when one last started
    Column("started", BigInteger, nullable=False),
)

lease = Table(
    "lease",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("token", BigInteger, nullable=False),  # grows with each taking; usually the Unix time of the last
    Column("expires_s", Double, nullable=False),
    Column("takeovers", Integer, nullable=False, server_default="0"),  # how often it was taken
)

node = Table(
    "node",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("backend", Text, nullable=False),
    Column("kind", Text, nullable=False),  # node type of the cluster file
    Column("slots", Boolean, nullable=False),  # its GPUs are slots that only behave like GPUs
    Column("liveness", enum_column(Liveness), nullable=False),
    Column("since_s", Double, nullable=False),  # when it became so
    Column("seen_s", Double, nullable=False),  # last answer
    Column("misses", Integer, nullable=False),  # answers missed in a row
    Column("agent_s", Double),  # last report of its agent, none if it has no agent
    Column("out_of_service", Text, nullable=False, default=""),  # the reason; "" for a node in service
    Column("address", Text, nullable=False, server_default=""),  # that its agent reports from; "" without an agent
    Column("boot_id", Text, nullable=False, server_default=""),  # names its time since its last start, "" if unknown
    Column("agent_version", Text, nullable=False, server_default=""),  # of Longshore
    Column("guarded", Boolean, nullable=False, server_default=false()),  # its agent kills what runs without a lease
    Column("verdict", enum_column(ProbeVerdict), nullable=False, server_default=""),  # of the probes while it is down
    Column("found", Text, nullable=False, server_default=""),  # by them, in words, while it is silent
)

gpu = Table(
    "gpu",
    METADATA,
    Column("node", ForeignKey("node.name"), primary_key=True),
    Column("gpu", Integer, primary_key=True, autoincrement=False),  # index on the node
    Column("healthy", Boolean, nullable=False),
    Column("since_s", Double, nullable=False),  # when it became so
)

quarantine = Table(
    "quarantine",
    METADATA,
    Column("seq", BigSerial, primary_key=True),
    Column("scope", enum_column(Scope), nullable=False),
    Column("node", Text, nullable=False),
    Column("gpu", Integer, nullable=False),  # index on the node, -1 for the node itself
    Column("other_node", Text, nullable=False),  # of the other end of a link, "" for none
    Column("other_gpu", Integer, nullable=False),  # -1 for the node itself, or none
    Column("since_s", Double, nullable=False),
    Column("symptom_s", Double, nullable=False),  # when it was last seen
    Column("check_name", Text, nullable=False),
    Column("cause", Text, nullable=False),  # in the same few words each time
    Column("evidence", Text, nullable=False),
    Column("action", Text, nullable=False),  # that mends it, for people
    Column("clears", enum_column(Clears), nullable=False),  # what ends it
    Column("tries", Integer, nullable=False),  # how often it came for this cause of late, and checks did not pass since
    Column("boot_id", Text, nullable=False),  # of the node at that time, "" if unknown
    Column("not_before_s", Double, nullable=False),  # checks alone do not end it earlier
    Column("checked", Text, nullable=False),  # how the last checks ended that were to clear it, "" before
    Column("cleared_s", Double),  # none while it stands
    Column("cleared_by", Text, nullable=False),  # `checks`, or who it was; "" while it stands
    Index(None, "since_s"),
    sqlite_autoincrement=True,
)

_STANDS = text("cleared_s IS NULL")
Index(
    "uq_quarantine_open",
    *(quarantine.c[name] for name in ("node", "gpu", "other_node", "other_gpu", "cause")),
    unique=True,
    sqlite_where=_STANDS,
    postgresql_where=_STANDS,
)

event = Table(
    "event",
    METADATA,
    Column("seq", BigSerial, primary_key=True),
    Column("job_id", Text),  # none for what concerns no job
    Column("number", Integer),  # of the attempt; none for what concerns the job itself
    Column("version", Integer),  # of the job or attempt after the change; none if the event is no change
    Column("kind", Text, nullable=False),
    Column("was", Text, nullable=False),  # state before, "" for none
    Column("now", Text, nullable=False),  # state after, "" for none
    Column("writer", Text, nullable=False),  # role that wrote it
    Column("fence", BigInteger),  # token of its lease, none for a writer without one
    Column("cause", Text, nullable=False),
    Column("data", JSON(none_as_null=True)),
    Column("at_s", Double, nullable=False),
    Index(None, "job_id", "seq"),
    sqlite_autoincrement=True,
)

decision = Table(
    "decision",
    METADATA,
    Column("seq", BigSerial, primary_key=True),
    Column("job_id", ForeignKey("job.id"), nullable=False),
    Column("number", Integer),  # of the attempt that came of it, none if none did
    Column("at_s", Double, nullable=False),
    Column("policy", Text, nullable=False),
    Column("policy_version", Text, nullable=False),  # digest of its checkpoint, or the version of Longshore
    Column("mode", Text, nullable=False),  # whether its choice was carried out or only noted
    Column("placement", PlacementJson),  # none if it chose to wait
    Column("fallback", PlacementJson),  # what the policy for emergencies would have chosen
    Column("explanation", JSON, nullable=False),
    Column("observation", LargeBinary),  # little-endian float32
    Column("mask", LargeBinary),  # one byte an action
    Column("log_probability", LargeBinary),  # little-endian float32, one an action
    Column("past", LargeBinary),  # what led to it, as scheduler/mirror/journal.py writes it
    Column("took_s", Double, nullable=False),
    Column("outcome", Text, nullable=False),  # "" until it is known
    Index(None, "job_id", "seq"),
    sqlite_autoincrement=True,
)

user_token = Table(
    "user_token",
    METADATA,
    Column("digest", Text, primary_key=True),  # SHA-256 in hexadecimal; the token itself is not kept
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("made_s", Double, nullable=False),
    Column("expires_s", Double),  # none for never
    Column("used_s", Double),  # last use
    Column("node", Text),  # that the token of an agent is for; none of other roles
    Index(None, "owner"),
)

idempotency = Table(
    "idempotency",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("request", Text, nullable=False),  # SHA-256 of the job file with its defaults, in hexadecimal
    Column("body", Text, nullable=False),  # the same of what was sent
    Column("status", Integer, nullable=False),  # of the answer
    Column("response", JSON, nullable=False),
    Column("at_s", Double, nullable=False),
    Index(None, "at_s"),
)


def insert_if_absent(tx: Connection, table: Table, values: Mapping[str, object]) -> bool:
    """Insert a row unless one with its key is there, and return whether it was inserted."""
    return tx.execute(_insert_if_absent_statement(table, tuple(values), tx.dialect.name), values).first() is not None


def upsert_all(tx: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert rows that name the same columns, or replace these of the rows with their keys."""
    if rows:
        tx.execute(_upsert_statement(table, tuple(rows[0]), tx.dialect.name), rows)


@cache
def _insert_if_absent_statement(table: Table, names: tuple[str, ...], dialect: str) -> Executable:
    """Return a statement; SQLAlchemy takes longer to build one than to run it."""
    return _dialect_insert(table, names, dialect).on_conflict_do_nothing().returning(*table.primary_key)


@cache
def _upsert_statement(table: Table, names: tuple[str, ...], dialect: str) -> Executable:
    insert = _dialect_insert(table, names, dialect)
    key = [column.name for column in table.primary_key]
    changes = {name: insert.excluded[name] for name in names if name not in key}
    return insert.on_conflict_do_update(index_elements=key, set_=changes)


def _dialect_insert(table: Table, names: tuple[str, ...], dialect: str) -> postgresql.Insert | sqlite.Insert:
    insert = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    return insert.values({name: bindparam(name) for name in names})
