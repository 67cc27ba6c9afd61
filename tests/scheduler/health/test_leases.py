"""Leases: whatever stops, is cut off or sets its clock, nothing is given away while it is still used."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from longshore.scheduler.health import agent
from longshore.scheduler.health.agent import Fencing
from longshore.scheduler.health.guarding import Lease, is_lease_valid
from longshore.scheduler.health.monitor import LEASE_MARGIN_S, LEASE_S, NO_LEASE, Leases
from tests.support.budgets import examples

RENEWED_S = 15.0  # that a scheduler leads without renewing, as the reconciler has it
KILLED_S = 0.5  # in which a guard notices, and kills


class OneNode(RuleBasedStateMachine):
    """A node with an agent and its guard, two schedulers one after the other, and the links between them.

    `true_s` is the time of physics. Of wall clocks only that of the store is in it, for tokens: nothing else reads one.
    The agent is the real one, without its machine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.true_s = 1000.0
        self.boot = 1
        self.lives = True  # processes of the attempt
        self.lease: Lease | None = None
        self.until_killed_s = float("inf")
        self.requests_pass = self.answers_pass = True
        self.answered_s = float("-inf")  # when the report was sent that the leader answered last
        self.leased_s = float("-inf")  # the same, of those that must extend the lease
        self.agent_stands = False  # stopped, while its guard and the jobs go on
        self.machine_stands = False  # and all of it with its jobs
        self.stood = False  # it did, and its guard has not looked since
        self.wall_s = 0.0  # that the store's clock is ahead
        self.token = int(self.true_s)
        self.highest = self.token  # of all that were drawn
        self.copies = [self.token]  # tokens of the store's backups
        self.leases = Leases(lambda: self.true_s)
        self.renewed_s = self.true_s
        self.old: tuple[Leases, int, float] | None = None  # one that led before, and has not noticed
        self.patches = ExitStack()
        for name, stub in self._machine().items():
            self.patches.enter_context(patch.object(agent, name, stub))
        self.patches.enter_context(patch.object(os, "geteuid", lambda: 0))
        self.agent = Fencing(Path("lease"))
        self.report(to_old=False, on_its_way_s=0.0)

    def _machine(self) -> Mapping[str, object]:
        """Return what the agent calls of its machine."""

        def write(_: Path, lease: Lease) -> None:
            self.lease = lease

        return {
            "since_start_s": lambda: self.true_s, "boot_id": lambda: str(self.boot), "read_lease": lambda _: self.lease,
            "write_lease": write, "kill_attempts": self._kill, "shows_this_process": lambda: True,
            "start_guard": lambda _: SimpleNamespace(pid=1, poll=lambda: None),
        }  # fmt: skip

    def _kill(self) -> int:
        was_alive, self.lives = self.lives, False
        return int(was_alive)

    def teardown(self) -> None:
        self.patches.close()

    @rule(seconds=st.floats(0.05, 0.4))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    @rule(steps=st.integers(1, 80))
    def much_time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self._pass(0.25)

    @rule(seconds=st.integers(1, 20))
    def all_is_well_for_a_while(self, seconds: int) -> None:
        # Even if tokens of the store are lower than one that the agent has seen, as its clock was set back.
        must_hold_s, answers = self.true_s + LEASE_S + 1.0, False
        for _ in range(seconds * 2):
            self.report(to_old=False, on_its_way_s=0.0)
            answers = self.answered_s == self.true_s
            if answers and self.true_s > must_hold_s:
                assert is_lease_valid(self.lease, str(self.boot), self.true_s), "no lease"
            self._pass(0.5)
            self.renewed_s = self.true_s

    def _pass(self, seconds: float) -> None:
        """Let time pass in steps no longer than those of a guard."""
        while seconds > 0.0:
            self._step(min(seconds, 0.2))
            seconds -= 0.2

    def _step(self, seconds: float) -> None:
        self.true_s += seconds
        if self.machine_stands:
            return  # it computes nothing; behind that a guard looks first
        # What a guard does: it looks several times in a second, and kills where no lease is valid.
        if is_lease_valid(self.lease, str(self.boot), self.true_s):
            self.until_killed_s = float("inf")
        else:
            self.until_killed_s = min(self.until_killed_s, self.true_s + KILLED_S)
            self.lives = self.lives and self.true_s < self.until_killed_s
            if not self.lives:
                self.stood = False
        # A machine that stood still has its guard's first look before it: until then its jobs are not seen to be gone.
        assert not (self.leases.has_run_out("n") and self.lives and not self.stood), "two owners"

    @rule(to_old=st.booleans(), on_its_way_s=st.floats(0.0, 3.0))
    def report(self, to_old: bool, on_its_way_s: float) -> None:  # noqa: FBT001
        """The agent reports to the scheduler that leads, or to one that did; the answer takes its time."""
        if self.agent_stands or self.machine_stands:
            return
        sent_s = self.true_s
        if not self.requests_pass:
            self._apply_answer(None, sent_s)
            return
        leases, token, renewed_s = (self.leases, self.token, self.renewed_s)
        if to_old and self.old is not None:
            leases, token, renewed_s = self.old
        granted = leases.grant("n", token, lambda: self.true_s - renewed_s < RENEWED_S)
        if on_its_way_s:
            self._pass(on_its_way_s)
        is_leader = leases is self.leases and granted != NO_LEASE
        self._apply_answer(granted._asdict() if self.answers_pass else None, sent_s)
        if self.answers_pass and is_leader:
            self.answered_s = sent_s
            if self.token == self.highest:
                self.leased_s = sent_s
                assert self.lease, "no lease"
                assert self.lease.until_s >= sent_s + LEASE_S, "no lease"

    def _apply_answer(self, answer: dict[str, Any] | None, sent_s: float) -> None:
        lived = self.lives
        self.agent.apply_answer(answer, sent_s)
        # What lives dies only without a recent answer, unless the store's clock was set back at the last change.
        if self.token == self.highest and lived and self.true_s < self.leased_s + LEASE_S:
            assert self.lives, "killed in spite of a lease"

    @rule()
    def the_agent_is_restarted(self) -> None:
        if not self.machine_stands:
            self.agent, self.agent_stands = Fencing(Path("lease")), False

    @rule()
    def the_store_is_backed_up(self) -> None:
        self.copies.append(self.token)

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
        self.stood = True

    @rule()
    def the_machine_starts_anew(self) -> None:
        self.boot += 1
        self.lives = self.machine_stands = self.stood = self.agent_stands = False
        self.agent, self.answered_s, self.leased_s = Fencing(Path("lease")), float("-inf"), float("-inf")

    @rule(is_dead=st.booleans())
    def another_scheduler_takes_over(self, is_dead: bool) -> None:  # noqa: FBT001
        """Once the one before has not renewed for long enough, or is proven dead; its own start takes a second."""
        if not is_dead and self.true_s - self.renewed_s < RENEWED_S:
            self._pass(RENEWED_S - (self.true_s - self.renewed_s) + 0.01)
        self._pass(1.0)
        self.old = None if is_dead else (self.leases, self.token, self.renewed_s)
        self.token = max(self.token + 1, int(self.true_s + self.wall_s))
        assert self.wall_s < 0.0 or self.token >= self.highest, "a token that falls behind"
        self.highest = max(self.highest, self.token)
        self.leases = Leases(lambda: self.true_s)
        self.leases.begin_leading()
        self.renewed_s = self.true_s

    @rule(copy=st.integers(-1, 9))
    def a_scheduler_leads_with_another_store(self, copy: int) -> None:
        """That was restored from one of the backups, or is a new one; no scheduler led meanwhile."""
        self.token = self.copies[copy % len(self.copies)] if copy >= 0 else 0
        self.another_scheduler_takes_over(is_dead=True)

    @rule(by_s=st.sampled_from([-2000.0, -10.0, 10.0]))
    def the_clock_of_the_store_is_set(self, by_s: float) -> None:
        self.wall_s = min(self.wall_s + by_s, 0.0)

    @precondition(lambda self: not self.machine_stands and not self.leases.has_run_out("n"))
    @rule()
    def an_attempt_starts_where_a_lease_is_valid(self) -> None:
        if is_lease_valid(self.lease, str(self.boot), self.true_s):
            self.lives, self.until_killed_s = True, float("inf")

    @precondition(lambda self: self.leases.has_run_out("n"))
    @rule()
    def the_next_attempt_starts_there(self) -> None:
        """The scheduler gives away what it may; the node is back, and its agent sees nothing of the one before."""
        self._pass(2.0 * KILLED_S if not self.machine_stands else 0.0)
        if self.lives:
            return
        self.machine_stands = self.stood = self.agent_stands = False
        self.requests_pass = self.answers_pass = True
        self.report(to_old=False, on_its_way_s=0.0)
        self.lives, self.until_killed_s = is_lease_valid(self.lease, str(self.boot), self.true_s), float("inf")


