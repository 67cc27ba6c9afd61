"""Under what a policy was trained, and how that differs from what it is used under."""

from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from ...cluster.model.scenarios import ORDERS, Rules
from ..protocol import Policy

Word = Annotated[str, Field(max_length=100)]
USERS = "users"  # estimates as users give them, or as ended jobs have it
MIXED = "mixed"  # several kinds of estimates: whoever knows these is at home with each


class Trained(BaseModel):
    """The order regime and the knowledge that a policy was trained under."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    orders: Annotated[tuple[Word, ...], Field(min_length=1, max_length=100)]
    ageing_h: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None  # None: a job may be overtaken for ever
    waiting: bool
    estimates: Word  # of run times: exact, log-normal, class-mean, mixed, trace (as it has them) or users
    oracle: bool  # it knew the true fault rates; else it estimated them


class Use(NamedTuple):
    """What a policy is used under."""

    orders: tuple[str, ...]  # none where it is used under all, whatever it was trained under
    ageing_h: float | None
    waiting: bool
    estimates: str
    oracle: bool


def use_of(rules: Rules, estimates: str) -> Use:
    """Return what policies are used under, by the rules and what is known of run times."""
    ageing_h = rules.ageing_s / 3600.0
    order = next(name for name, number in ORDERS.items() if number == rules.order)
    is_for_ever = ageing_h == float("inf")
    return Use((order,), None if is_for_ever else ageing_h, bool(rules.waiting), estimates, not rules.estimated_hazards)


def trained_of(policy: Policy) -> Trained | None:
    """Return what a policy, or the base of rollouts, was trained under; None if nothing says so."""
    schema = getattr(getattr(policy, "base", policy), "schema", None)
    found = getattr(schema, "trained", None)
    return found if isinstance(found, Trained) else None


def remark_on(policy: Policy, use: Use) -> str:
    """Return in one line how the use of a policy differs from its training; "" if it does not, or nothing says so."""
    trained = trained_of(policy)
    if trained is None:
        return ""
    pairs = (
        (_orders(trained.orders), _orders(use.orders), set(use.orders) <= set(trained.orders)),
        (_ageing(trained.ageing_h), _ageing(use.ageing_h), not use.orders or trained.ageing_h == use.ageing_h),
        (_waiting(waits=trained.waiting), _waiting(waits=use.waiting), trained.waiting == use.waiting),
        (f"estimates {trained.estimates}", f"estimates {use.estimates}", trained.estimates in (MIXED, use.estimates)),
        (_rates(true=trained.oracle), _rates(true=use.oracle), trained.oracle == use.oracle),
    )
    differ = [f"{then} (here {now})" for then, now, fits in pairs if not fits]
    return f"it was trained under {', '.join(differ)}" if differ else ""


def _orders(names: tuple[str, ...]) -> str:
    return f"order {' or '.join(names)}"


def _ageing(ageing_h: float | None) -> str:
    return "no ageing" if ageing_h is None else f"ageing after {ageing_h:g} h"


def _waiting(*, waits: bool) -> str:
    return "waiting" if waits else "no waiting"


def _rates(*, true: bool) -> str:
    return "true fault rates" if true else "estimated fault rates"
