"""The communication table of the FedRE paper: exact where shapes decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.costs import command as costs
from deploy.costs.command import measure_costs, read_cost
from deploy.costs.table import Cost, compare_with_paper, render
from strategies.base.method import method_names

SHAPES = {"fedre": (5_120, 513_000), "lg-fedavg": (513_000, 513_000), "local": (0, 0)}
METHODS = [name for name in (*SHAPES, "fedproto") if name in method_names()]


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, Cost], int]:
    found, pairs = measure_costs(METHODS)
    return {cost.method: cost for cost in found}, pairs


@pytest.mark.parametrize("method", [name for name in SHAPES if name in METHODS])
def test_shapes_decide_the_scalars(measured: tuple[dict[str, Cost], int], method: str) -> None:
    cost = measured[0][method]
    assert (cost.uplink_scalars, cost.downlink_scalars) == SHAPES[method], cost.note


def test_prototypes_follow_the_pairs_of_the_split(measured: tuple[dict[str, Cost], int]) -> None:
    if "fedproto" not in METHODS:
        pytest.skip("fedproto is not in this version")
    found, pairs = measured
    assert (found["fedproto"].uplink_scalars, found["fedproto"].downlink_scalars) == (
        512 * pairs,
        512_000,
    )
    # CIFAR-100's labels in ten Dirichlet(0.1) shares: the paper's split had 502 pairs.
    assert 450 < pairs < 550


def test_large_payloads_are_within_two_percent(measured: tuple[dict[str, Cost], int]) -> None:
    for cost in measured[0].values():
        assert cost.overhead is None or abs(cost.overhead) < 0.02, cost
    assert measured[0]["fedre"].overhead is not None


def test_evaluation_traffic_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "traffic.csv").write_text(
        "round,client,direction,messages,scalars,bytes,purpose\n"
        "1,0,uplink,1,10,41,train\n1,1,uplink,1,10,41,train\n1,0,downlink,1,0,3,train\n"
        "2,0,uplink,1,10,41,train\n2,0,downlink,1,10000,40400,train\n"
        "2,0,downlink,1,90000,360000,evaluate\n"
    )
    cost = read_cost("x", tmp_path)
    assert (cost.uplink_scalars, cost.downlink_scalars) == (20, 10_000)
    assert (cost.uplink_bytes, cost.downlink_bytes) == (82, 40_400)
    assert cost.overhead == pytest.approx(0.01)


def test_words_compare_with_the_paper() -> None:
    assert compare_with_paper(Cost("fedre", 5_120, 513_000), 500) == "up equal, down equal"
    assert compare_with_paper(Cost("fedproto", 256_000, 512_000), 500) == (
        "up = 512 x 500 pairs, down equal"
    )
    assert "up differs" in compare_with_paper(Cost("fedgen", 513_000, 600_000), 500)
    assert compare_with_paper(Cost("local", 0, 0), 500) == "not in the paper's table"


def test_the_command_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.json"
    monkeypatch.setattr("sys.argv", ["costs", "--methods", "local", "--json", str(path)])
    assert costs.main() == 0
    assert "local" in capsys.readouterr().out
    content = json.loads(path.read_text())
    assert content["methods"][0]["uplink_scalars"] == 0


def test_what_is_absent_or_failed_is_said() -> None:
    text = render([Cost("fedkd", note="not in this version"), Cost("fedre", note="failed: x")], 500)
    assert "not in this version" in text
    assert "4234.28" in text
    assert "failed: x" in text
