"""What every preflight check must do, ours and those of plug-ins."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from longshore.cluster.files.errors import PluginError
from longshore.cluster.files.plugins import registered
from longshore.preflight.check import (
    Check,
    CheckedJob,
    CheckFinding,
    CheckOutcome,
    CheckStage,
    all_checks,
    chosen_checks,
    find_check,
    passed,
)
from longshore.preflight.context import Context
from longshore.testing import check_preflight_check
from tests.packages import install


@pytest.mark.parametrize("name", registered("checks"))
def test_a_check_keeps_its_limit_and_reports_its_findings(name: str) -> None:
    check_preflight_check(find_check(name))


def sleepy(context: Context) -> list[CheckFinding]:
    time.sleep(0.05)
    return []


FINE = Check("mine", 0, "mine", 5.0, lambda context: [passed()])
BROKEN: list[tuple[Check, str]] = [
    (replace(FINE, level=7), "level"),
    (replace(FINE, limit_s=0.0), "limit"),
    (replace(FINE, about=""), "about"),
    (replace(FINE, name=""), "name"),
    (replace(FINE, run=lambda context: ["all well"]), "no Finding"),  # type: ignore[list-item]
    (replace(FINE, run=lambda context: [CheckFinding(CheckOutcome.FAIL, got="3")]), "wanted, action"),
    (replace(FINE, run=lambda context: [CheckFinding(CheckOutcome.SKIPPED)]), "reason"),
    (replace(FINE, limit_s=0.01, run=sleepy), "longer than its limit"),
]


@pytest.mark.parametrize(("check", "problem"), BROKEN)
def test_a_check_that_breaks_a_rule_gets_the_rule_in_its_error(check: Check, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_preflight_check(check)


def test_a_check_that_keeps_all_rules_passes() -> None:
    check_preflight_check(FINE)


MODULE = """
from longshore.preflight.check import Check, passed
MINE = Check("site.mine", 0, "mine", 1.0, lambda context: [passed()])
OTHER = Check("site.other", 0, "other", 1.0, lambda context: [passed()])
"""


@pytest.fixture
def forget_checks() -> Callable[[], None]:
    find_check.cache_clear()
    return find_check.cache_clear


def test_a_check_of_another_package_runs_behind_ours(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, forget_checks: Callable[[], None]
) -> None:
    folder = tmp_path_factory.mktemp("site")
    install(folder, monkeypatch, "checks", {"site.mine": "site_checks:MINE"}, site_checks=MODULE)
    names = [check.name for check in chosen_checks(CheckStage.NODE, 1, CheckedJob())]
    assert names[-1] == "site.mine"
    assert len(names) > 10
    forget_checks()


def test_a_check_under_another_name_than_its_own_is_refused(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, forget_checks: Callable[[], None]
) -> None:
    folder = tmp_path_factory.mktemp("site")
    install(folder, monkeypatch, "checks", {"site.mine": "site_checks:OTHER"}, site_checks=MODULE)
    with pytest.raises(PluginError, match=r"has the name 'site\.other'"):
        all_checks()
    forget_checks()
