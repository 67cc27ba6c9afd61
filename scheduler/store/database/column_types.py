"""Types of columns that Python sees as something else than the database does."""

from enum import StrEnum

from sqlalchemy import JSON, BigInteger, Enum, Integer
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from ...model.placement import Placement, Share
from ...model.run import RankEnd

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
