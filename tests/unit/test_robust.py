"""Means that one client cannot decide: by hand, against brute force, and in every method."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from data import load_public
from server_app.idle_keys import idle_keys
from strategies.base.messages import ClientUpdate
from strategies.base.method import get_method, method_names
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import rules_of
from strategies.common.robust import CHUNK, RobustMean, class_average, mean_over_clients, trimmed
from strategies.common.weights import RunningMean
from strategies.fedkd.low_rank import compress
from tests.support import ServerAtWork
from tests.unit.test_roster import a_client_info

AVERAGING = [name for name in method_names() if get_method(name).averages]
RULES = ("median", "trimmed", "clipped")


def vector(*values: float) -> dict[str, NDArray[Any]]:
    return {"v": np.array(values, np.float32)}


def mean_of(mean: RunningMean, *values: float, weights: tuple[float, ...] = ()) -> float:
    for i, value in enumerate(values):
        mean.add(vector(value), weights[i] if weights else 1)
    return float(mean.means()["v"])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_trimmed_against_brute_force(count: int, cut: int) -> None:
    if 2 * cut >= count:
        return
    rng = np.random.default_rng(count)
    items = [rng.normal(size=(3, CHUNK // 2)).astype(np.float32) for _ in range(count)]
    ranked = np.sort(np.stack(items).astype(np.float64), axis=0)
    expected = ranked[cut : count - cut].mean(axis=0)
    assert np.array_equal(trimmed(items, cut), expected)
    if cut == (count - 1) // 2:
        assert np.array_equal(trimmed(items, cut), np.median(np.stack(items, dtype=float), axis=0))


def test_by_hand() -> None:
    values = (1.0, 2.0, 4.0, 5.0, 1e9)
    assert mean_of(RobustMean("median"), *values) == 4
    assert mean_of(RobustMean("median"), *values[:4]) == 3  # 2 and 4
    assert mean_of(RobustMean("median"), 1, 9, 2, weights=(1, 10**12, 1)) == 2  # each counts once
    assert mean_of(RobustMean("trimmed", 0.1), *values) == np.float32(11 / 3)  # one at each end
    assert mean_of(RobustMean("trimmed", 0.4), *values) == 4  # two at each end
    assert mean_of(RobustMean("trimmed", 0.49), 1, 3) == 2  # of two none can be left out
    assert mean_of(RobustMean("median"), 1, 5) == 3
    assert mean_of(RobustMean("median"), 7) == 7
    # Sizes 1, 2, 4, 5, 1e9: 5 and 1e9 are shortened to the median, 4.
    assert mean_of(RobustMean("clipped"), *values) == 3
    assert mean_of(RobustMean("clipped", clip=0.25), *values, weights=(1, 1, 1, 1, 4)) == 1


def test_clipped_changes_are_measured_from_what_was_received() -> None:
    """From 10: changes 1, -2, 90; shortened to 2 the last is 12. The entry b stays as it is."""
    mean = RobustMean("clipped", around={"v": torch.tensor([10.0])})
    assert mean_of(mean, 11, 8, 100) == np.float32(31 / 3)
    both = RobustMean("clipped", around={"a": torch.zeros(1), "b": torch.ones(1)})
    for change in (1.0, 1.0, 3.0):  # over both entries, root mean squares of 1, 1 and 3
        both.add({"a": vector(change)["v"], "b": vector(1 + change)["v"]}, 1)
    assert {k: float(v) for k, v in both.means().items()} == {"a": 1.0, "b": 2.0}


def test_entries_that_not_all_have_and_counters() -> None:
    mean = RobustMean("median")
    for i, value in enumerate((1.0, 3.0, 50.0)):
        state = {"shared": vector(value)["v"], "steps": np.array(10**i)}
        mean.add(state | ({"deep": vector(value)["v"]} if i else {}), i + 1)
    means = mean.means()
    assert {k: v.tolist() for k, v in means.items()} == {
        "shared": [3.0], "steps": 10, "deep": [26.5],
    }  # fmt: skip
    assert means["steps"].dtype == torch.int64
    assert means["shared"].dtype == torch.float32
    assert mean.weights == {"shared": 6, "steps": 6, "deep": 5}


def test_what_too_few_clients_sent_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    mean = RobustMean("trimmed")
    for number in range(3):
        mean.add(vector(1) | ({"own": vector(2)["v"]} if number else {}), 1)
    mean.means()
    assert "1 of 2 entries came from fewer than 3 clients, of whom none" in capsys.readouterr().out


def test_classes_have_their_own_means(capsys: pytest.CaptureFixture[str]) -> None:
    run = parse_run_config({"method": "fedproto", "robust-mean": "median"})
    average = class_average(run, 4, 1)
    for ids, values in (([0, 2], [1.0, 5.0]), ([0], [2.0]), ([0, 3], [9e9, 7.0])):
        average.add(torch.tensor(ids), torch.tensor(values).unsqueeze(1))
    class_ids, means, counts = average.result()
    assert (class_ids.tolist(), counts.tolist()) == ([0, 2, 3], [3, 1, 1])
    assert means.tolist() == [[2.0], [5.0], [7.0]]
    assert capsys.readouterr().out.count("2 of 3 classes came from fewer than 3") == 1
    assert class_average(run, 4, 1).result()[1].shape == (0, 1)


def test_off_is_the_plain_mean_and_the_others_hold_no_copies() -> None:
    run = parse_run_config({"method": "fedavg"})
    assert type(mean_over_clients(run)) is RunningMean
    states = [{"v": np.full(2**20, value, np.float32)} for value in range(5)]
    mean = RobustMean("median")
    tracemalloc.start()
    for state in states:
        mean.add(state, 1)
    result = mean.means()["v"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert float(result[0]) == 2
    assert peak < 5 * states[0]["v"].nbytes  # float64 sums, and the result twice


# In methods --------------------------------------------------------------------------------------


def filled(server: ServerAtWork, client: int, value: float) -> Any:
    """Return an uplink of the running method in which every float is `value`."""
    context, state, method = server.context, server.state, server.method
    templates = server.half.templates(context, state, context.clients[client])
    sizes = {"m": context.dims["C"], "v": context.dims["C"], "k": 6, "w": 0, **context.dims}
    fields: dict[str, Any] = {}
    for name, rule in rules_of(method.uplink).items():
        if rule.mapping:
            fields[name] = {
                entry: np.full(shape, value if "float" in dtype else 1, dtype)
                for entry, (shape, dtype) in templates[name].items()
            }
        elif name in ("s_in", "s_out"):
            fields[name] = np.full((2, *getattr(state, name).shape[1:]), value, np.float32)
        elif rule.unique:
            fields[name] = np.arange(sizes["C"])
        elif method.name != "fedkd":
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in rule.dims]
            counts = name == "effort" or rule.dtype == "int64"
            fields[name] = np.full(shape, 1 if counts else value, rule.dtype)
    if method.name == "fedkd":
        theta = {k: np.full(v.shape, value, np.float32) for k, v in state.theta.items()}
        fields = compress(theta, None)
    return method.uplink(**fields)


DISTILLING = ("feddf", "fedet")


def largest_after(method: str, values: list[float], **settings: Any) -> float:
    """Return the largest value that goes out after clients sent these, pools left out."""
    config = {"method": method, "models": "resnet10-w4", "feature-dim": 16, "fedmrl.d1": 16}
    config |= settings
    mark = ""
    if method == "fedl2g":  # whose server shortens the mean, and goes but a tenth of the way
        config |= {"fedl2g.clip-norm": 0.0, "fedl2g.server-lr": 1.0}
    if method in DISTILLING:
        # What the server learns of public items afterwards is no mean.
        public = {"public-dataset": "digits", "public-size": 12, "public-overlap": "allowed"}
        config |= {**public, f"{method}.server-epochs": 0}
        mark = load_public("digits", 12, 1, 16).fingerprint
    infos = [
        a_client_info(i, model="resnet10-w4", image_size=16, feature_dim=16, public_hash=mark)
        for i in range(len(values))
    ]
    server = ServerAtWork(parse_run_config(config), infos)
    server.server_round = 2
    updates = [
        ClientUpdate(i, 5, filled(server, i, value), [], 0.0, 0, 0, "w")
        for i, value in enumerate(values)
    ]
    server.aggregate_in(2, updates)
    sent = server.downlink_for(0, 2 if method == "fedhenn" else 3)
    found = [0.0]
    for name, rule in rules_of(type(sent)).items():
        field = getattr(sent, name)
        # Neither a pool nor a generator that learns from every head is a mean.
        if name in ("s_in", "s_out", "sender", "generator"):
            continue
        items = field.values() if rule.mapping else [field]
        found += [float(np.abs(i).max()) for i in map(np.asarray, items) if i.dtype.kind == "f"]
    return max(found)


@pytest.mark.parametrize("method", AVERAGING)
def test_one_client_cannot_decide_what_a_method_averages(method: str) -> None:
    values = [0.9, 1.1, 1.0, 1.2, -1e6]
    assert largest_after(method, values) > 1e4
    for rule in RULES:
        assert largest_after(method, values, **{"robust-mean": rule}) < 1000, rule


def test_what_takes_no_mean_is_refused_and_idle_keys_are_named() -> None:
    with pytest.raises(ConfigError, match=r"robust-mean = 'median': expected off with method"):
        parse_run_config({"method": "fedre", "robust-mean": "median"})
    run = parse_run_config({"method": "fedavg", "robust-trim": 0.2, "robust-mean": "clipped"})
    assert idle_keys(run) == ["robust-trim = 0.2 (robust-mean = 'clipped')"]
    server = ServerAtWork(dataclasses.replace(run, robust_mean="trimmed"))
    assert "robust-mean = 'trimmed' holds what all clients of a round send" in server.remarks[0]
    assert set(AVERAGING) >= {"fedavg", "fedproto", "fd", "lg-fedavg", "fml", "fedkd", "fedhenn"}
