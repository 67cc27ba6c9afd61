"""What runs next when a process of tests dies."""

from typing import Any

from xdist.scheduler import LoadFileScheduling


class GoesOn(LoadFileScheduling):  # type: ignore[misc]  # it is not typed
    """Goes on when a process of tests dies: pytest-xdist 3.8 runs the test again that it died of, or waits for ever."""

    def remove_node(self, node: Any) -> str | None:
        """Let other processes run what is left of a process that ended, apart from the test that it ran."""
        left = self.assigned_work.pop(node)
        pending = [nodeid for unit in left.values() for nodeid, is_done in unit.items() if not is_done]
        for scope, unit in left.items():
            rest = {nodeid: False for nodeid, is_done in unit.items() if not is_done and nodeid != pending[0]}
            if rest:
                self.workqueue[scope] = rest
        for other in self.nodes:
            self._reschedule(other)
        return pending[0] if pending else None

    def _reschedule(self, node: Any) -> None:
        """Give a process work until it begins: it runs a test once it knows the next, or that there is none."""
        # One that is new collects the tests first.
        while node in self.registered_collections and not node.shutting_down:
            before = len(self.workqueue)
            super()._reschedule(node)
            if before == len(self.workqueue):
                break
