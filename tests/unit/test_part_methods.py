"""Methods whose clients train parts of one network: means over holders, rates, refusals."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from client_app.handlers import describe_client
from deploy.contract.runs import Outcome, run_federation
from models.channels import Indices, Part, indices_of
from models.memory_format import fails_channels_last
from server_app.rounds.method_server import MethodServer
from strategies.base.messages import ClientInfo, count_bytes
from strategies.base.method import get_method
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import pack
from strategies.base.server import RegistrationError
from strategies.common.parts_server import PartMean
from strategies.common.widths import Windows
from tests.support import ServerAtWork
from tests.unit.test_training import a_context

METHODS = ("heterofl", "fedrolex", "scalefl")
ONE = {"models": "*=resnet10-w4", "image-size": 16}


def infos_of(method: str, rates: dict[int, float | None], **config: Any) -> list[ClientInfo]:
    """What clients with these rates of their own say at the registration."""
    given = {key: value for key, value in config.items() if "." in key}
    context = a_context(6, method=method, models=config.get("models", ONE["models"]), **given)
    model = context.run.models.removeprefix("*=")
    return [
        describe_client(
            dataclasses.replace(
                context, client_id=client, rate=rate, server_round=0, model_name=model
            ),
            get_method(method),
        )
        for client, rate in rates.items()
    ]


def a_server(method: str, rates: dict[int, float | None], **config: Any) -> Any:
    run = parse_run_config({"method": method, **ONE, **config})
    return ServerAtWork(run, infos_of(method, rates, **config))


# Means ------------------------------------------------------------------------------------------


def by_loops(
    before: np.ndarray[Any, Any], parts: list[tuple[np.ndarray[Any, Any], Indices, float]]
) -> np.ndarray[Any, Any]:
    """The mean of every value over who holds it, value by value."""
    after = before.copy()
    for place in np.ndindex(before.shape):
        total = weights = 0.0
        for part, indices, weight in parts:
            own = [
                np.flatnonzero(positions == at)
                for positions, at in zip(indices, place, strict=False)
            ]
            if all(len(found) for found in own):
                rest = place[len(indices) :]
                total += weight * float(part[(*(int(found[0]) for found in own), *rest)])
                weights += weight
        if weights:
            after[place] = total / weights
    return after


def test_means_of_a_two_layer_net_equal_loops() -> None:
    """A convolution on 1 colour and a linear layer on its flattened maps of 3 pixels."""
    shapes = {"a": ((6, 1, 2, 2), (1, 0, 0, 0)), "b": ((5, 18), (1, 3)), "c": ((5,), (1,))}
    draw = np.random.default_rng(0)
    before = {k: draw.normal(size=shape).astype(np.float32) for k, (shape, _) in shapes.items()}
    mean = PartMean({name: torch.from_numpy(item) for name, item in before.items()})
    added: dict[str, list[Any]] = {name: [] for name in shapes}
    for part, weight in ((Part(0.5, 1), 2.0), (Part(0.3, 4), 1.0), (Part(0.5, 3), 0.5)):
        indices = {name: indices_of(shape, spans, part) for name, (shape, spans) in shapes.items()}
        sent = {
            name: draw.normal(size=(*map(len, indices[name]), *shape[len(indices[name]) :]))
            for name, (shape, _) in shapes.items()
        }
        mean.add(sent, indices, weight)
        for name, item in sent.items():
            added[name].append((item, indices[name], weight))
    for name, item in mean.means().items():
        expected = by_loops(before[name], added[name])
        np.testing.assert_allclose(item.numpy(), expected, rtol=1e-6)
        assert (item.numpy() == before[name]).any() or name == "c", "some value has no holder"
        assert item.dtype == torch.float32


def test_counters_keep_their_maximum() -> None:
    mean = PartMean({"n": torch.tensor(0)})
    for count in (3, 7, 5):
        mean.add({"n": np.array(count)}, {"n": ()}, 1.0)
    assert mean.means()["n"].item() == 7


AS_FEDAVG: dict[str, Any] = {
    **{"models": "*=resnet10-w4", "feature_dim": 128, "image_size": 16, "subset": 0.05},
    **{"optimizer": "sgd", "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0},
}


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run of FedAvg on one architecture."""
    return run_federation(tmp_path_factory.mktemp("fedavg"), 3, method="fedavg", **AS_FEDAVG)


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_rate_1_for_all_is_fedavg_bit_for_bit(method: str, fedavg: Outcome, tmp_path: Path) -> None:
    options = "rates='1' mean='weighted' norm='running' scaler=false mask-absent=false"
    own = run_federation(tmp_path, 3, method=method, method_options=options, **AS_FEDAVG)
    runs = (fedavg, own)
    states = [_server_state(run) for run in runs]
    assert states[0].keys() == states[1].keys()
    for name, item in states[0].items():
        np.testing.assert_array_equal(item, states[1][name], err_msg=name)
    accuracy = [run.summary["accuracy"]["final"] for run in runs]
    assert accuracy[0] == accuracy[1]


