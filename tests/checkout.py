"""Files of the checkout that tests read."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DATA = ROOT / ".." / "shared" / "data"
HETERO64, SMALL = ROOT / "examples" / "hetero64.yaml", ROOT / "examples" / "small.yaml"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real traces in ../shared/data are absent")
