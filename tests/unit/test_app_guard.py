"""A device refuses an app that is not on its owner's list, before any of it runs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as supernode
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from deploy.fleet.app_guard import PULL, VERIFY, allowed_apps, app_hash, guard, main
from deploy.fleet.description import Device
from strategies.base.options import ConfigError

CONTENT = b"an app"
HASH = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A guarded SuperNode's list."""
    for name in (PULL, VERIFY):  # put back afterwards
        monkeypatch.setattr(supernode, name, getattr(supernode, name))
    file = tmp_path / "apps"
    file.write_text(f"{HASH.upper()}  # version 1\n\n")
    guard(file)
    return file


class Accepted(Exception):  # noqa: N818 - no error
    """The app was accepted: Flower goes on to read it."""


def first_message(
    monkeypatch: pytest.MonkeyPatch,
    content: bytes = CONTENT,
    claimed: str = "",
    trusted: dict[str, str] | None = None,
) -> str:
    """Let Flower's SuperNode take in a run's first message; return what it answers the server."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    message = Message(RecordDict(), dst_node_id=2, message_type="train")
    message.metadata.__dict__["_message_id"] = "m"
    fab = Fab(claimed or hashlib.sha256(content).hexdigest(), content, {})
    answers: list[Message] = []

    def accept(*arguments: Any) -> Any:
        raise Accepted

    monkeypatch.setattr(supernode, "get_fused_config_from_fab", accept)
    monkeypatch.setattr(supernode, "_insert_message", lambda reply, *_: answers.append(reply))
    unused: Any = SimpleNamespace(get_run=lambda run_id: None)
    try:
        getattr(supernode, PULL)(
            state=unused, object_store=unused, node_config={},
            receive=lambda: (message, None), get_run=lambda run_id: SimpleNamespace(fab_hash="f"),
            get_fab=lambda hash_str, run_id: fab, pull_object=accept,
            confirm_message_received=accept, trusted_entities=trusted,
        )  # fmt: skip
    except Accepted:
        return "accepted"
    return str(answers[0].error.reason)


def test_an_app_that_is_listed_runs(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_message(monkeypatch) == "accepted"


def test_any_other_app_is_refused(
    listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = "The FAB could not be verified."
    assert first_message(monkeypatch, b"another app") == refused
    assert f"refused app {hashlib.sha256(b'another app').hexdigest()}" in capsys.readouterr().err
    assert first_message(monkeypatch, b"another app", claimed=HASH) == refused
    assert first_message(monkeypatch, claimed="0" * 64) == refused
    listed.write_text("")  # its owner changed their mind
    assert first_message(monkeypatch) == refused
    listed.unlink()
    assert first_message(monkeypatch) == refused
    assert "no app is run: allowed-apps = " in capsys.readouterr().err


def test_both_lists_have_to_agree(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed, but not signed by whom the device trusts."""
    trusted = {"fpk_1": "ssh-ed25519 AAAA"}
    assert first_message(monkeypatch, trusted=trusted) == "The FAB could not be verified."


def test_a_list_is_checked_before_the_supernode_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "apps"
    for text in ("abc\n", HASH + "0\n"):
        file.write_text("# apps\n" + text)
        with pytest.raises(ConfigError, match=r"line 2: '.*' is not the SHA-256 of an app"):
            allowed_apps(file)
        assert main(["--allowed-apps", str(file), "--insecure"]) == 2
    assert main(["--allowed-apps", str(tmp_path / "none"), "--insecure"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["--insecure"]) == 2


def test_a_changed_file_is_another_app(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1.0.0"\nlicense = "MIT"\ndescription = "x"\n'
        '[tool.flwr.app]\npublisher = "me"\n[tool.flwr.app.components]\nserverapp = "a:app"\n'
        'clientapp = "a:app"\n'
    )
    (tmp_path / "a.py").write_text("app = 1\n")
    before = app_hash(tmp_path)
    assert main(["--hash", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip().endswith(before)
    (tmp_path / "a.py").write_text("app = 2\n")
    assert app_hash(tmp_path) != before


def test_flower_takes_what_a_device_is_started_with() -> None:
    plain = Device(client_id=0)
    assert plain.supernode == ["flower-supernode"]
    device = Device(client_id=0, allowed_apps="/etc/apps", trusted_entities="/etc/keys.yaml")
    program, option, file, *rest = device.supernode
    assert (program, option, file) == ("wildflower-supernode", "--allowed-apps", "/etc/apps")
    options = _parse_args_run_supernode().parse_args(rest)
    assert str(options.trusted_entities) == "/etc/keys.yaml"
