"""A group over NCCL aborts exchanges that never end. There is no GPU: a double behaves as NCCL, also where that hangs.

The double has no arithmetic, streams or memory of GPUs; tensors are on PyTorch's `meta` device.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from longshore.cluster.files.errors import InputError
from longshore.ring import groups
from longshore.ring.groups import LinkError, NcclGroup, RingGroup, check_nccl
from longshore.ring.member_client import AbortedError, MemberClient, Pulse
from longshore.ring.wire import RESTART_STATUS


class ScriptedClient:
    """Aborts exchanges once `over` returns true."""

    def __init__(self, over: Callable[[], bool] = lambda: False) -> None:
        self.pulse, self._over = Pulse(), over

    def wait_for_lease(self) -> None:
        if self._over():
            raise AbortedError


class Host:
    """Records the calls over gloo."""

    endpoints: list[str] = ["10.0.0.1:4000"]  # noqa: RUF012

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *_: self.calls.append(name)


class Twin:
    """PyTorch's group of NCCL.

    Args:
        ends: Whether an exchange ends; one with a dead member does not until it is aborted.
        error: Why it failed.
        reports: Whether `exception` returns the failure. Before PyTorch 2.13 it never works, also without a failure;
            then `wait` raises it, after an abort.
        hangs: Whether an abort does.
    """

    def __init__(self, *, ends: bool = True, error: str = "", reports: bool = True, hangs: bool = False) -> None:
        self._ends, self._error, self._reports, self._hangs = ends, error, reports, hangs
        self.aborted, self.begun = 0, 0

    def allreduce(self, tensors: list[torch.Tensor], options: dist.AllreduceOptions) -> Any:
        self.begun += 1
        began_s = time.monotonic()

        failure = RuntimeError(self._error) if self._error else None

        def exception() -> Exception | None:
            if not self._reports:
                raise TypeError("Unregistered type : std::__exception_ptr::exception_ptr")
            return failure

        def wait(timeout: timedelta | None = None) -> None:
            assert failure is None or not self._reports, "waits for an exchange that is known to have failed"
            if failure is not None and timeout is not None:
                raise failure

        return SimpleNamespace(
            is_completed=lambda: self._ends and time.monotonic() > began_s + 0.02, wait=wait, exception=exception
        )

    def abort(self) -> None:
        self.aborted += 1
        if self._hangs:
            threading.Event().wait()


ON_GPU = torch.empty(3, device="meta")


def group_of(twin: Twin, control: ScriptedClient | None = None) -> tuple[NcclGroup, Host]:
    host = Host()
    return NcclGroup(cast("RingGroup", host), lambda: twin, cast("MemberClient", control or ScriptedClient())), host


@pytest.mark.parametrize("reports", [True, False])
def test_what_is_on_gpus_goes_over_nccl_and_all_else_over_gloo(*, reports: bool) -> None:
    twin = Twin(reports=reports)
    group, host = group_of(twin)
    group.sum(ON_GPU)
    assert (twin.begun, host.calls) == (1, [])
    group.sum(torch.zeros(3))
    group.broadcast(torch.zeros(3), 0)
    group.begin_broadcast(torch.zeros(3), 0)
    assert (twin.begun, host.calls) == (1, ["sum", "broadcast", "begin_broadcast"])
    assert group.endpoints == host.endpoints


def test_an_exchange_that_ends_is_seen_to_move_and_one_under_way_to_wait() -> None:
    seen: list[bool] = []

    def look() -> bool:
        seen.append(control.pulse.waiting)
        return False

    control = ScriptedClient(look)
    group_of(Twin(), control)[0].sum(ON_GPU)
    assert (set(seen), control.pulse.waiting, control.pulse.moved) == ({True}, False, 1)


def test_an_exchange_with_a_dead_member_is_aborted_once_the_ring_is_formed_anew() -> None:
    over = threading.Event()
    twin = Twin(ends=False)
    group, host = group_of(twin, ScriptedClient(over.is_set))
    threading.Timer(0.1, over.set).start()
    with pytest.raises(AbortedError):
        group.sum(ON_GPU)
    assert (twin.aborted, host.calls) == (1, ["close"])


@pytest.mark.parametrize("reports", [True, False])
def test_an_exchange_that_fails_is_a_broken_link(*, reports: bool) -> None:
    twin = Twin(error="NCCL error: remote process exited. Last error: ...", reports=reports)
    with pytest.raises(LinkError, match="remote process exited"):
        group_of(twin)[0].sum(ON_GPU)
    assert twin.aborted == 1


def test_a_process_whose_abort_hangs_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(groups, "ABORT_S", 0.1)
    monkeypatch.setattr(groups, "end_process", lambda status, _: ended.append(status))
    group_of(Twin(hangs=True))[0].close()
    assert ended == [RESTART_STATUS]


def test_members_that_never_meet_are_waited_for_no_longer_than_the_generation_lasts() -> None:
    over = threading.Event()
    threading.Timer(0.1, over.set).start()

    def never_returns() -> Twin:
        threading.Event().wait()
        return Twin()

    with pytest.raises(AbortedError):
        NcclGroup(cast("RingGroup", Host()), never_returns, cast("MemberClient", ScriptedClient(over.is_set)))


def test_members_that_cannot_meet_are_a_broken_link() -> None:
    def fails() -> Twin:
        raise RuntimeError("connection refused")

    with pytest.raises(LinkError, match="connection refused"):
        NcclGroup(cast("RingGroup", Host()), fails, cast("MemberClient", ScriptedClient()))


@pytest.mark.skipif(dist.is_nccl_available(), reason="this PyTorch has NCCL")
def test_without_nccl_a_ring_that_requires_it_is_refused() -> None:
    with pytest.raises(InputError, match="this PyTorch has no NCCL"):
        check_nccl(torch.device("cuda", 0))
