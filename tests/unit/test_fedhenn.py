"""FedHeNN: CKA by hand, the triangle that travels, and what a round exchanges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from strategies.base.messages import ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError
from strategies.fedhenn import Uplink, alignment_items, cka, square, triangle
from tests.support import ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info


def a_server(**keys: object) -> ServerAtWork:
    run = parse_run_config({"method": "fedhenn", "public-size": 6, "fedhenn.items": 3, **keys})
    server = ServerAtWork(run)
    server.admit([a_client_info(0), a_client_info(1)])
    return server


def update(client: int, kernel: list[float]) -> ClientUpdate:
    return ClientUpdate(client, 5, Uplink(np.array(kernel, np.float32)), [], 0.0, 0, 0, "w")


def test_cka_by_hand() -> None:
    """Centred with H = I - 11^T / 2, a Gram matrix of two items is a multiple of [[1, -1], [-1, 1]]
    as long as the items differ."""
    a = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    b = torch.tensor([[1.0, 3.0], [3.0, 10.0]])
    assert cka(a, b).item() == pytest.approx(1)
    assert cka(a, torch.ones(2, 2)).item() == 0  # all items alike: no structure to agree on


def test_cka_equals_its_definition_and_ignores_rotation_scale_and_width() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(7, w, generator=generator, dtype=torch.float64) for w in (3, 5))
    one, two = x @ x.T, y @ y.T
    h = torch.eye(7, dtype=torch.float64) - 1 / 7
    a, b = h @ one @ h, h @ two @ h
    expected = (a * b).sum() / (a.norm() * b.norm())
    torch.testing.assert_close(cka(one, two), expected)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    turned = 4 * x @ rotation
    torch.testing.assert_close(cka(turned @ turned.T, one), torch.tensor(1.0, dtype=torch.float64))


def test_triangles_come_back_square() -> None:
    z = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    kernel = z @ z.T
    sent = triangle(kernel)
    assert sent.shape == (15,)
    np.testing.assert_allclose(square(sent, 5), kernel, rtol=1e-6)


def test_the_server_averages_what_came() -> None:
    server = a_server()
    server.state = server.initial_state()
    server.aggregate_in(2, iter([update(0, [1, 2, 3, 4, 5, 6]), update(1, [3, 2, 1, 0, 1, 2])]))
    assert server.downlink_for(None, 2).kernel.tolist() == [2, 2, 2, 2, 3, 4]
    server.aggregate_in(2, iter([update(0, []), update(1, [])]))  # the exchange that trains
    assert len(server.downlink_for(None, 3).kernel) == 0


def test_kernels_of_another_size_are_refused() -> None:
    server = a_server()
    server.check_uplink(update(0, [0] * 6))
    with pytest.raises(PayloadError, match=r"kernel: 5 entries, expected 6 .* over 3 items"):
        server.check_uplink(update(0, [0] * 5))


def test_alignment_items_are_drawn_anew_and_clipped() -> None:
    run = parse_run_config({"method": "fedhenn", "public-size": 40, "fedhenn.items": 30})
    first, second = (alignment_items(run, number) for number in (2, 3))
    assert len(set(first.tolist())) == len(set(second.tolist())) == 30
    assert set(first.tolist()) != set(second.tolist())
    small = parse_run_config({"method": "fedhenn", "public-size": 40})
    assert sorted(alignment_items(small, 2).tolist()) == list(range(40))


def test_rounds_after_the_first_take_two_exchanges(tmp_path: Path) -> None:
    """eta_t = eta_0 sqrt(t) is 0 in round 1, which is plain local training."""
    run = run_federation(
        tmp_path, 3, method="fedhenn", image_size=16, models="five-cnns", fedhenn__items=10,
        fedhenn__step_items=4,
    )  # fmt: skip
    for number, scalars in ((1, 0), (2, 10 * 11 // 2)):
        rows = [r for r in run.rows("traffic") if r["round"] == str(number)]
        assert {int(r["scalars"]) for r in rows} == {scalars}
        assert {int(r["messages"]) for r in rows} == {number}
    assert {r["round"] for r in run.metrics(metric="loss_cka")} == {"2"}
    assert all(0 <= float(r["value"]) <= 0.01 for r in run.metrics(metric="loss_cka"))


def test_without_weight_it_is_local_training(tmp_path: Path) -> None:
    settings = {"image_size": 16, "models": "five-cnns", "tasks": "classification"}
    henn = run_federation(tmp_path / "a", 3, method="fedhenn", fedhenn__eta=0.0, **settings)
    local = run_federation(
        tmp_path / "b", 3, method="local", momentum=0.5, evaluate_when="post", **settings
    )
    assert henn.metrics(phase="post") == local.metrics(phase="post")
