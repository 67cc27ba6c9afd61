"""Checks that travel with a job: `python -m longshore.preflight -- python train.py` (docs/preflight.md)."""

from ..cluster.files.paths import end_if_folder_gone

end_if_folder_gone("longshore.preflight")

from .travelling import main  # noqa: E402

main()
