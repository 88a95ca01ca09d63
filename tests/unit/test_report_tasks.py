"""The report of runs with several tasks: no mean of unlike scores, and figures for delta."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from server_app.records.curves import losses, task_views
from server_app.records.histories import histories
from server_app.records.run_reader import read_run
from tests.unit.task_runs import (
    FEDMUSCLE,
    LOCAL,
    MIXED,
    a_round,
    finish,
    metrics_of,
    published,
    record,
    write_clients,
)
from tests.unit.test_report import page_of, parse

METRICS = metrics_of(MIXED)
DASH = html.unescape("&ndash;")
FIRST = {0: 0.2, 1: 0.4, 2: 0.5, 3: 0.9, 4: 0.15, 5: 0.25}
LAST = {0: 0.3, 1: 0.5, 2: 0.6, 3: 0.8, 4: 0.35, 5: 0.65}


def mixed_run(directory: Path, tasks: tuple[str, ...] = MIXED) -> Path:
    """Write a run of two rounds; the best round of multilabel is the first by validation."""
    write_clients(directory, tasks)
    clients = range(len(tasks))
    first = a_round(1, METRICS, {i: FIRST[i] for i in clients}, validations={0: 0.9, 2: 0.1})
    last = a_round(2, METRICS, {i: LAST[i] for i in clients}, validations={0: 0.1, 2: 0.9})
    record(directory, [first, last])
    finish(directory, tasks)
    return directory


def text_of(page: str) -> str:
    text = html.unescape(re.sub("<[^>]+>", " ", page))
    return re.sub(r"\s+", " ", text)  # thin spaces, too


def rows_of(page: str, heading: str) -> list[list[str]]:
    table = page.split(f"<h2>{heading}</h2>")[1].split("</table>", maxsplit=1)[0]
    return [
        [text_of(cell).strip() for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line)]
        for line in table.split("<tr")[1:]
    ]


def test_every_task_has_a_chart_and_a_figure_of_its_own(tmp_path: Path) -> None:
    page = page_of(mixed_run(tmp_path / "run"))
    parse(page)
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert titles[:7] == [
        "Multilabel map over rounds", "Classification accuracy over rounds",
        "Segmentation miou over rounds", "Text accuracy over rounds",
        "Last score by architecture", "Scores over traffic", "Training loss",
    ]  # fmt: skip
    figures = re.findall(r"<dt>(final .*?|best .*?)</dt><dd[^>]*>(.*?)</dd>", page)
    assert [(name, text_of(value).strip()) for name, value in figures] == [
        ("final multilabel map", "40.0 %"), ("final classification accuracy", "70.0 %"),
        ("final segmentation miou", "35.0 %"), ("final text accuracy", "65.0 %"),
    ]  # fmt: skip
    assert "best 30.0 % in round 1, chosen by highest validation map" in text_of(page)
    assert "best 70.0 % in round 2, chosen by highest validation accuracy" in text_of(page)
    assert "<h1>fedre <span>on</span> multilabel, classification, segmentation, text</h1>" in page


def test_no_mean_mixes_tasks(tmp_path: Path) -> None:
    """Neither of all clients (53.3 %) nor of all accuracies (68.3 %), nor over models."""
    page = text_of(page_of(mixed_run(tmp_path / "run")))
    assert "53.3 %" not in page
    assert "68.3 %" not in page
    for words in ("mean over models", "mean ± std over clients", "worst client", "final accuracy"):
        assert words not in page
    points = [re.findall(r"round 2: mean ([\d.]+) %", page).count(v) for v in ("40.0", "70.0")]
    assert points == [2, 2]  # over rounds, over traffic


def test_the_tables_of_clients_and_tasks_name_task_and_metric(tmp_path: Path) -> None:
    page = page_of(mixed_run(tmp_path / "run"))
    clients = rows_of(page, "Clients")
    assert clients[0][:3] == ["id", "task", "model"]
    assert [row[1] for row in clients[1:4]] == [
        "multilabel@scenes map", "multilabel@scenes map",
        "classification@fashion-mnist[0-4] accuracy",
    ]  # fmt: skip
    at = clients[0].index("first")
    assert clients[1][at : at + 3] == ["20.0 %", "20.0 %", "30.0 %"]
    assert "delta" not in clients[0]
    assert rows_of(page, "Scores by task")[1:3] == [
        ["multilabel", "map", "2", "2", "40.0 %", "30.0 % round 1", DASH],
        [
            "classification",
            "accuracy",
            "2",
            "2",
            "70.0 %",
            "70.0 % round 2",
            html.unescape("&ndash;"),
        ],
    ]
    assert "“best” is the highest score measured" in page  # segmentation has no validation values


def test_losses_of_unlike_tasks_are_not_averaged(tmp_path: Path) -> None:
    run = read_run(mixed_run(tmp_path / "run"))
    # Client i's loss is 1 + i; clients 0 and 1, then 2 and 3, share a task.
    assert {name: line[0] for name, line in losses(run).items()} == {
        "loss · multilabel": (1.0, 1.5), "loss · classification": (1.0, 3.5),
        "loss · segmentation": (1.0, 5.0), "loss · text": (1.0, 6.0),
    }  # fmt: skip


def test_clients_are_followed_by_their_own_score(tmp_path: Path) -> None:
    found, _ = histories(read_run(mixed_run(tmp_path / "run")))
    assert {client: (entry.first, entry.final) for client, entry in found.items()} == {
        client: (FIRST[client], LAST[client]) for client in FIRST
    }
    assert (found[0].best, found[2].best) == (0.2, 0.6)


def test_costs_are_those_of_all_clients(tmp_path: Path) -> None:
    """Multilabel passes 40 % in round 2, after two rounds of 6 clients x 10 scalars up."""
    page = page_of(mixed_run(tmp_path / "run"))
    part = page.split("<h3>Cost to reach a multilabel map</h3>")[1].split("</table>")[0]
    (row,) = re.findall(r"<th scope=row>40\u202f%</th>(.*?)</tr>", part)
    assert text_of(row).split()[:3] == ["2", "120", "360"]


def test_one_task_of_another_metric_is_named_and_compared_by_architecture(tmp_path: Path) -> None:
    page = page_of(mixed_run(tmp_path / "run", MIXED[:2]))
    assert "<h1>fedre <span>on</span> multilabel@scenes</h1>" in page
    assert "<h3>Multilabel map over traffic</h3>" in page
    rows = rows_of(page, "Multilabel map by architecture")
    assert rows[0] == ["model", "clients", "evaluated", "map"]
    assert rows[1:] == [
        ["vit-tiny", "1", "1", "30.0 %"], ["vit-small", "1", "1", "50.0 %"],
        ["mean over models", "", "", "40.0 %"],
    ]  # fmt: skip
    assert "accuracy" not in page.split("<h2>Settings</h2>")[0].replace("accuracy, mean", "")


def test_a_run_still_going_shows_its_latest_scores(tmp_path: Path) -> None:
    run = mixed_run(tmp_path / "run")
    (run / "summary.json").unlink()
    page = text_of(page_of(run))
    assert "latest multilabel map 40.0 % round 2; 2 of 2 clients" in page
    assert "final" not in page.split("Scores and loss")[0]
    write_clients(tmp_path / "new", MIXED)
    record(tmp_path / "new", [a_round(1, METRICS, {})])
    page = text_of(page_of(tmp_path / "new"))
    assert page.count("no evaluation so far") == 4


def test_delta_is_shown_with_its_clients(tmp_path: Path) -> None:
    published(tmp_path / "alone", LOCAL, method="local")
    published(tmp_path / "run", FEDMUSCLE, local_run="alone")
    page = page_of(tmp_path / "run")
    parse(page)
    text = text_of(page)
    assert "delta against alone +36.7 % mean relative change of 3 clients' last scores: " in text
    assert "multilabel +9.9 %, classification +50.1 %" in text
    clients = rows_of(page, "Clients")
    at = clients[0].index("delta")
    assert [row[at] for row in clients[1:]] == ["+9.9 %", "+48.0 %", "+52.1 %"]
    assert [row[-1] for row in rows_of(page, "Scores by task")[1:]] == ["+9.9 %", "+50.1 %"]
    chart = page.split("<h3>Change against alone</h3>")[1].split("</figure>")[0]
    bars = re.findall(r'<rect class="bar (m\d)"[^>]*height="([\d.]+)"><title>(.*?)</title>', chart)
    assert [(bar[0], bar[2].replace("\u202f", " ")) for bar in bars] == [
        ("m0", "client 0: +9.9 %"), ("m1", "client 1: +48.0 %"), ("m1", "client 2: +52.1 %")
    ]  # fmt: skip
    heights = [float(bar[1]) for bar in bars]
    assert heights[2] / heights[0] == pytest.approx(52.0905 / 9.8648, rel=0.01)


def test_losses_against_the_reference_hang_below_the_axis(tmp_path: Path) -> None:
    published(tmp_path / "alone", FEDMUSCLE, method="local")
    published(tmp_path / "run", LOCAL, local_run="alone")
    page = page_of(tmp_path / "run")
    parse(page)
    chart = page.split("<h3>Change against alone</h3>")[1].split("</figure>")[0]
    zero = float(re.findall(r'<path class="axis" d="M\d+ ([\d.]+)H', chart)[-1])
    tops = [float(y) for y in re.findall(r'<rect class="bar m\d" x="[\d.]+" y="([\d.]+)"', chart)]
    assert tops == [pytest.approx(zero, abs=0.11)] * 3


def test_what_delta_leaves_out_and_why_there_is_none_is_said(tmp_path: Path) -> None:
    published(tmp_path / "alone", {0: 0.0, 1: 0.5, 2: 0.5}, method="local")
    published(tmp_path / "run", FEDMUSCLE, local_run="alone")
    page = text_of(page_of(tmp_path / "run"))
    assert "not in it: client 0 (its score in alone is 0)" in page
    published(tmp_path / "bad", FEDMUSCLE, local_run="gone")
    page = page_of(tmp_path / "bad")
    parse(page)
    assert "No comparison with a Local run: local-run = &#39;gone&#39;: there is no comp" in page
    assert "delta against" not in page


def test_a_run_without_tasks_has_one_view_of_everything(tmp_path: Path) -> None:
    run = read_run(mixed_run(tmp_path / "run", ("classification",) * 2))
    (view,) = task_views(run)
    assert (view.name, view.title, view.run) == ("accuracy", "Accuracy", run)
    page = page_of(tmp_path / "run")
    assert "<h2>Accuracy and loss</h2>" in page
    assert "Scores by task" not in page
    assert rows_of(page, "Clients")[0][:2] == ["id", "model"]
