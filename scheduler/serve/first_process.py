"""What the first process of a container has to do beside its own work: take in orphans, and let none of them stay.

Supervisors of attempts outlive the scheduler, so their parent is the first process of the PID namespace. Where that is
the scheduler itself, it goes on in a child, whose own children's ends nobody else waits for.

Source: SPEC K6.
"""

import os
import signal
from collections.abc import Set

_FROM_KERNEL = 0x80  # SI_KERNEL: of a terminal, which has sent it to the child, too
_OWN = {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP, signal.SIGKILL, signal.SIGSTOP}


def leave_first_place() -> None:
    """Go on in a child if this process is the first of its PID namespace; it passes on signals, and ends as that does.

    Call it before there is any thread.

    Raises:
        OSError: If there can be no further process.
    """
    if os.getpid() != 1:
        return
    signals = signal.valid_signals() - _OWN
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*signals, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    status = 1
    try:
        status = _watch(child, signals)
    finally:
        os._exit(status)  # What this process has loaded is the child's to end.


def _watch(child: int, signals: Set[int]) -> int:
    """Pass signals on and reap whatever ends, until the child has ended; return its status, as a shell has it."""
    while True:
        came = signal.sigwaitinfo({*signals, signal.SIGCHLD})
        if came.si_signo != signal.SIGCHLD:
            if came.si_code != _FROM_KERNEL:
                os.kill(child, came.si_signo)
            continue
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