def _server_state(run: Outcome) -> dict[str, Any]:
    newest = sorted((run.path / "checkpoints").glob("round-*"))[-1]
    return load_file(newest)


@pytest.mark.parametrize("rate", [0.0625, 0.7])
def test_narrow_shortcuts_compute_channels_first(rate: float) -> None:
    """Channels last, torch 2.14 corrupts memory in their backward pass, or hangs."""
    options = {"heterofl.rates": str(rate), "models": "*=resnet10-w4"}
    context = a_context(6, method="heterofl", **options)
    server = a_server("heterofl", {4: None}, **options)
    half = get_method("heterofl").client()
    state = half.build(context)
    half.receive(context, state, server.downlink_for(4, 1))
    seen: list[bool] = []
    for layer in filter(fails_channels_last, state.model.modules()):
        layer.register_forward_hook(
            lambda own, inputs, output: seen.extend(
                item.stride() == torch.empty(item.shape).stride()
                for item in (own.weight, *inputs, output)
            )
        )
    state.model(torch.zeros(2, 1, 16, 16).to(memory_format=torch.channels_last))
    assert seen == [True] * 9, "three shortcuts"


# Rates ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["resnet18", "fedavgcnn"])
def test_bytes_fall_with_the_square_of_the_rate(model: str) -> None:
    """No zeros travel: half the rate is a quarter of the bytes."""
    rates = dict(enumerate((1.0, 0.5, 0.25)))
    server = a_server("heterofl", rates, **{"models": f"*={model}"})
    sizes = [count_bytes(pack(server.downlink_for(client, 1))) for client in rates]
    for half, double in zip(sizes[1:], sizes, strict=False):
        assert half / double == pytest.approx(0.25, rel=0.1)


def test_rates_are_dealt_out_and_a_device_has_its_own() -> None:
    run = parse_run_config({"method": "heterofl", **ONE})
    parts = [Windows().part(run, client, 3, 0.0).rate for client in range(6)]
    assert parts == [1, 0.5, 0.25, 0.125, 0.0625, 1]
    assert Windows().part(run, 0, 3, 0.125).rate == 0.125


def test_dynamic_rates_are_drawn_by_round_alike_on_both_sides() -> None:
    run = parse_run_config({"method": "heterofl", "heterofl.draw": "dynamic", **ONE})
    drawn = [Windows().part(run, 1, number, 0.0).rate for number in range(1, 60)]
    assert set(drawn) == {1, 0.5, 0.25, 0.125, 0.0625}
    assert drawn == [Windows().part(run, 1, number, 0.0).rate for number in range(1, 60)]
    assert drawn != [Windows().part(run, 2, number, 0.0).rate for number in range(1, 60)]
    assert Windows().part(run, 1, 0, 0.0).rate == 1  # at the registration
    assert Windows().part(run, 1, 5, 0.5).rate == 0.5


def test_a_run_with_dynamic_rates(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"models": "*=cnn5", "image_size": 16, "subset": 0.1}
    run = run_federation(
        tmp_path, 3, method="fedrolex", fedrolex__draw="dynamic", num_rounds=3, **settings
    )
    assert run.rows("failures") == []
    rates = {(r["round"], r["client"]): float(r["value"]) for r in run.metrics(metric="rate")}
    assert len(rates) == 9
    assert len(set(rates.values())) > 1
    sent = {
        (r["round"], r["client"]): int(r["scalars"])
        for r in run.rows("traffic")
        if (r["direction"], r["purpose"]) == ("uplink", "train")
    }
    by_rate = {(rates[key], scalars) for key, scalars in sent.items()}
    assert len(by_rate) == len(set(rates.values())), "equal rates send equally much"


