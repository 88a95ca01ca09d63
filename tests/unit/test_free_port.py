"""Ports for a fleet's processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from deploy.flower import processes
from deploy.flower.processes import free_port


def outgoing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: int) -> None:
    path = tmp_path / "range"
    path.write_text(f"{first}\t60999\n", encoding="ascii")
    monkeypatch.setattr(processes, "_PORT_RANGE", path)


def test_no_outgoing_connection_can_take_a_free_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With 20 SuperNodes, one's connection held the port that another was given."""
    outgoing(monkeypatch, tmp_path, 20_100)
    ports = {free_port() for _ in range(50)}
    assert len(ports) == 50  # none twice, though nothing listens on them yet
    assert all(20_000 <= port < 20_100 for port in ports)


def test_a_port_on_which_something_listens_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outgoing(monkeypatch, tmp_path, 20_002)
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        assert {free_port() for _ in range(4)} == {20_000, 20_001} - {port}


@pytest.mark.parametrize("first", [1024, 20_000])
def test_where_every_port_is_for_connections_the_system_chooses(
    first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outgoing(monkeypatch, tmp_path, first)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_a_system_that_does_not_tell_its_range_has_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "_PORT_RANGE", tmp_path / "none")
    assert 20_000 <= free_port() < 49_152
