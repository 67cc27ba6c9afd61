"""How many examples hypothesis tries: those of a test's full budget, or a share of them in the quick lane."""

from hypothesis import settings

FULL, QUICK = "full", "quick"  # profiles; `--hypothesis-profile full` chooses, else it is the quick one
FEWEST = 5  # of a quick test with a budget above it
FULL_EXAMPLES, QUICK_EXAMPLES = 100, 25  # of a test that names no budget of its own


def register_profiles() -> None:
    """Make both profiles known, and the quick one the default."""
    # A first call compiles kernels: a deadline would report a false failure.
    settings.register_profile(FULL, deadline=None, max_examples=FULL_EXAMPLES)
    settings.register_profile(QUICK, deadline=None, max_examples=QUICK_EXAMPLES)
    settings.load_profile(QUICK)


def examples(full: int) -> int:
    """Return how many examples a test with a full budget tries under the profile that is loaded."""
    share = settings().max_examples / FULL_EXAMPLES
    return min(full, max(FEWEST, round(full * share)))