def test_a_devices_rate_is_accepted(tmp_path: Path) -> None:
    nodes = {1: {"partition-id": 1, "num-partitions": 2, "rate": 0.25}}
    settings: dict[str, Any] = {"models": "*=cnn5", "image_size": 16, "subset": 0.1}
    run = run_federation(tmp_path, 2, method="heterofl", nodes=nodes, num_rounds=1, **settings)
    assert [row["rate"] for row in run.rows("clients")] == ["0.0", "0.25"]
    assert {r["client"]: r["value"] for r in run.metrics(metric="rate")} == {
        "0": "1.0",
        "1": "0.25",
    }


@pytest.mark.parametrize(
    ("method", "known"),
    [("heterofl", "1, 0.5, 0.25, 0.125, 0.0625"), ("scalefl", "1, 0.75, 0.5, 0.25")],
)
def test_an_unknown_rate_is_refused_by_name(method: str, known: str) -> None:
    with pytest.raises(RegistrationError, match=rf"client 3: rate 0\.3 .* one of {known}, the"):
        a_server(method, {0: None, 3: 0.3})


def test_a_part_of_another_size_is_refused_by_name() -> None:
    server = MethodServer(parse_run_config({"method": "heterofl", **ONE}))
    (info,) = infos_of("heterofl", {2: 0.5})
    other = dataclasses.replace(info, parameters=info.parameters + 1)
    with pytest.raises(RegistrationError, match=r"client 2: its part of resnet10-w4 has .*0\.5"):
        server.admit([other])
    server.admit([info])


def test_a_device_with_another_model_is_refused_by_name() -> None:
    (info,) = infos_of("heterofl", {2: None})
    server = MethodServer(parse_run_config({"method": "heterofl", **ONE}))
    with pytest.raises(RegistrationError, match="client 2: model cnn5 is not resnet10-w4, of whi"):
        server.admit([dataclasses.replace(info, model="cnn5")])


@pytest.mark.parametrize("rate", [0, 1.5, True, "half"])
def test_what_is_no_rate_is_refused(rate: Any, tmp_path: Path) -> None:
    nodes = {1: {"partition-id": 1, "num-partitions": 2, "rate": rate}}
    with pytest.raises(RegistrationError, match=rf"client 1: .*rate = {rate!r} in node-config"):
        run_federation(tmp_path, 2, method="heterofl", nodes=nodes, models="*=cnn5")


# Wrong use, before data is loaded -----------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("models", "said"),
    [
        ("five-cnns", "cnn1, cnn2, cnn3 are no parts of each other; expected one name"),
        ("resnet18, cnn5", "resnet18, cnn5 are no parts of each other"),
        ("*=vit-tiny", "'vit-tiny' has no .*; choose a ResNet"),
        ("*=my_models:net", "cuts ResNets and CNNs of Wildflower alone"),
    ],
)
def test_networks_that_cannot_be_cut_are_refused(method: str, models: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"models = {re.escape(repr(models))}: .*{said}"):
        MethodServer(parse_run_config({"method": method, "models": models}))


def test_exits_need_stages() -> None:
    with pytest.raises(ConfigError, match=r"'cnn5' has no four stages .* choose a ResNet"):
        MethodServer(parse_run_config({"method": "scalefl", "models": "*=cnn5"}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heterofl.rates": "1, 0"}, "heterofl.rates = '1, 0': expected numbers above 0, at most"),
        ({"heterofl.rates": "a"}, "heterofl.rates = 'a': expected numbers"),
        ({"heterofl.rates": "nan"}, "heterofl.rates = 'nan': expected numbers"),
        ({"heterofl.norm": "running"}, "heterofl.norm = 'running': .* heterofl.scaler=false"),
        ({"scalefl.widths": "1, 1"}, "scalefl.widths = '1, 1': expected four numbers"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, str], said: str) -> None:
    method = next(iter(options)).partition(".")[0]
    with pytest.raises(ConfigError, match=said):
        parse_run_config({"method": method, **ONE, **options})