TestNoTwoOwners: Any = OneNode.TestCase
TestNoTwoOwners.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


@pytest.fixture
def node() -> Iterator[OneNode]:
    made = OneNode()
    made.all_is_well_for_a_while(3)
    yield made
    made.teardown()


@pytest.mark.parametrize("copy", [-1, 0])
def test_jobs_live_on_under_a_scheduler_with_another_store(node: OneNode, copy: int) -> None:
    node.another_scheduler_takes_over(is_dead=True)
    node.all_is_well_for_a_while(3)
    node.a_scheduler_leads_with_another_store(copy)
    node.all_is_well_for_a_while(20)
    assert node.lives


@pytest.mark.parametrize("copy", [-1, 0])
def test_an_agent_obeys_a_lower_token_once_it_has_killed_what_a_higher_one_let_live(node: OneNode, copy: int) -> None:
    node.the_clock_of_the_store_is_set(-2000.0)
    for _ in range(3):
        node.another_scheduler_takes_over(is_dead=True)
    node.all_is_well_for_a_while(3)
    node.a_scheduler_leads_with_another_store(copy)
    node.all_is_well_for_a_while(20)  # which holds that there is a lease again
    assert not node.lives
    node.an_attempt_starts_where_a_lease_is_valid()
    node.all_is_well_for_a_while(20)
    assert node.lives


