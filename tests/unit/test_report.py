"""The report, written from synthetic run directories."""

import csv
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from server_app.records.curves import Point, TaskView, losses
from server_app.records.histories import histories
from server_app.records.run_reader import RunRecords, read_run
from server_app.records.spending import Spent, flops_per_round, spent_before, training_flops
from server_app.report import tables, write_report
from strategies.base.kept import GROWTH

MODELS = ("cnn1", "cnn2", "resnet10", "mlp", "vit-tiny")
HEADERS = {
    "clients": "client,model,parameters,raw_dim,feature_dim,classes,class_counts,train_examples,"
    "validation_examples,test_examples,device,data_hash",
    "metrics": "round,client,phase,metric,value,examples",
    "rounds": "round,seconds,client_compute_s,participants,failed,evaluated,accuracy,"
    "validation_accuracy",
    "traffic": "round,client,direction,messages,scalars,bytes,purpose",
    "failures": "round,client,kind,reason",
}


def write_csv(run: Path, name: str, rows: Iterable[Sequence[object]]) -> None:
    with (run / f"{name}.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(HEADERS[name].split(","))
        writer.writerows(rows)


def write_config(run: Path, **changes: Any) -> None:
    config = {
        "method": "fedre", "dataset": "digits", "num-rounds": 20, "sample-fraction": 0.8,
        "test-split": "personal", "partition": "dirichlet", "alpha": 0.1, "batch-size": 32,
        "models": "cnn5", "feature-dim": 512, "local-epochs": 1, "amp": False, "resume": "",
        "evaluate-when": "pre", "fedre.mechanism": "RAP", "fedre.server-epochs": 10,
    }  # fmt: skip
    content = {
        "run_name": "fedre-digits-seed0", "status": "completed", "config": config,
        "versions": {"wildflower": "0.1.0", "flwr": "1.42.0", "torch": "2.9.0", "python": "3.11.7"},
        "git_revision": "47df880", "seed": 0, "split_hash": "9f2c1d7ab03e55c1",
        "started": "2026-11-27T22:50:11+00:00", "machine": "2 cores, 8 GB",
    }  # fmt: skip
    (run / "config.json").write_text(json.dumps(content | changes), encoding="utf-8")


def write_summary(run: Path, clients: int, rounds: int, **accuracy: Any) -> None:
    content = {
        "method": "fedre", "dataset": "digits", "clients": clients, "rounds": rounds, "seed": 0,
        "accuracy": {
            "final": 0.8312, "best": 0.8401, "best_round": rounds - 2, "mean_over_clients": 0.8127,
            "std_over_clients": 0.0713, "worst_client": 0.6604, "clients_evaluated": clients,
            "best_by": "validation", "test_split": "personal", "model": "personal",
        } | accuracy,
        "traffic": {
            "uplink_scalars_per_round": 522 * clients, "downlink_scalars_per_round": 5130 * clients,
            "uplink_bytes": 2208 * clients * rounds, "downlink_bytes": 20520 * clients * rounds,
            "evaluation_uplink_bytes": 90 * clients, "evaluation_downlink_bytes": 20520 * clients,
        },
        "time": {"total_s": 74.21, "round_s_median": 3.41, "client_compute_s": 101.5,
                 "efficiency": 0.742},
        "clients_failed": 3,
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(content), encoding="utf-8")


def card_rows(clients: int, classes: int, rng: np.random.Generator) -> list[list[object]]:
    rows: list[list[object]] = []
    for client in range(clients):
        counts = np.floor(rng.dirichlet(np.full(classes, 0.25)) * 400).astype(int)
        held = np.flatnonzero(counts)
        total = int(counts.sum())
        rows.append([
            client, MODELS[client % len(MODELS)], 40_000 * (1 + client % 5) + 58, 256, 512,
            " ".join(map(str, held)), " ".join(str(counts[label]) for label in held),
            total, total // 9, total // 3, "cpu", f"{client:08x}",
        ])  # fmt: skip
    return rows


def metric_rows(clients: int, rounds: int, rng: np.random.Generator) -> list[list[object]]:
    rows: list[list[object]] = []
    top = rng.normal(0.84, 0.06, clients).clip(0.55, 0.97)
    for number in range(1, rounds + 2):
        last = number > rounds
        for client in range(clients):
            reach = top[client] * (1 - 0.85 * np.exp(-number / (3 + client % 5)))
            value = float(np.clip(reach + rng.normal(0, 0.012), 0, 1))
            phase, at = ("final", rounds) if last else ("pre", number)
            tests = 80 + 7 * (client % 9)
            rows.append([at, client, phase, "accuracy", f"{value:.6f}", tests])
            rows.append([at, client, phase, "validation_accuracy", f"{value * 0.97:.6f}", 30])
            if not last and (client + number) % 5:
                loss = 2.3 * np.exp(-number / 6) + 0.08 + rng.normal(0, 0.01)
                for name, share in (("loss", 1.0), ("loss_ce", 0.8), ("loss_prototype", 0.02)):
                    rows.append([number, client, "train", name, f"{abs(loss) * share:.6f}", 250])
                rows.append([number, client, "train", "examples_seen", "250.0", 250])
                rows.append([number, client, "train", "flops", repr(2.5e9), 250])
        if not last:
            rows.append([number, "server", "aggregate", "server_loss", f"{1.4 / number:.6f}", ""])
    return rows


def traffic_rows(clients: int, rounds: int) -> list[list[object]]:
    rows: list[list[object]] = []
    for client in range(clients):
        rows += [
            [0, client, "downlink", 1, 0, 210, "query"],
            [0, client, "uplink", 1, 0, 830, "query"],
        ]
        for number in range(1, rounds + 1):
            if (client + number) % 5:
                rows.append([number, client, "downlink", 1, 5130, 20752, "train"])
                rows.append([number, client, "uplink", 1, 522, 2311, "train"])
            else:
                rows.append([number, client, "downlink", 1, 5130, 20752, "evaluate"])
                rows.append([number, client, "uplink", 1, 0, 240, "evaluate"])
    return rows


def write_run(run: Path, clients: int = 10, rounds: int = 20, classes: int = 10) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    write_config(run)
    write_summary(run, clients, rounds)
    write_csv(run, "clients", card_rows(clients, classes, rng))
    write_csv(run, "metrics", metric_rows(clients, rounds, rng))
    times = [(n, 3.2 + rng.gamma(2, 0.2), 4.6 + rng.gamma(2, 0.3)) for n in range(1, rounds + 1)]
    write_csv(run, "rounds", [
        [n, f"{wall:.3f}", f"{work:.3f}", clients * 4 // 5, 0, clients, "0.8", ""]
        for n, wall, work in times
    ])  # fmt: skip
    write_csv(run, "traffic", traffic_rows(clients, rounds))
    write_csv(run, "failures", [
        [4, 3, "timeout", "no reply within 60 s"],
        [9, 3, "error", "RuntimeError: CUDA out of memory\n  in client_app/train.py, line 88"],
        [12, 7, "payload", "representation: 1 of 512 values is not finite"],
    ])  # fmt: skip
    return run


class Balance(HTMLParser):
    """Collect the tags used and check that each one is closed in order."""

    VOID = ("meta", "path", "circle", "rect", "ellipse")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.VOID or self.open.pop() == tag, f"unbalanced </{tag}>"


def page_of(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


def points_of(run: RunRecords) -> list[Point]:
    return TaskView("", "accuracy", run).points


def parse(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_page_shows_the_key_figures_and_says_what_stands_behind_them(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))
    parse(page)
    for text in ("83.1\u202f%", "84.0\u202f%", "81.3\u202f% ± 7.1", "66.0\u202f%", "74\u202f%",
                 "10 of 10 clients, personal models, personal test split",
                 "round 18, chosen by highest validation accuracy", "resnet10", "fedre.mechanism",
                 "CUDA out of memory", "9f2c1d7ab03e55c1", "server_loss"):  # fmt: skip
        assert text in page, text
    pages = [path.name for path in (tmp_path / "run").iterdir() if "report" in path.name]
    assert pages == ["report.html"]


def test_page_has_the_accuracy_by_architecture(tmp_path: Path) -> None:
    """cnn1 has (0.2 * 10 + 0.6 * 30) / 40 = 0.5, cnn2 0.8, resnet10 nothing; their mean is 0.65."""
    run = write_run(tmp_path / "run", clients=3)
    cards = card_rows(5, 10, np.random.default_rng(0))
    for card, model in zip(cards, ("cnn1", "cnn2", "cnn1", "resnet10", "resnet10"), strict=True):
        card[1] = model
    write_csv(run, "clients", cards)
    write_csv(run, "metrics", [
        [1, 0, "pre", "accuracy", "0.9", 10], [1, 3, "pre", "accuracy", "0.9", 10],
        [1, 0, "final", "accuracy", "0.2", 10], [1, 2, "final", "accuracy", "0.6", 30],
        [1, 1, "final", "accuracy", "0.8", 5],
    ])  # fmt: skip
    page = page_of(run)
    parse(page)
    table = page.split("<h2>Accuracy by architecture</h2>")[1].split("</table>")[0]
    rows = [
        [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", line)]
        for line in table.split("<tr>")[2:]
    ]
    assert rows == [
        ["cnn1", "2", "2", "50.0\u202f%"], ["cnn2", "1", "1", "80.0\u202f%"],
        ["resnet10", "2", "0", "&ndash;"], ["mean over models", "", "", "65.0\u202f%"],
    ]  # fmt: skip
    assert "final evaluation" in table
    for card in cards:
        card[1] = "cnn1"
    write_csv(run, "clients", cards)
    assert "<h2>Accuracy by architecture</h2>" not in page_of(run)


def test_page_asks_for_nothing_from_outside(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path))
    for _, attributes in parse(page).seen:
        assert not {"src", "href", "srcset", "action"} & attributes.keys()
    assert not re.search(r"https?:|url\(|@import", page)


def test_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    assert page_of(write_run(tmp_path / "run")) == page_of(tmp_path / "run")


def test_means_are_weighted_by_examples_and_spread_is_not(tmp_path: Path) -> None:
    write_csv(tmp_path, "metrics", [
        [1, 0, "pre", "accuracy", 0.5, 10], [1, 1, "pre", "accuracy", 1.0, 30],
        [1, 0, "final", "accuracy", 0.75, 10], [1, 1, "final", "accuracy", "", 30],
        [1, 0, "train", "loss", 2.0, 1], [1, 1, "train", "loss", 1.0, 3],
        [1, "server", "aggregate", "server_loss", 0.5, ""],
    ])  # fmt: skip
    write_csv(tmp_path, "traffic", [
        [1, 0, "uplink", 1, 10, 40, "train"], [1, 0, "downlink", 1, 5, 20, "train"],
        [1, 1, "downlink", 1, 5, 20, "evaluate"],
    ])  # fmt: skip
    run = read_run(tmp_path)
    points = points_of(run)
    assert [(p.x, p.label, p.mean, p.std, p.clients) for p in points] == [
        (1.0, "round 1", 0.875, 0.25, 2),
        (2.0, "final", 0.75, 0.0, 1),
    ]
    assert losses(run) == {"loss": [(1.0, 1.25)], "server_loss": [(1.0, 0.5)]}
    # A value measured before the training of round 1 has cost nothing yet.
    # (Nobody counted its operations, so those of the finished round are not known.)
    assert spent_before(run, points) == [
        Spent(rounds=0, bytes=0.0, up_scalars=0.0, down_scalars=0.0, flops=0.0),
        Spent(rounds=1, bytes=60.0, up_scalars=10.0, down_scalars=5.0, flops=None),
    ]


COUNTED = [
    [1, 0, "train", "flops", 2e9, 10], [1, 1, "train", "flops", 3e9, 30],
    [2, 0, "train", "flops", 4e9, 10], [2, 1, "train", "flops", 3.5e12, 30],
    [3, 1, "train", "flops", 1e12, 30],
]  # fmt: skip
ACCURACIES = ((1, 0.2), (2, 0.45), (3, 0.8))


@pytest.mark.parametrize(
    ("phase", "rounds", "flops"),
    [("pre", [0, 1, 2], [0.0, 5e9, 3.509e12]), ("post", [1, 2, 3], [5e9, 3.509e12, 4.509e12])],
)
def test_operations_before_an_evaluation_follow_the_rule_of_traffic(
    tmp_path: Path, phase: str, rounds: list[int], flops: list[float]
) -> None:
    tests = [[number, 0, phase, "accuracy", value, 10] for number, value in ACCURACIES]
    write_csv(tmp_path, "metrics", [*COUNTED, *tests, [3, 0, "final", "accuracy", 0.9, 10]])
    run = read_run(tmp_path)
    assert training_flops(run) == {1: 5e9, 2: 3.504e12, 3: 1e12}
    assert flops_per_round(run) == 3.504e12
    spent = spent_before(run, points_of(run))
    if phase == "pre":  # the closing evaluation has a place of its own, after everything
        assert (spent[-1].rounds, spent.pop().flops) == (3, 4.509e12)
    assert [entry.rounds for entry in spent] == rounds
    assert [entry.flops for entry in spent] == flops
    assert {entry.bytes for entry in spent} == {None}  # there is no traffic.csv


def test_page_shows_operations_beside_rounds_and_scalars(tmp_path: Path) -> None:
    tests = [[number, 0, "pre", "accuracy", value, 10] for number, value in ACCURACIES]
    write_csv(tmp_path, "metrics", [*COUNTED, *tests])
    write_csv(tmp_path, "traffic", [
        [number, client, way, 1, scalars, 4 * scalars, "train"]
        for number in (1, 2, 3) for client in (0, 1)
        for way, scalars in (("uplink", 500), ("downlink", 700))
    ])  # fmt: skip
    page = page_of(tmp_path)
    parse(page)
    assert "<dt>training FLOPs / round</dt><dd>3.5\u202fT</dd>" in page
    cells = re.findall(r"<th scope=row>(\d+\u202f%)</th>((?:<td[^>]*>[^<]*</td>)+)", page)
    table = {level: re.findall(r"<td[^>]*>([^<]*)", row) for level, row in cells}
    after_one = ["1", "1\u202fk", "1.4\u202fk", "9.6\u202fkB", "5\u202fG"]
    after_two = ["2", "2\u202fk", "2.8\u202fk", "19.2\u202fkB", "3.51\u202fT"]
    assert table == {
        "30\u202f%": after_one, "40\u202f%": after_one,
        "50\u202f%": after_two, "60\u202f%": after_two,
        "70\u202f%": after_two, "80\u202f%": after_two,
    }  # fmt: skip


def test_operations_that_a_client_did_not_count_leave_the_sum_unknown(tmp_path: Path) -> None:
    tests = [[number, 0, "post", "accuracy", value, 10] for number, value in ACCURACIES]
    write_csv(tmp_path, "metrics", [*COUNTED, *tests, [2, 5, "train", "loss", 0.5, 10]])
    run = read_run(tmp_path)
    assert training_flops(run) == {1: 5e9, 2: None, 3: 1e12}
    points = points_of(run)
    assert [entry.flops for entry in spent_before(run, points)] == [5e9, None, None]
    assert flops_per_round(run) is None
    page = page_of(tmp_path)
    assert '<dt>training FLOPs / round</dt><dd><span class="none">not recorded</span>' in page


def test_counters_of_training_are_no_loss_terms(tmp_path: Path) -> None:
    write_run(tmp_path)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write(f"20,0,train,{GROWTH},1500.0,250\n")
    run = read_run(tmp_path)
    assert {"flops", "examples_seen", GROWTH} <= set(run.metrics["metric"])
    assert list(losses(run)) == ["loss", "loss_ce", "loss_prototype", "server_loss"]


def test_closing_evaluation_replaces_the_last_one_measured_after_training(tmp_path: Path) -> None:
    write_csv(tmp_path, "metrics", [
        [1, 0, "post", "accuracy", 0.5, 10], [2, 0, "post", "accuracy", 0.6, 10],
        [2, 0, "final", "accuracy", 0.7, 10],
    ])  # fmt: skip
    points = points_of(read_run(tmp_path))
    assert [(p.x, p.mean) for p in points] == [(1.0, 0.5), (2.0, 0.7)]


def test_best_of_a_client_follows_its_validation_accuracy(tmp_path: Path) -> None:
    write_csv(tmp_path, "metrics", [
        [1, 0, "pre", "accuracy", 0.9, 10], [1, 0, "pre", "validation_accuracy", 0.2, 5],
        [2, 0, "pre", "accuracy", 0.6, 10], [2, 0, "pre", "validation_accuracy", 0.4, 5],
    ])  # fmt: skip
    found, by_validation = histories(read_run(tmp_path))
    assert (by_validation, found[0].first, found[0].best, found[0].final) == (True, 0.9, 0.6, 0.6)


def test_failed_run_without_summary_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "summary.json").unlink()
    write_config(run, status="failed", reason="RunError: <none> answered")
    page = page_of(run)
    parse(page)
    assert "This run failed: RunError: &lt;none&gt; answered. Figures are those so far." in page
    assert "latest accuracy" in page
    assert "final accuracy" not in page


def test_a_run_that_failed_in_its_first_round_counts_who_failed(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "summary.json").unlink()
    write_config(run, status="failed", reason="RunError: x")
    for name in ("metrics", "traffic", "rounds"):
        write_csv(run, name, [])
    write_csv(run, "failures", [[1, client, "train", "ValueError: x"] for client in (4, 7)])
    assert "<dt>failures</dt><dd>2</dd>" in page_of(run)
    write_csv(run, "failures", [])
    assert "<dt>failures</dt><dd>2</dd>" not in page_of(run)


def test_interrupted_run_says_how_it_goes_on(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "summary.json").unlink()
    write_config(run, status="interrupted", reason="stopped; go on with resume='a<b'")
    page = page_of(run)
    parse(page)
    assert "This run was interrupted: stopped; go on with resume=&#39;a&lt;b&#39;. Fig" in page
    write_config(run, status="interrupted")
    assert "This run was interrupted: no reason is recorded." in page_of(run)


def test_run_without_evaluation_shows_no_accuracy(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_summary(run, 10, 20, final=None, best=None, best_round=None, mean_over_clients=None,
                  std_over_clients=None, worst_client=None, clients_evaluated=0)  # fmt: skip
    rows = list(csv.reader((run / "metrics.csv").open(encoding="utf-8")))
    write_csv(run, "metrics", [row for row in rows[1:] if "accuracy" not in row[3]])
    page = page_of(run)
    parse(page)
    assert page.count("not evaluated") >= 4
    assert "0 of 10 clients" in page
    assert "Not evaluated." in page
    assert "0.0\u202f%" not in page


@pytest.mark.parametrize("headers_only", [False, True])
def test_empty_run_directory_invents_nothing(tmp_path: Path, headers_only: bool) -> None:
    for name in HEADERS if headers_only else ():
        write_csv(tmp_path, name, [])
    page = page_of(tmp_path)
    parse(page)
    body = page.split("<main>")[1].split("<script>")[0]
    assert "not recorded" in body
    assert "<dd>0" not in body
    assert "0.0\u202f%" not in body


def test_thousand_clients_stay_small_and_say_what_is_drawn(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, clients=1000, rounds=30, classes=100))
    parse(page)
    assert len(page.encode()) < 3_000_000
    assert "60 of 1000 client lines are drawn" in page
    assert page.count('class="line client') == 60


def test_ten_thousand_clients_are_told_by_the_lowest(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, clients=10_000, rounds=2, classes=10))
    parse(page)
    assert len(page.encode()) < 5_000_000
    assert page.count('<tr title="') == tables.MOST_CLIENTS
    assert "The 2\u202f000 clients with the lowest final score are shown" in page
    assert "have the other 8\u202f000, too." in page


def test_the_lowest_are_shown_and_who_has_no_score_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_CLIENTS", 2)
    cards = [SimpleNamespace(client=number) for number in (0, 1, 2, 3)]
    finals = {0: 0.9, 1: 0.0, 3: 0.4}
    past = {client: SimpleNamespace(final=final) for client, final in finals.items()}
    assert [card.client for card in tables.lowest(cards, past)] == [1, 3]  # type: ignore[arg-type]


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    evil = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 191 }}{% endif %}"
    cards = card_rows(3, 10, np.random.default_rng(0))
    for card in cards:
        card[1] = card[10] = evil
    write_csv(run, "clients", cards)
    write_csv(run, "failures", [[1, evil, evil, evil]])
    write_config(run, run_name=evil, status=evil, started=evil, machine=evil, git_revision=evil,
                 config={"method": evil, evil: evil}, versions={evil: evil})  # fmt: skip
    rows = [[1, 0, "train", f"loss_{evil}", 1, 1], [1, 0, "pre", "accuracy", 0.5, 1]]
    write_csv(run, "metrics", [*rows, [1, 0, "pre", f"accuracy_{evil}", 0.5, 1]])
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    summary["accuracy"] |= {"best_by": evil, "test_split": evil, "model": evil, "best_round": evil}
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    summary["delta"] = {"against": evil, "percent": 1.0, "by_client": {"0": 1.0},
                        "by_task": {evil: 1.0}, "left_out": {evil: evil}}  # fmt: skip
    summary["delta_reason"] = evil
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    page = page_of(run)
    seen = parse(page).seen
    tags = [tag for tag, _ in seen]
    assert tags.count("script") == 1
    assert "img" not in tags
    # Nothing has left its attribute, and nothing was taken for a template.
    assert not any(name.startswith("on") for _, attributes in seen for name in attributes)
    assert "1337" not in page
    assert "{{ 7 * 191 }}" in page


