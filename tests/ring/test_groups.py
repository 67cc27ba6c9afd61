"""What becomes of the descriptors of a group that was given up."""

import os
import select
import socket
from pathlib import Path

from longshore.ring.groups import use_edge_triggers


def test_a_process_that_polls_sockets_receives_each_event_once_and_keeps_its_data() -> None:
    ours, theirs = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    reads, writes = os.pipe()
    with ours, theirs, listener, select.epoll() as waiting:
        for it in (theirs, listener, reads):
            waiting.register(it, select.EPOLLIN)
        ours.send(b"never read")
        os.write(writes, b"x")
        both = sorted([(theirs.fileno(), select.EPOLLIN), (reads, select.EPOLLIN)])
        assert [sorted(waiting.poll(0)) for _ in range(3)] == [both] * 3  # again and again

        for _ in range(2):
            use_edge_triggers(waiting.fileno())
        waiting.poll(0)
        assert waiting.poll(0) == [(reads, select.EPOLLIN)]  # a pipe is what wakes the thread to its end
        ours.send(b"more")
        assert (theirs.fileno(), select.EPOLLIN) in waiting.poll(10)
        with socket.create_connection(listener.getsockname()):
            assert (listener.fileno(), select.EPOLLIN) in waiting.poll(10)
        waiting.unregister(theirs)  # as its owner may
    os.close(reads)
    os.close(writes)


def test_a_descriptor_that_is_closed_or_waits_for_nothing_is_left_alone() -> None:
    waiting = select.epoll()
    number = waiting.fileno()
    use_edge_triggers(number)
    waiting.close()
    use_edge_triggers(number)
    assert not Path(f"/proc/self/fdinfo/{number}").exists()
