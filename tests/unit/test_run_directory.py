"""The run's directory: new ones are new, resumed ones are the same, nobody shares one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server_app.records.run_directory import RunDirectory, write_atomically
from strategies.base.files import NotWrittenError
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.run_config import RunConfig
from tests.unit.test_roster import a_client_info


def config(directory: Path, **values: Any) -> RunConfig:
    keys = {k.replace("__", ".").replace("_", "-"): v for k, v in values.items()}
    return parse_run_config({"output-dir": str(directory), **keys})


def made(directory: Path, **values: Any) -> RunDirectory:
    opened = RunDirectory.open(config(directory, **{"run_name": "a", **values}))
    opened.release()
    return opened


def refused(run: RunConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        RunDirectory.open(run)
    return str(caught.value)


def test_a_new_run_writes_its_configuration(tmp_path: Path) -> None:
    opened = made(tmp_path, seed=3, alpha=0.5)
    assert opened.path == tmp_path / "a"
    assert opened.name == "a"
    assert not opened.resumed
    written = json.loads((tmp_path / "a" / "config.json").read_text())
    assert written == opened.info
    assert written["status"] == "running"
    assert (written["seed"], written["config"]["alpha"]) == (3, 0.5)
    assert written["config"]["run-name"] == "a"
    assert {"flwr", "torch", "python"} <= set(written["versions"])


def test_runs_without_a_name_get_different_ones(tmp_path: Path) -> None:
    first, second = made(tmp_path, run_name=""), made(tmp_path, run_name="")
    assert first.path != second.path
    assert first.name.startswith("fedre-digits-")
    assert first.info["token"] != second.info["token"]


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    """U22."""
    made(tmp_path)
    before = (tmp_path / "a" / "config.json").read_bytes()
    text = refused(config(tmp_path, run_name="a"))
    assert text.startswith("run-name = 'a': ")
    assert "resume='a'" in text
    assert (tmp_path / "a" / "config.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    assert "exists" in refused(config(tmp_path, run_name="mine"))


def test_an_unknown_run_is_named(tmp_path: Path) -> None:
    text = refused(config(tmp_path, resume="b"))
    assert text == f"resume = 'b': there is no run in {tmp_path / 'b'}"
    assert not (tmp_path / "b").exists()


def test_resume_with_other_settings_lists_every_difference(tmp_path: Path) -> None:
    """U22."""
    made(tmp_path)
    before = (tmp_path / "a" / "config.json").read_bytes()
    text = refused(config(tmp_path, resume="a", alpha=0.5, seed=1))
    assert text.startswith("resume = 'a': settings differ from the run's; ")
    assert "alpha: was 0.1, now 0.5; seed: was 0, now 1" in text
    text = refused(config(tmp_path, resume="a", method="local"))
    assert "method: was 'fedre', now 'local'" in text
    assert "fedre.mechanism: was 'RAP', now None" in text
    text = refused(config(tmp_path, resume="a", fedre__mechanism="VAP"))
    assert text.endswith("; fedre.mechanism: was 'RAP', now 'VAP'")
    assert (tmp_path / "a" / "config.json").read_bytes() == before


def test_a_run_older_than_a_key_had_its_default(tmp_path: Path) -> None:
    made(tmp_path)
    path = tmp_path / "a" / "config.json"
    info = json.loads(path.read_text())
    del info["config"]["size-sigma"]
    path.write_text(json.dumps(info))
    text = refused(config(tmp_path, resume="a", size_sigma=0.5))
    assert "size-sigma: was 0.0, now 0.5" in text
    RunDirectory.open(config(tmp_path, resume="a")).release()


def test_a_refused_resume_does_not_keep_the_lock(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(ConfigError, match="settings differ") as caught:
        RunDirectory.open(config(tmp_path, resume="a", alpha=0.5))
    RunDirectory.open(config(tmp_path, resume="a")).release()
    assert caught.value  # alive until here, and with it all that its traceback refers to


def test_resume_may_change_what_changes_no_finished_round(tmp_path: Path) -> None:
    first = made(tmp_path)
    opened = RunDirectory.open(
        config(
            tmp_path, resume="a", num_rounds=99, keep_checkpoints=5, wait_timeout=1,
            on_client_error="stop", min_clients=1, round_timeout=5, device="cpu",
        )
    )  # fmt: skip
    opened.release()
    assert opened.resumed
    assert opened.info["config"]["num-rounds"] == 99
    assert opened.info["config"]["run-name"] == "a"
    assert opened.info["config"]["resume"] == ""
    assert opened.info["token"] == first.info["token"]
    # And once more, against what the second start wrote.
    RunDirectory.open(config(tmp_path, resume="a", num_rounds=5)).release()


def test_a_run_in_use_is_refused(tmp_path: Path) -> None:
    opened = RunDirectory.open(config(tmp_path, run_name="a"))
    assert "another process is using this run" in refused(config(tmp_path, resume="a"))
    opened.release()
    RunDirectory.open(config(tmp_path, resume="a")).release()


def test_the_lock_holds_between_processes_and_ends_with_one(tmp_path: Path) -> None:
    made(tmp_path)
    code = (
        "import sys, os\nfrom filelock import FileLock\n"
        f"lock = FileLock({str(tmp_path / 'a' / 'run.lock')!r}); lock.acquire()\n"
        "print('held', flush=True); sys.stdin.read(); os._exit(1)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert "another process" in refused(config(tmp_path, resume="a"))
        process.communicate("")
    RunDirectory.open(config(tmp_path, resume="a")).release()


def test_a_reason_does_not_outlive_the_failure(tmp_path: Path) -> None:
    opened = made(tmp_path)
    opened.set_status("failed", reason="RunError: x")
    assert json.loads((tmp_path / "a" / "config.json").read_text())["reason"] == "RunError: x"
    again = RunDirectory.open(config(tmp_path, resume="a"))
    again.release()
    assert "reason" not in again.info
    again.set_status("completed")
    written = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (written["status"], written.get("reason")) == ("completed", None)


def test_files_are_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    write_atomically(path, "old")
    real = Path.replace

    def fail(self: Path, target: Path) -> Path:
        assert self.read_text() == "new"
        assert path.read_text() == "old"
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(NotWrittenError, match=r"config.json: cannot be written.*\(no space\)"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["config.json"]
    monkeypatch.setattr(Path, "replace", real)
    write_atomically(path, "newer")
    assert path.read_text() == "newer"


def test_cards_are_written_and_compared_on_resume(tmp_path: Path) -> None:
    opened = made(tmp_path)
    opened.write_clients({1: a_client_info(1), 0: a_client_info(0)})
    lines = (tmp_path / "a" / "clients.csv").read_text().splitlines()
    assert lines[0].startswith("client,model,parameters,")
    assert lines[1].startswith("0,cnn5,10,500,512,10,1,32,aa,0 2,4 1,5,0,2,cpu,x")
    assert len(lines) == 3
    again = RunDirectory.open(config(tmp_path, resume="a"))
    again.release()
    again.write_clients(
        {2: a_client_info(2), 0: a_client_info(0)}
    )  # who is new or away is no contradiction
    lines = (tmp_path / "a" / "clients.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["client", "0", "1", "2"]
    assert lines[2].replace("1", "0", 1).startswith("0,cnn5,10,500,512,10,1,32,aa,0 2,4 1,5,0,2")
    for changed, text in (
        ({"model": "cnn1"}, "client 0: model was cnn5 when it joined and is cnn1 now"),
        ({"data_hash": "y"}, "client 0: data_hash was x when it joined and is y now"),
    ):
        assert text in str(again.refuse(a_client_info(0, **changed)))
    assert again.refuse(a_client_info(0)) is None
    assert again.refuse(a_client_info(7)) is None


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_name_whose_run_never_began_is_free(tmp_path: Path, status: str) -> None:
    """A run that ended at its registration has left nothing; a run with rounds is kept."""
    failed = made(tmp_path)
    failed.set_status(status, reason="no data")
    failed.release()
    again = made(tmp_path)
    again.set_status(status, reason="later")
    (tmp_path / "a" / "rounds.csv").write_text("round\r\n")
    again.release()
    with pytest.raises(ConfigError, match="exists"):
        made(tmp_path)


def test_damaged_configuration_is_named(tmp_path: Path) -> None:
    made(tmp_path).release()
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config.json: damaged"):
        RunDirectory.open(config(tmp_path, resume="a"))


def test_no_partial_files_are_left(tmp_path: Path) -> None:
    made(tmp_path).write_clients({0: a_client_info(0)})
    assert sorted(os.listdir(tmp_path / "a")) == ["clients.csv", "config.json", "run.lock"]


@pytest.mark.parametrize(
    ("method", "key", "began"),
    [("cofed", "cofed.exchange-round", 2), ("fedkd", "fedkd.energy-rounds", 3)],
)
def test_what_follows_from_the_number_of_rounds_stays(
    method: str, key: str, began: int, tmp_path: Path
) -> None:
    """Of 3 rounds; with 8, CoFED would exchange again in round 4, FedKD change its schedule."""
    made(tmp_path, method=method, num_rounds=3)
    longer = {"method": method, "num_rounds": 8, "resume": "a"}
    text = refused(config(tmp_path, **longer))
    assert f"{key}: was {began}, now " in text
    assert f"go on with {key}={began}" in text
    told = {key.replace(".", "__").replace("-", "_"): began}
    RunDirectory.open(config(tmp_path, **longer, **told)).release()
    RunDirectory.open(config(tmp_path, method=method, num_rounds=3, resume="a")).release()


def test_a_constant_schedule_does_not_follow_the_number_of_rounds(tmp_path: Path) -> None:
    same = {"method": "fedkd", "fedkd__energy_end": 0.95}
    made(tmp_path, num_rounds=3, **same)
    RunDirectory.open(config(tmp_path, num_rounds=8, resume="a", **same)).release()
