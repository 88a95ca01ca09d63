"""FedMRL in whole runs: traffic, variants, refusals, evaluation, private files; its presets."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.common.config import parse_config_args

from client_app import handlers
from client_app.evaluation import evaluate_client
from models import InputShape, build_model, count_parameters
from models.small import build_small_model
from server_app.rounds.in_process import InProcessGrid
from strategies.base.options import option_keys
from strategies.base.parsing import parse_run_config
from strategies.base.payload import ARRAYS
from strategies.base.server import RegistrationError
from strategies.fedmrl import Config
from tests.support import Outcome, run_federation

PRESETS = sorted((Path(__file__).parents[2] / "deploy" / "presets").glob("fedmrl-h*.toml"))
OWN = option_keys(Config)


def options(**config: Any) -> dict[str, Any]:
    keys = {key.replace("_", "-"): value for key, value in {"method": "fedmrl", **config}.items()}
    return {("fedmrl." if key in OWN else "") + key: value for key, value in keys.items()}


# Whole runs -----------------------------------------------------------------------------------


def rows_of_training(run: Outcome) -> list[dict[str, str]]:
    return [row for row in run.rows("traffic") if row["purpose"] == "train"]


def test_only_the_small_model_leaves_a_client(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []

    class Tapped(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            if message.metadata.message_type == "train":
                arrays = reply.content.array_records[ARRAYS]
                seen.extend(array.shape for array in arrays.values())
            return reply

    keys = options(models="cnn5, cnn2", num_rounds=1, d1=32)
    run = run_federation(tmp_path / "a", 2, grid_class=Tapped, **keys)
    info = run.rows("clients")[0]
    shape = InputShape(int(info["channels"]), int(info["image_size"]), 10)
    expected = count_parameters(build_small_model("cnn5", shape, 32))
    assert seen == [(expected,)] * 2
    assert {row["scalars"] for row in rows_of_training(run)} == {str(expected)}
    tied = run_federation(tmp_path / "b", 2, **{**keys, "fedmrl.tie-heads": True})
    assert {row["scalars"] for row in rows_of_training(tied)} == {str(expected - 10 * 33)}


@pytest.mark.parametrize(
    "config", [{"tie_heads": True}, {"without_mrl": True}, {"small_model": "fedavgcnn"},
               {"small_model": "cnn1", "mean": "uniform", "local_width": "feature-dim"}]
)  # fmt: skip
def test_variants_finish(config: dict[str, Any], tmp_path: Path) -> None:
    run = run_federation(tmp_path, 3, **options(d1=16, subset=0.1, num_rounds=2, **config))
    assert run.config["status"] == "completed"
    assert run.rows("failures") == []


def test_a_client_narrower_than_d1_is_named_at_the_roll_call(tmp_path: Path) -> None:
    with pytest.raises(
        RegistrationError, match=r"client 2: model resnet10-w4 .* 128, fedmrl\.d1 = 129"
    ):
        run_federation(tmp_path, 3, **options(d1=129))


def test_small_images_are_named_at_the_roll_call(tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match=r"small model 'cnn5' cannot be built for 1x12x12"):
        run_federation(tmp_path, 2, image_size=12, **options(models="*=resnet10-w4"))


def test_all_four_models_are_reported_in_every_evaluated_round(tmp_path: Path) -> None:
    run = run_federation(tmp_path, 3, **options(num_rounds=3, evaluate_every=2, d1=16))
    names = ["accuracy", "accuracy_mix_small", "accuracy_single_small", "accuracy_single_large"]
    for number in (2, 3):
        for name in names:
            rows = run.metrics(round=number, phase="post", metric=name)
            assert {row["client"] for row in rows} == {"0", "1", "2"}, name
    assert run.metrics(round=1, phase="post") == []
    assert run.metrics(phase="train", metric="flops")


def test_participants_evaluate_with_their_own_small_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`post`: its own theta after training; everyone else with the downlink's."""
    seen: dict[tuple[int, int, str], bool] = {}
    original = evaluate_client

    def spy(context: Any, half: Any, state: Any, downlink: Any, phase: str, **options: Any) -> Any:
        own = state.small.state_dict()
        same = all(np.array_equal(own[name].numpy(), downlink.theta[name]) for name in own)
        seen[(context.server_round, context.client_id, phase)] = same
        return original(context, half, state, downlink, phase, **options)

    monkeypatch.setattr(handlers, "evaluate_client", spy)
    run = run_federation(tmp_path, 4, **options(sample_fraction=0.5, d1=16))
    for number in (1, 2):
        rows = run.metrics(phase="train", metric="loss", round=number)
        participants = {int(row["client"]) for row in rows}
        assert len(participants) == 2
        for client in range(4):
            assert seen[(number, client, "post")] == (client not in participants)


def files_of(run: Outcome, client: int) -> dict[str, str]:
    folder = run.path / "clients" / f"client-{client:05d}"
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.glob("*.safetensors")
    }


def test_unsampled_clients_private_parts_are_untouched(tmp_path: Path) -> None:
    """Byte for byte, while others train on and everyone is evaluated."""
    keys = options(sample_fraction=0.5, d1=16, num_rounds=2)
    run = run_federation(tmp_path, 4, **keys)
    before = {client: files_of(run, client) for client in range(4)}
    run = run_federation(tmp_path, 4, **{**keys, "num-rounds": 3}, resume="run")
    rows = run.metrics(phase="train", metric="loss", round=3)
    sampled = {int(row["client"]) for row in rows}
    evaluated = {int(row["client"]) for row in run.metrics(metric="accuracy", round=3)}
    assert evaluated == {0, 1, 2, 3}
    kept = [c for c in range(4) if c not in sampled and before[c]]
    assert kept
    for client in kept:
        newest = max(before[client])
        assert files_of(run, client)[newest] == before[client][newest]
        assert set(files_of(run, client)) <= set(before[client])
    for client in sampled:
        assert "round-00003.safetensors" in files_of(run, client)


# Presets --------------------------------------------------------------------------------------


def test_there_are_twelve_presets() -> None:
    assert {path.stem for path in PRESETS} == {
        f"fedmrl-{models}-k{clients}-{split}"
        for models in ("hetero", "homo")
        for clients in (10, 50, 100)
        for split in ("classes2", "dirichlet")
    }


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_parse_and_say_what_their_names_say(path: Path) -> None:
    text = path.read_text()
    run = parse_run_config(parse_config_args([str(path)]))  # as `flwr run` reads the file
    _, models, clients, split = path.stem.split("-")
    assert run.method == "fedmrl"
    assert (run.batch_size, run.local_epochs, run.augment) == (512, 10, "crop-flip-erase")
    assert f"--federation-config 'num-supernodes={clients[1:]}'" in text
    assert run.min_clients == int(clients[1:])
    assert round(run.min_clients * run.sample_fraction) == 10  # participants a round
    assert run.models == ("five-cnns" if models == "hetero" else "*=cnn1")
    assert run.method_config.small_model == ("cnn5" if models == "hetero" else "cnn1")
    assert run.partition == ("class-shares" if split == "classes2" else "dirichlet")
    assert run.classes_per_client == 2
    width = build_model("cnn1", InputShape(3, 32, 10), mapping="none").feature_dim
    assert run.method_config.d1 < width == 500
