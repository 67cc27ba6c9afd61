"""`python -m longshore.ring`: a ring on this machine, without a scheduler."""

# A signal that comes while the rest is imported ends this process without a traceback.
from .wishes import end_at_once_if_asked

end_at_once_if_asked()

from ..cluster.files.paths import end_if_gone  # noqa: E402

end_if_gone("longshore.ring")

from .command import main  # noqa: E402

raise SystemExit(main())
