"""Ports for programs that are about to listen."""

import socket
from pathlib import Path

import pytest

from longshore.cluster.files import processes as module
from longshore.cluster.files.processes import free_port


def given() -> range:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    return range(first, last + 1)


def test_it_is_free_and_whoever_connects_meanwhile_does_not_get_it() -> None:
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) > 150  # two who ask at once hardly get the same
    assert not set(ports) & set(given())
    for port in ports:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", port))


@pytest.mark.parametrize("text", ["1024 65535\n", "1024\t65000", "", "none", None])
def test_one_is_found_whatever_the_system_gives(
    text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "range"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(module, "_GIVEN", path)
    with socket.socket() as listening:
        listening.bind(("", free_port("")))


def test_one_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", free_port()))
        taken = listening.getsockname()[1]
        monkeypatch.setattr(module, "_PORTS", [taken])
        assert free_port() != taken
