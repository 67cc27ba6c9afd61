"""A lease may be taken from an owner that is proven gone, and from no other."""

import os
import sys

from longshore.cluster.files.processes import is_proven_dead, this_process_name
from tests.support import processes

NAMED = "from longshore.cluster.files.processes import this_process_name; print(this_process_name())"


def test_a_process_that_lives_is_not_dead() -> None:
    assert not is_proven_dead(this_process_name())


def test_a_process_that_has_ended_is_dead() -> None:
    done = processes.run([sys.executable, "-c", NAMED], capture_output=True, check=True)
    assert is_proven_dead(done.stdout.strip())


def test_a_pid_that_was_given_to_another_process_does_not_stand_for_the_first() -> None:
    named = this_process_name().split()
    named[2] = str(int(named[2]) - 1)
    assert is_proven_dead(" ".join(named))


def test_nothing_is_proven_of_another_machine_or_container_or_of_a_name_that_is_none() -> None:
    here = this_process_name().replace(str(os.getpid()), "1", 1)
    boot, space = here.split()[4], here.split()[6]
    assert not is_proven_dead(here.replace(boot, "another"))
    assert not is_proven_dead(here.replace(space, "pid:[1]"))
    assert not is_proven_dead("twin")
    assert not is_proven_dead("")