@pytest.mark.parametrize(
    ("name", "row", "complaint"),
    [
        ("metrics", "1,0,pre,accuracy,high,10", "could not convert"),
        ("metrics", "1,0,pre,accuracy", "expected 6 fields, got 4"),
        ("traffic", "1,0,sideways,1,2,3,train", "neither 'uplink' nor 'downlink'"),
        ("clients", "0,cnn,1,1,1,0 1,5,5,1,1,cpu,x", "2 classes but 1 class_counts"),
        ("rounds", "one,1,1,1,0,1,,", "invalid literal"),
        ("failures", "1,0,error,why,more", "expected 4 fields, got 5"),
    ],
)
def test_malformed_row_names_file_and_line(
    tmp_path: Path, name: str, row: str, complaint: str
) -> None:
    path = tmp_path / f"{name}.csv"
    path.write_text(f"{HEADERS[name]}\n{row}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=complaint) as caught:
        write_report(tmp_path)
    assert f"{path}, line 2" in str(caught.value)
    assert "repair or delete that line" in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_last_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    text = f"{HEADERS['metrics']}\n1,0,pre,accuracy,0.5,10\n1,1,pre,accu"
    (tmp_path / "metrics.csv").write_text(text, encoding="utf-8")
    assert list(read_run(tmp_path).metrics["value"]) == [0.5]


def test_closing_row_is_no_round_of_its_own(tmp_path: Path) -> None:
    header = HEADERS["rounds"] + ",workers,closing"
    rows = "1,2.5,4.0,2,0,2,0.5,,2,False\n1,0.5,0.8,0,0,2,0.6,,2,True\n"
    (tmp_path / "rounds.csv").write_text(f"{header}\n{rows}", encoding="utf-8")
    assert list(read_run(tmp_path).rounds["seconds"]) == [2.5]


def test_missing_column_and_broken_json_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("round,client\n1,0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: column 'value' is missing"):
        write_report(tmp_path)
    (tmp_path / "metrics.csv").unlink()
    (tmp_path / "summary.json").write_text('{"method":\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"summary\.json, line 2"):
        write_report(tmp_path)


def test_missing_directory_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run directory"):
        write_report(tmp_path / "nowhere")


def test_tables_and_templates_are_loaded_for_results_alone() -> None:
    """Neither a client nor the start of a server waits for pandas (0.6 s) and jinja2."""
    code = (
        "import sys, client_app.app, server_app.app, server_app.rounds.loop\n"
        "print([name for name in ('pandas', 'jinja2', 'psutil') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Cards without task and class counts, rounds without workers and closing."""
    (tmp_path / "clients.csv").write_text("client,model,data_hash\n1,cnn5,b\n0,cnn4,a\n")
    write_csv(tmp_path, "rounds", [[1, 2.5, 4.0, 2, 0, 2, 0.5, ""]])
    write_csv(tmp_path, "metrics", [[1, 0, "post", "accuracy", 0.5, ""]])
    run = read_run(tmp_path)
    assert [(card.client, card.model, card.train_examples) for card in run.clients] == [
        (0, "cnn4", None), (1, "cnn5", None)
    ]  # fmt: skip
    assert (len(run.rounds), len(run.closing)) == (1, 0)
    assert [point.mean for point in points_of(run)] == [0.5]
    parse(page_of(tmp_path))


@pytest.mark.parametrize("clients", [3, 100, 1000])
@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_client_sizes_are_a_histogram(tmp_path: Path, clients: int, sigma: float) -> None:
    sizes = np.random.default_rng(1).lognormal(5, sigma, clients).astype(int) + 1
    cards = card_rows(clients, 10, np.random.default_rng(0))
    for card, size in zip(cards, sizes, strict=True):
        card[7] = size
    cards[0][7] = 0
    sizes[0] = 0
    write_csv(tmp_path, "clients", cards)
    page = page_of(tmp_path)
    parse(page)
    chart = page.split("<h3>Client sizes</h3>")[1].split("</figure>")[0]
    assert "1 have none and are not drawn." in chart
    bars = re.findall(r"<title>([\d,]+)(?: to ([\d,]+))? examples: (\d+) clients?</title>", chart)
    assert 2 <= len(bars) <= 24
    spans = [
        (int(low.replace(",", "")), int((high or low).replace(",", "")), int(count))
        for low, high, count in bars
    ]
    for low, high, count in spans:
        assert count == ((sizes >= low) & (sizes <= high)).sum()
    assert sum(count for *_, count in spans) == clients - 1
    places = [float(x) for x in re.findall(r'<text x="([\d.]+)" y="276', chart)]
    assert len(places) >= 2
    assert all(right - left > 20 for left, right in itertools.pairwise(places))


def test_without_sizes_there_is_no_histogram(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text("client,model\n0,cnn5\n")
    assert "Client sizes" not in page_of(tmp_path)
