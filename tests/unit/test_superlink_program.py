"""The fleet's SuperLink waits for its database."""

from __future__ import annotations

import ast
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.supercore import sql_mixin
from flwr.supercore.object_store import ObjectStore
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from sqlalchemy.exc import OperationalError

from deploy.fleet import superlink_program
from deploy.fleet.superlink_program import WAIT_SECONDS, main, wait_for_database

HELD_SECONDS = 0.4


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's settings, which are given back."""
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)


def store(directory: Path) -> ObjectStore:
    made = SqlObjectStore(str(directory / "superlink.db"))
    made.initialize()
    return made


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A database that somebody else writes for a while."""
    store(tmp_path)
    other = sqlite3.connect(tmp_path / "superlink.db", check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(HELD_SECONDS, other.rollback)
    release.start()
    yield tmp_path
    release.join()
    other.close()


def test_who_waits_too_briefly_fails_and_who_waits_longer_is_served(held: Path) -> None:
    wait_for_database(HELD_SECONDS / 8)
    with pytest.raises(OperationalError, match="database is locked"):
        store(held).clear()
    wait_for_database(30 * HELD_SECONDS)
    store(held).clear()


def test_the_program_is_flowers_own_with_a_longer_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def instead() -> None:
        with store(tmp_path)._engine.connect() as connection:  # type: ignore[attr-defined]
            found.append(connection.exec_driver_sql("PRAGMA busy_timeout").scalar())
        found.append(sys.argv)

    found: list[object] = []
    monkeypatch.setattr("flwr.superlink.cli.flower_superlink", instead)
    monkeypatch.setattr(sys, "argv", ["/bin/wildflower-superlink", "--port", "8000"])
    assert main() == 0
    assert found == [1000 * WAIT_SECONDS, ["wildflower-superlink", "--port", "8000"]]


def test_another_version_of_flower_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", (("journal_mode", "WAL"),))
    assert main() == 2
    assert "flwr.supercore.sql_mixin.SQLITE_PRAGMAS has no busy_timeout" in capsys.readouterr().err


def test_it_needs_flower_alone() -> None:
    """Flower's image, which has nothing of this repository, runs it."""
    tree = ast.parse(Path(superlink_program.__file__).read_text(encoding="utf-8"))
    froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
    assert froms == {"__future__", "flwr.superlink.cli"}
    assert names == {"importlib", "sys"}
