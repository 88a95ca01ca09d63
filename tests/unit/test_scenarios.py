"""What users of other libraries reported, tried on whole runs of this one."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context, Error, Message

from client_app.app import make_client_app
from client_app.handlers import FLOPS
from client_app.state_store import state_directory
from server_app.rounds.exchange import RunError
from server_app.rounds.in_process import InProcessGrid
from strategies.base.messages import CONTROL
from strategies.base.method import get_method
from strategies.base.options import ConfigError
from strategies.base.payload import ARRAYS, MANIFEST
from strategies.base.server import RegistrationError
from tests.support import Outcome, run_federation


def saved_tensors(run: Outcome, client: int, server_round: int) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    path = state_directory(run.path / "clients", client) / f"round-{server_round:05d}.safetensors"
    return load_file(path)


class Tampered(InProcessGrid):
    """A Grid on which chosen replies are changed on their way, or chosen messages raise."""

    rounds: tuple[int, ...] = (2,)
    clients: tuple[int, ...] = (1,)

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        client = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        number = int(message.metadata.group_id or 0)
        chosen = client in self.clients and number in self.rounds
        if chosen and message.metadata.message_type == "train" and reply.has_content():
            self.change(reply)
        return reply

    def change(self, reply: Message) -> None:
        raise NotImplementedError


class WithNaN(Tampered):
    def change(self, reply: Message) -> None:
        array = reply.content.array_records[ARRAYS]["float32"]
        values = array.numpy().copy()
        values[3] = np.nan
        array.data = type(array)(values).data


def test_assignment_is_written_down_and_shown_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U03: by cycle and by client id; U04: the saved states really differ in names and sizes."""
    cycled = run_federation(tmp_path / "a", 4, models="cnn1, cnn2, resnet10-w4", num_rounds=1)
    assert [r["model"] for r in cycled.rows("clients")] == ["cnn1", "cnn2", "resnet10-w4", "cnn1"]
    printed = capsys.readouterr().out
    assert printed.index("resnet10-w4") < printed.index("round 1/1")
    mapped = run_federation(tmp_path / "b", 3, models="1=cnn4, *=cnn5", num_rounds=1)
    assert [r["model"] for r in mapped.rows("clients")] == ["cnn5", "cnn4", "cnn5"]
    first, third = saved_tensors(cycled, 0, 1), saved_tensors(cycled, 2, 1)
    assert set(first) != set(third)
    assert {r["parameters"] for r in cycled.rows("clients")[:2]} != {""}
    assert cycled.rows("clients")[0]["parameters"] != cycled.rows("clients")[1]["parameters"]