@pytest.mark.parametrize("way", ["requests", "answers"])
def test_an_agent_that_is_restarted_continues_the_lease_of_the_one_before(node: OneNode, way: str) -> None:
    node.links_are_cut_or_mended(way)
    node.the_agent_is_restarted()
    for _ in range(int(LEASE_S) - 2):
        node.report(to_old=False, on_its_way_s=0.0)
        node._pass(1.0)
        assert node.lives
    node._pass(3.0)
    assert not node.lives


def test_an_agent_that_starts_behind_a_reboot_has_no_lease(node: OneNode) -> None:
    node.the_machine_starts_anew()
    node.lives = True
    node.links_are_cut_or_mended("both")
    node.report(to_old=False, on_its_way_s=0.0)
    assert not node.lives


def test_a_lease_runs_out_only_behind_the_time_of_the_last_answer_and_the_margin() -> None:
    now_s = 0.0
    leases = Leases(lambda: now_s)
    leases.begin_leading()
    now_s = 5.0
    assert leases.grant("n", 7, lambda: True).lease_s == LEASE_S
    now_s = 5.0 + LEASE_S + LEASE_MARGIN_S
    assert not leases.has_run_out("n")
    now_s += 0.001
    assert leases.has_run_out("n")
    assert leases.has_run_out("never seen")
    leases.begin_leading()  # another one may have granted a lease a moment ago
    assert not leases.has_run_out("n")
    assert not leases.has_run_out("never seen")


def test_who_does_not_surely_lead_grants_nothing_but_waits_all_the_same() -> None:
    now_s = 0.0
    leases = Leases(lambda: now_s)
    now_s = 100.0
    assert leases.grant("n", 7, lambda: False) == NO_LEASE
    assert not leases.has_run_out("n")
