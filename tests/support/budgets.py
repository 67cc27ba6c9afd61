"""How many examples hypothesis tries: a share of a test's own budget in each lane, the larger one in the full lane."""

from hypothesis import settings

FULL, QUICK = "full", "quick"  # profiles; `--hypothesis-profile full` chooses, else it is the quick one
FEWEST = 5  # of a quick test with a budget above it
FULL_EXAMPLES, QUICK_EXAMPLES = 50, 25  # of a test that names no budget of its own, and % of one that does


def register_profiles() -> None:
    """Make both profiles known, and the quick one the default."""
    # A first call compiles kernels: a deadline would report a false failure.
    settings.register_profile(FULL, deadline=None, max_examples=FULL_EXAMPLES)
    settings.register_profile(QUICK, deadline=None, max_examples=QUICK_EXAMPLES)
    settings.load_profile(QUICK)


def examples(budget: int) -> int:
    """Return how many examples a test with a budget tries under the profile that is loaded."""
    return min(budget, max(FEWEST, round(budget * settings().max_examples / 100)))
