"""Times and amounts as people read them."""

from datetime import UTC, datetime

from markupsafe import Markup

from ..model.placement import Placement

_UNITS = (  # seconds and name of the first unit, of the second, its digits, and most of the first
    (60, "min", 1, "s", 2, 60),
    (3600, "h", 60, "min", 2, 24),
    (86_400, "d", 3600, "h", 1, 1 << 40),
)


def duration_text(seconds: float | None, *, exact: bool = True) -> str:
    """Return a duration in its two largest units, such as "4 min 12 s"; "" for none.

    Args:
        seconds: The duration.
        exact: Whether a second unit of 0 is written.
    """
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    size, large, part, small, digits = next(it for it in _UNITS if whole < it[0] * it[5])[:5]
    rest = whole % size // part
    return f"{whole // size} {large}" + (f" {rest:0{digits}d} {small}" if exact or rest else "")


def milliseconds_text(seconds: float) -> str:
    """Return a short time, such as "0.42 ms" or "87 ms"."""
    ms = 1000.0 * seconds
    return f"{ms:.2f} ms" if ms < 1.0 else f"{ms:.1f} ms" if ms < 10.0 else f"{ms:,.0f} ms"


def time_of(at_s: float) -> datetime:
    """Return a moment in UTC."""
    return datetime.fromtimestamp(at_s, UTC)


def moment(at_s: float | None) -> Markup:
    """Return a moment as an element that a script may show in the reader's own time zone; a dash for none."""
    if at_s is None:
        return Markup("&ndash;")
    at = time_of(at_s)
    said, exact = at.strftime("%d %b %H:%M:%S"), at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Markup('<time class="moment" datetime="{0}" title="{0}">{1}</time>').format(exact, said)


def elapsed(since_s: float, now_s: float) -> Markup:
    """Return the time since a moment as an element that a script keeps up to date."""
    return Markup('<span class="elapsed" data-since="{:.3f}">{}</span>').format(since_s, duration_text(now_s - since_s))


def sentence(text: str) -> str:
    """Return words as a sentence."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"


def indices_text(indices: tuple[int, ...]) -> str:
    """Return indices with runs of neighbours drawn together, such as "0-3, 6"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ", ".join("-".join(map(str, run)) for run in runs)


def placement_text(placement: Placement | None) -> str:
    """Return GPUs by node, such as "rack0-node1: 0-3"; "wait" for none."""
    if placement is None:
        return "wait"
    return "; ".join(f"{share.node}: {indices_text(share.gpus)}" for share in placement)
