"""What every network must do, ours and those of plug-ins."""

from pathlib import Path

import pytest

from longshore.cluster.files.errors import PluginError
from longshore.cluster.files.plugins import registered
from longshore.testing import check_network
from tests.their_network import NETWORK, install_network

BROKEN = {
    "has logits of another shape": (("return logits, ", "return logits[:, :2], "), "logits have shape"),
    "has values of another shape": (("(decision).squeeze(-1)", "(decision)"), "values have shape"),
    "tells what is not finite": (("return logits, ", "return logits / 0.0, "), "not finite"),
    "knows another batch": (("return logits, ", "return logits + observation.mean(), "), "depend on the other"),
    "remembers": (
        ("decision = ", "self.asked = getattr(self, 'asked', 0) + 1\n        decision = self.asked * "),
        "second call gives another output",
    ),
    "has whole numbers for weights": (
        ("self.wait = ", "self.register_buffer('seen', torch.zeros(1, dtype=torch.long))\n        self.wait = "),
        "weight seen is of torch.int64",
    ),
    "says that it serves any size": (
        ("self.wait = ", "self.each = nn.Linear(layout.items, 1)\n        self.wait = "), "`any_size` is True",
    ),
    "has a width that it does not tell": (
        ("    def __init__", "    sized_by = 'nothing'\n\n    def __init__"), "no weight nothing",
    ),
    "has actions that are unknown": (("    def __init__", "    actions = ('rack',)\n\n    def __init__"), "rack"),
    "has no actions": (("    def __init__", "    actions = ()\n\n    def __init__"), "can choose no action"),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", registered("networks"))
def test_a_network_does_its_part(name: str) -> None:
    check_network(name)


def test_a_plug_ins_network_does_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_network(tmp_path / "theirs", monkeypatch)
    check_network("theirs")


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_network_gets_the_reason(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old, new), reported = BROKEN[fault]
    assert old in NETWORK
    install_network(tmp_path / "theirs", monkeypatch, NETWORK.replace(old, new))
    with pytest.raises(AssertionError, match=reported):
        check_network("theirs")


def test_what_is_no_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_network(tmp_path / "theirs", monkeypatch, name="nn")
    with pytest.raises(PluginError, match=r"network 'theirs' \(their_network:nn\) is no subclass of longshore"):
        check_network("theirs")
