"""The ways in which tests are started elsewhere are what they say, and commands end as they do by themselves."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.anywhere import WAYS, any_users_python
from tests.support.processes import run

ROOT = Path(__file__).parents[2]
SHOWS = """
import json, os, re, signal, sys
status = dict(re.findall(r"Sig(Blk|Ign):\\s*(\\w+)", open("/proc/self/status").read()))
has = lambda kind, it: bool(int(status[kind], 16) >> it - 1 & 1)
print(json.dumps({
    "ignored": [it.name for it in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP) if has("Ign", it)],
    "blocked": has("Blk", signal.SIGALRM), "home": os.environ.get("HOME"), "umask": os.umask(0), "user": os.getuid(),
    "language": os.environ.get("LC_ALL"), "leads": os.getsid(0) == os.getpid(),
    "options": os.environ.get("PYTEST_ADDOPTS"),
}))
sys.exit(7)
"""
USER = os.getuid()
SHOWN: dict[str, dict[str, object]] = {
    "background": {"ignored": ["SIGINT", "SIGQUIT"]},
    "nohup": {"ignored": ["SIGHUP"]},
    "no-terminal": {"leads": True},
    "no-home": {"home": None},
    "no-language": {"language": "C"},
    "closed-umask": {"umask": 0o077},
    "nobody": {"user": 65534, "home": "/nonexistent"},
    "no-name": {"user": 54321, "home": "/"},
    "in-order": {"options": "-p no:randomly"},
    "signals-blocked": {"blocked": True},
}


def shown(ways: str) -> dict[str, object]:
    line = [sys.executable, "-m", "tests.support.anywhere", ways, str(any_users_python()), "-c", SHOWS]
    done = run(line, check=False, cwd=ROOT, capture_output=True)
    assert done.returncode == 7, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("way", SHOWN)
def test_a_way_is_what_it_says(way: str) -> None:
    if way in ("nobody", "no-name") and USER != 0:
        pytest.skip("takes root, to be another user")
    assert SHOWN[way].items() <= shown(way).items()


def test_ways_go_together() -> None:
    both = shown("background,signals-blocked,no-home,closed-umask")
    assert both["ignored"] == ["SIGINT", "SIGQUIT"]
    assert (both["blocked"], both["home"], both["umask"]) == (True, None, 0o077)


def test_each_way_is_tried() -> None:
    assert WAYS.keys() - SHOWN.keys() == {"copy", "busy"}  # these take long
