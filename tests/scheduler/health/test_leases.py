"""Leases: whatever stops, is cut off or sets its clock, nothing is given away while it is still used."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from longshore.scheduler.health.monitoring.guarding import Lease, is_valid
from longshore.scheduler.health.monitoring.leases import LEASE_S, MARGIN_S, NO_LEASE, Leases

RENEWED_S = 15.0  # that a scheduler leads without renewing, as the reconciler has it
KILLED_S = 0.5  # in which a guard notices, and kills


class OneNode(RuleBasedStateMachine):
    """A node with an agent and its guard, two schedulers one after the other, and the links between them.

    `true_s` is the time of physics. Wall clocks are not in it: nothing here reads one, which the class below holds too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.true_s = 1000.0
        self.boot = 1
        self.lives = True  # processes of the attempt
        self.lease: Lease | None = None
        self.until_killed_s = float("inf")
        self.requests_pass = self.answers_pass = True
        self.agent_stands = False  # stopped, while its guard and the jobs go on
        self.machine_stands = False  # and all of it with its jobs
        self.token = 1
        self.leases = Leases(lambda: self.true_s)
        self.renewed_s = self.true_s
        self.old: tuple[Leases, int, float] | None = None  # one that led before, and has not noticed
        self.given_away = False

    @rule(seconds=st.floats(0.05, 0.4))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    @rule(steps=st.integers(1, 80))
    def much_time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self._pass(0.25)

    @rule(seconds=st.integers(1, 20))
    def all_is_well_for_a_while(self, seconds: int) -> None:
        for _ in range(seconds * 2):
            self.report(to_old=False, on_its_way_s=0.0)
            self._pass(0.5)
            self.renewed_s = self.true_s

    def _pass(self, seconds: float) -> None:
        self.true_s += seconds
        if self.machine_stands:
            return
        # What a guard does: it looks several times in a second, and kills where no lease is valid.
        if is_valid(self.lease, str(self.boot), self.true_s):
            self.until_killed_s = float("inf")
        else:
            self.until_killed_s = min(self.until_killed_s, self.true_s + KILLED_S)
            self.lives = self.lives and self.true_s < self.until_killed_s

    @rule(to_old=st.booleans(), on_its_way_s=st.floats(0.0, 3.0))
    def report(self, to_old: bool, on_its_way_s: float) -> None:  # noqa: FBT001
        """The agent reports to the scheduler that leads, or to one that did; the answer takes its time."""
        if self.agent_stands or self.machine_stands or not self.requests_pass:
            return
        sent_s = self.true_s
        leases, token, renewed_s = (self.leases, self.token, self.renewed_s)
        if to_old and self.old is not None:
            leases, token, renewed_s = self.old
        granted = leases.grant("n", token, lambda: self.true_s - renewed_s < RENEWED_S)
        if on_its_way_s:
            self._pass(on_its_way_s)
        if not self.answers_pass or granted == NO_LEASE or granted.lease_s is None:
            return
        if self.lease is None or granted.token >= self.lease.token:
            self.lease = Lease(str(self.boot), sent_s + granted.lease_s, granted.token, 0)

    @rule()
    def the_scheduler_renews(self) -> None:
        self.renewed_s = self.true_s

    @rule(way=st.sampled_from(["requests", "answers", "both", "none"]))
    def links_are_cut_or_mended(self, way: str) -> None:
        self.requests_pass = way not in ("requests", "both")
        self.answers_pass = way not in ("answers", "both")

    @rule()
    def the_agent_stops_or_goes_on(self) -> None:
        self.agent_stands = not self.agent_stands

    @rule()
    def the_machine_stands_or_goes_on(self) -> None:
        self.machine_stands = not self.machine_stands

    @rule()
    def the_machine_starts_anew(self) -> None:
        self.boot += 1
        self.lives = self.machine_stands = False

    @rule(is_dead=st.booleans())
    def another_scheduler_takes_over(self, is_dead: bool) -> None:  # noqa: FBT001
        """Once the one before has not renewed for long enough, or is proven dead."""
        if not is_dead and self.true_s - self.renewed_s < RENEWED_S:
            self._pass(RENEWED_S - (self.true_s - self.renewed_s) + 0.01)
        self.old = None if is_dead else (self.leases, self.token, self.renewed_s)
        self.token += 1
        self.leases = Leases(lambda: self.true_s)
        self.leases.begin()
        self.renewed_s = self.true_s

    @precondition(lambda self: not self.given_away)
    @rule()
    def the_scheduler_gives_away_what_it_may(self) -> None:
        self.given_away = self.leases.has_run_out("n")

    @invariant()
    def nobody_else_has_what_still_runs(self) -> None:
        if self.given_away:
            assert not self.lives or self.machine_stands, "two owners"
            self.given_away, self.lives = False, True  # the next attempt there, once the node is back
            self.lease, self.machine_stands, self.until_killed_s = None, False, float("inf")
            self.agent_stands, self.requests_pass, self.answers_pass = False, True, True
            self.report(to_old=False, on_its_way_s=0.0)
            self.lives = self.lease is not None


TestNoTwoOwners: Any = OneNode.TestCase
TestNoTwoOwners.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_lease_runs_out_only_behind_the_time_of_the_last_answer_and_the_margin() -> None:
    now_s = 0.0
    leases = Leases(lambda: now_s)
    leases.begin()
    now_s = 5.0
    assert leases.grant("n", 7, lambda: True).lease_s == LEASE_S
    now_s = 5.0 + LEASE_S + MARGIN_S
    assert not leases.has_run_out("n")
    now_s += 0.001
    assert leases.has_run_out("n")
    assert leases.has_run_out("never seen")
    leases.begin()  # another one may have granted a lease a moment ago
    assert not leases.has_run_out("n")
    assert not leases.has_run_out("never seen")


def test_who_does_not_surely_lead_grants_nothing_but_waits_all_the_same() -> None:
    now_s = 0.0
    leases = Leases(lambda: now_s)
    now_s = 100.0
    assert leases.grant("n", 7, lambda: False) == NO_LEASE
    assert not leases.has_run_out("n")
