"""By how much counters have risen since one last looked."""

from collections.abc import Mapping


class Counters:
    """Remembers counters. One that falls was reset, by a new driver or a new boot: it counts from there on."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], int] = {}

    def look(self, device: str, values: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return what each counter was and is, and remember it; one that is seen first, or fell, has not risen.

        Args:
            device: Whose they are.
            values: By name.
        """
        found = {}
        for name, now in values.items():
            found[name] = (min(self._before.get((device, name), now), now), now)
            self._before[device, name] = now
        return found