def test_only_the_declared_payload_leaves_a_client(tmp_path: Path) -> None:
    """U02, U05: the uplink's records are the declared keys and nothing else."""
    seen: list[Message] = []

    class Tapped(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            if message.metadata.message_type == "train":
                seen.append(reply)
            return reply

    run_federation(tmp_path, 3, grid_class=Tapped)
    assert len(seen) == 6
    for reply in seen:
        assert set(reply.content) == {ARRAYS, MANIFEST, "info", "metrics"}
        arrays = reply.content.array_records[ARRAYS]
        assert {key: array.shape for key, array in arrays.items()} == {"float32": (512 + 10,)}


def test_server_knows_every_client_before_round_one(tmp_path: Path) -> None:
    """U07: id, architecture, classes with counts and examples are there before training."""
    run = run_federation(tmp_path, 5, partition="pathological", num_rounds=1)
    for row in run.rows("clients"):
        counts = [int(n) for n in row["class_counts"].split()]
        assert len(row["classes"].split()) == len(counts) <= 2
        assert sum(counts) == int(row["train_examples"])


def test_contradicting_data_is_named(tmp_path: Path) -> None:
    """U07: a client whose classes are not the others' stops the run before training."""
    from PIL import Image

    folder = tmp_path / "own"
    for name in ("cat", "dog"):
        (folder / "train" / name).mkdir(parents=True)
        for k in range(4):
            Image.new("L", (32, 32), color=40 * k).save(folder / "train" / name / f"{k}.png")
    nodes = {2: {"client-id": 2, "data-dir": str(folder)}}
    with pytest.raises(RegistrationError, match=r"client 2.*2.*10"):
        run_federation(tmp_path, 3, nodes=nodes)


def test_every_example_is_trained_on(tmp_path: Path) -> None:
    """U14: batches larger than a client's data drop nothing."""
    run = run_federation(tmp_path, 4, batch_size=4096, alpha=0.3, num_rounds=1)
    seen = {r["client"]: float(r["value"]) for r in run.metrics(metric="examples_seen")}
    assert seen == {r["client"]: float(r["train_examples"]) for r in run.rows("clients")}


def test_private_state_survives_from_round_to_round(tmp_path: Path) -> None:
    """U16: with a third of three clients a round, each one's own counter counts its rounds."""
    run = run_federation(tmp_path, 3, method="local", sample_fraction=0.34, num_rounds=6)
    trained: dict[str, int] = {}
    for row in run.metrics(phase="train", metric="loss"):
        trained[row["client"]] = trained.get(row["client"], 0) + 1
    assert sum(trained.values()) == 6
    from strategies.base.state import read_about

    for client, count in trained.items():
        newest = max(state_directory(run.path / "clients", int(client)).iterdir())
        assert read_about(newest)["rounds_trained"] == count


def test_a_client_is_the_same_client_in_every_run(tmp_path: Path) -> None:
    """U17: one data hash per id, also in another run; ids are not Flower's node ids."""
    first, again = (run_federation(tmp_path / n, 3, num_rounds=1) for n in ("a", "b"))
    assert first.text("clients.csv") == again.text("clients.csv")
    assert first.config["split_hash"] == again.config["split_hash"]
    assert {row["client"] for row in first.rows("clients")} == {"0", "1", "2"}


def test_states_are_kept_by_round_and_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U18: four rounds, two kept: rounds 3 and 4 of each client, nothing in the working folder."""
    working = tmp_path / "cwd"
    working.mkdir()
    monkeypatch.chdir(working)
    run = run_federation(tmp_path, 3, num_rounds=4, keep_checkpoints=2)
    expected = ["round-00003.safetensors", "round-00004.safetensors"]
    for client in range(3):
        files = {p.name for p in state_directory(run.path / "clients", client).iterdir()}
        # A client that is a process of its own also keeps what a step costs.
        assert sorted(files - {FLOPS}) == expected
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == expected
    assert list(working.iterdir()) == []


def test_truncated_newest_checkpoint_falls_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U23: the run goes on from the round before, says so, and ends with the same numbers."""
    whole = run_federation(tmp_path / "a", 3, num_rounds=4)
    run_federation(tmp_path / "b", 3, num_rounds=3)
    newest = tmp_path / "b" / "run" / "checkpoints" / "round-00003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    resumed = run_federation(tmp_path / "b", 3, num_rounds=4, resume="run")
    printed = capsys.readouterr().out
    assert "round-00003.safetensors" in printed
    assert "resuming after round 2" in printed
    assert resumed.text("metrics.csv") == whole.text("metrics.csv")


def test_used_directory_and_changed_settings_are_refused(tmp_path: Path) -> None:
    """U22: nothing stale is picked up unasked; a resume lists every differing key."""
    run_federation(tmp_path, 3, num_rounds=1)
    with pytest.raises(ConfigError, match="exists"):
        run_federation(tmp_path, 3, num_rounds=1)
    with pytest.raises(ConfigError, match=r"alpha.*method") as caught:
        run_federation(tmp_path, 3, method="local", alpha=0.7, resume="run")
    assert "'fedre'" in str(caught.value)
    with pytest.raises(ConfigError, match=r"partition-seed|client"):
        run_federation(tmp_path, 4, num_rounds=1, partition_seed=1, resume="run")


def test_best_round_is_chosen_on_validation(tmp_path: Path) -> None:
    """U24: the summary names round, rule and split; the test split chooses nothing."""
    accuracy = run_federation(tmp_path, 3, num_rounds=4).summary["accuracy"]
    assert accuracy["best_by"] == "validation"
    run = Outcome(tmp_path / "run")
    means: dict[tuple[int, str], float] = {}
    for key in {(int(r["round"]), r["phase"]) for r in run.metrics(metric="validation_accuracy")}:
        rows = run.metrics(metric="validation_accuracy", round=key[0], phase=key[1])
        total = sum(int(r["examples"]) for r in rows)
        means[key] = sum(float(r["value"]) * int(r["examples"]) for r in rows) / total
    top = max(means.values())
    assert (accuracy["best_round"], accuracy["best_phase"]) == min(
        key for key, value in means.items() if math.isclose(value, top)
    )


def test_rotating_pair_and_too_few_clients(tmp_path: Path) -> None:
    """U26: two of three rotate; with fewer than min-clients the number needed is said."""
    run = run_federation(tmp_path / "a", 3, sample_fraction=0.67, num_rounds=3)
    assert {r["participants"] for r in run.rows("rounds") if r["closing"] == "False"} == {"2"}
    with pytest.raises(RegistrationError, match="1 of 2 clients"):
        run_federation(tmp_path / "b", 1, wait_timeout=0.3)
    alone = run_federation(tmp_path / "c", 1, min_clients=1, num_rounds=1)
    assert alone.config["status"] == "completed"


def test_all_clients_are_evaluated_with_their_own_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U27: five rows in every evaluated round, and the mean says what it rests on."""
    run = run_federation(tmp_path, 5, sample_fraction=0.4, num_rounds=3)
    for number in (1, 2, 3):
        assert len(run.metrics(metric="accuracy", phase="pre", round=number)) == 5
    assert run.summary["accuracy"]["clients_evaluated"] == 5
    assert "5 of 5 clients, personal models" in capsys.readouterr().out


def test_a_client_without_training_examples_is_harmless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U30: named and left out of training; the others aggregate; it is still evaluated."""
    run = run_federation(tmp_path, 8, alpha=0.01, min_examples=0, subset=0.1, partition_seed=2)
    empty = [r["client"] for r in run.rows("clients") if r["train_examples"] == "0"]
    assert empty, "this split should leave a client without training examples"
    printed = capsys.readouterr().out
    for client in empty:
        assert f"client {client} has no training examples" in printed
        assert not run.metrics(phase="train", client=client)
    assert run.config["status"] == "completed"


def test_nothing_to_test_on_is_not_a_number(tmp_path: Path, capsys: Any) -> None:
    """U30: without test examples the run goes on and says "not evaluated"."""
    from PIL import Image

    nodes = {}
    for client in range(2):
        folder = tmp_path / f"device{client}"
        for name in ("a", "b"):
            (folder / "train" / name).mkdir(parents=True)
            for k in range(6):
                image = Image.new("L", (32, 32), color=30 * k + client)
                image.save(folder / "train" / name / f"{k}.png")
        (folder / "test" / "a").mkdir(parents=True)
        nodes[client] = {"client-id": client, "data-dir": str(folder)}
    run = run_federation(
        tmp_path, 2, nodes=nodes, subset=1.0, validation_fraction=0.0, num_rounds=1
    )
    assert run.config["status"] == "completed"
    assert run.summary["accuracy"]["final"] is None
    assert run.summary["accuracy"]["clients_evaluated"] == 0
    assert not run.metrics(metric="accuracy")
    assert "not evaluated" in capsys.readouterr().out


def test_divergence_is_named_where_it_happens(tmp_path: Path, capsys: Any) -> None:
    """U32: round, client, loss term, last finite value."""
    with pytest.raises(RunError, match=r"round 1: none of 3 participants"):
        run_federation(tmp_path, 3, lr=1e30, batch_size=16)
    printed = capsys.readouterr().out
    assert "client 0, round 1, epoch 1: loss_ce became" in printed
    assert "last finite value" in printed
    failures = Outcome(tmp_path / "run").rows("failures")
    assert [(row["round"], row["client"]) for row in failures] == [("1", i) for i in "012"]
    assert all("loss_ce became" in row["reason"] for row in failures)


def test_metrics_are_a_tidy_table(tmp_path: Path) -> None:
    """U33: loads in pandas; grouping by client gives a curve."""
    run = run_federation(tmp_path, 3, num_rounds=3)
    table = pd.read_csv(run.path / "metrics.csv")
    assert list(table.columns) == ["round", "client", "phase", "metric", "value", "examples"]
    curves = table[(table.metric == "accuracy") & (table.phase == "pre")].groupby("client")
    assert {len(curve) for _, curve in curves} == {3}
    assert not table.value.isna().any()
    skipped = run_federation(tmp_path / "b", 3, num_rounds=3, evaluate_every=3)
    rounds = {r["round"] for r in skipped.metrics(metric="accuracy", phase="pre")}
    assert rounds == {"3"}


def test_partition_seed_is_declared_and_decides_the_split(tmp_path: Path) -> None:
    """U40: another partition seed, another split; another run seed, the same split."""
    hashes = {
        (seed, split): run_federation(
            tmp_path / f"{seed}{split}", 3, num_rounds=1, seed=seed, partition_seed=split
        ).config["split_hash"]
        for seed, split in ((0, 0), (1, 0), (0, 1), (0, 2))
    }
    assert hashes[0, 0] == hashes[1, 0]
    assert len({hashes[0, 0], hashes[0, 1], hashes[0, 2]}) == 3


def test_download_leaves_batch_norm_statistics_alone(tmp_path: Path) -> None:
    """U42: sharing a head touches no buffer; counters stay int64 and count local batches."""
    run = run_federation(
        tmp_path, 2, models="resnet10-w4", num_rounds=2, sample_fraction=0.5, batch_size=64
    )
    rows = {r["client"]: int(r["train_examples"]) for r in run.rows("clients")}
    for client, examples in rows.items():
        rounds = {int(r["round"]) for r in run.metrics(phase="train", metric="loss", client=client)}
        if not rounds:
            continue
        tensors = saved_tensors(run, int(client), max(rounds))
        counters = [v for k, v in tensors.items() if k.endswith("num_batches_tracked")]
        batches = examples // 64 + (examples % 64 > 1)
        assert {c.dtype for c in counters} == {torch.int64}
        assert {int(c) for c in counters} == {len(rounds) * batches}


def test_bytes_are_those_of_the_records(tmp_path: Path) -> None:
    """U45: uplink about (512 + 10) x 4 bytes; downlink for participants only, (C d + C) x 4."""
    run = run_federation(tmp_path, 4, sample_fraction=0.5, num_rounds=2)
    train = [r for r in run.rows("traffic") if r["purpose"] == "train"]
    for row in train:
        floats = 522 if row["direction"] == "uplink" else 5130
        assert int(row["bytes"]) == pytest.approx(4 * floats, rel=0.02, abs=600)
        assert int(row["scalars"]) == (512 if row["direction"] == "uplink" else 5130)
    down = [int(r["bytes"]) for r in train if r["direction"] == "downlink"]
    assert down == pytest.approx([4 * 5130] * 4, rel=0.02)
    assert run.summary["traffic"]["downlink_bytes"] == sum(down)


class FailsAtTheEnd(InProcessGrid):
    """All clients fail in the closing evaluation."""

    def _answer(self, message: Message) -> Message:
        if CONTROL in message.content and message.content[CONTROL].get("final"):
            return Message(Error(2, "boom"), reply_to=message)
        return super()._answer(message)


def test_a_closing_evaluation_that_ends_the_run_is_on_record(tmp_path: Path) -> None:
    """The failure is the closing's: a resumed run, which closes anew, does not keep it."""
    with pytest.raises(RunError, match="client 0: boom"):
        run_federation(tmp_path, 3, grid_class=FailsAtTheEnd, on_client_error="stop")
    [failure] = Outcome(tmp_path / "run").rows("failures")
    assert failure == {"round": "2", "client": "0", "kind": "closing", "reason": "boom"}
    resumed = run_federation(tmp_path, 3, on_client_error="stop", resume="run")
    assert resumed.rows("failures") == []


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_a_bad_payload_is_named_and_left_out(tmp_path: Path, capsys: Any, policy: str) -> None:
    """U06, U50: NaN from client 1 in round 2: named, counted, the round completes or stops."""
    if policy == "stop":
        with pytest.raises(RunError, match=r"client 1.*entangled_rep"):
            run_federation(tmp_path, 3, grid_class=WithNaN, on_client_error="stop", num_rounds=3)
        assert Outcome(tmp_path / "run").config["status"] == "failed"
        return
    run = run_federation(tmp_path, 3, grid_class=WithNaN, num_rounds=3)
    [failure] = run.rows("failures")
    assert (failure["round"], failure["client"]) == ("2", "1")
    assert "entangled_rep" in failure["reason"]
    assert run.summary["clients_failed"] == 1
    assert "client 1" in capsys.readouterr().out
    assert [r["failed"] for r in run.rows("rounds")] == ["0", "1", "0", "0"]


def test_a_clients_exception_is_visible_at_once(tmp_path: Path, capsys: Any) -> None:
    """U50: client id, round and the exception's own line on the console."""
    healthy = make_client_app(get_method("fedre"))

    def broken(message: Message, context: Context) -> Message:
        late = message.metadata.message_type == "train" and message.metadata.group_id == "2"
        if late and context.node_config["partition-id"] == 2:
            raise ValueError("loss went to lunch")
        return healthy(message, context)

    run = run_federation(tmp_path, 3, app=broken, num_rounds=3)  # type: ignore[arg-type]
    assert "round 2: client 2 (train): ValueError: loss went to lunch" in capsys.readouterr().out
    assert len(run.metrics(phase="train", metric="loss", round=2)) == 2
    assert len(run.metrics(phase="train", metric="loss", round=3)) == 3


def test_every_override_is_in_the_stored_configuration(tmp_path: Path) -> None:
    """U57: what was set is what is stored; a misspelt key stops with the nearest one."""
    run = run_federation(tmp_path, 3, num_rounds=1, fedre__mechanism="VAR", lr=0.02)
    assert run.config["config"]["fedre.mechanism"] == "VAR"
    assert run.config["config"]["lr"] == 0.02
    with pytest.raises(ConfigError, match="did you mean alpha"):
        run_federation(tmp_path / "b", 3, alhpa=0.1)


def test_a_class_that_nobody_has(tmp_path: Path) -> None:
    """A device fleet whose folders lack a class trains and evaluates; the class stays a label."""
    from PIL import Image

    nodes = {}
    for client in range(2):
        folder = tmp_path / f"device{client}"
        folder.mkdir()
        (folder / "classes.txt").write_text("ant\nbee\ncow\n")
        for part in ("train", "test"):
            for k, name in enumerate(("ant", "cow")):
                (folder / part / name).mkdir(parents=True)
                for i in range(5):
                    image = Image.new("L", (32, 32), color=200 * k + i)
                    image.save(folder / part / name / f"{i}.png")
        nodes[client] = {"client-id": client, "data-dir": str(folder), "model": "cnn4"}
    run = run_federation(tmp_path, 2, nodes=nodes, subset=1.0, num_rounds=2)
    assert {r["num_classes"] for r in run.rows("clients")} == {"3"}
    assert {r["model"] for r in run.rows("clients")} == {"cnn4"}
    assert run.config["status"] == "completed"


def test_records_of_one_client_do_not_change_when_another_trains(tmp_path: Path) -> None:
    """Nothing is aliased: two clients in sequence in one process keep different states."""
    run = run_federation(tmp_path, 2, models="five-cnns", num_rounds=1)
    digests = set()
    for client in range(2):
        path = state_directory(run.path / "clients", client) / "round-00001.safetensors"
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 2


def test_a_diverged_server_is_named(tmp_path: Path) -> None:
    """A server step that overflows ends the run where it happens, before it is broadcast."""
    with pytest.raises(RunError, match=r"round \d: the server's head_weight.*server-lr"):
        run_federation(tmp_path, 3, fedre__server_lr=3e38, fedre__server_epochs=9, num_rounds=2)


def test_no_training_examples_anywhere_is_an_error(tmp_path: Path) -> None:
    nodes = {}
    for client in range(2):
        folder = tmp_path / f"device{client}"
        (folder / "train" / "a").mkdir(parents=True)
        (folder / "test" / "a").mkdir(parents=True)
        from PIL import Image

        Image.new("L", (32, 32)).save(folder / "test" / "a" / "0.png")
        nodes[client] = {"client-id": client, "data-dir": str(folder)}
    with pytest.raises((RunError, RegistrationError), match=r"no .*training|train/"):
        run_federation(tmp_path, 2, nodes=nodes, subset=1.0, models="cnn5, cnn4")


def test_a_late_joiner_takes_part_from_the_next_round(tmp_path: Path) -> None:
    """A node that connects during round 1 is asked, carded and trained from round 2 on."""

    class Late(InProcessGrid):
        pushes = 0

        def get_node_ids(self) -> list[int]:
            return list(self.contexts)[: 3 if self.pushes > 4 else 2]

        def push_messages(self, messages: Any) -> Any:
            self.pushes += 1
            return super().push_messages(messages)

    run = run_federation(tmp_path, 3, grid_class=Late, num_rounds=6)
    assert {r["client"] for r in run.rows("clients")} == {"0", "1", "2"}
    rounds = {int(r["round"]) for r in run.metrics(phase="train", metric="loss", client=2)}
    assert rounds
    assert 1 not in rounds
    assert 6 in rounds
