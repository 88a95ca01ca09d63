"""The benchmark's arithmetic and parsing; nothing here is timed."""

from __future__ import annotations

import io
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from flwr.supercore.primitives.asymmetric import generate_key_pairs
from flwr.supercore.task_identity import TaskIdentity

from server_app.records.csv_files import HEADERS
from strategies.base.messages import CLIENT_INFO, ClientInfo
from strategies.base.method import get_method
from strategies.base.parsing import default_run_config, parse_run_config
from strategies.base.replies import read_reply
from tests.benchmarks import gpu, workloads
from tests.benchmarks.__main__ import NAMES
from tests.benchmarks.baseline import Bare, Baseline
from tests.benchmarks.figures import Goal, goals, run_figures, table
from tests.benchmarks.fleet_load import ROUND
from tests.benchmarks.machine import processor
from tests.benchmarks.measured import SERVER, WORKER, Measured, Watch, _size
from tests.benchmarks.memory import Peaks
from tests.benchmarks.private_state import KINDS, MODULE, mean_parts, write_app
from tests.benchmarks.startup import third_party
from tests.benchmarks.synthetic_device import CLASSES, EXAMPLES, WIDTH, SyntheticDevice


def measured(**values: Any) -> Measured:
    settings: dict[str, Any] = {
        "start_up_s": 12.0,
        "round_s": [4.0, 6.0, 5.0],
        "recorded_s": [3.9, 5.9, 4.9],
        "compute_s": [8.0, 9.0, 10.0],
        "participants": 10,
        "evaluated": 100,
        "workers": 2,
        "peaks": {
            SERVER: {"highest": 500_000_000, "anonymous": 200_000_000},
            WORKER: {"highest": 400_000_000, "anonymous": 100_000_000},
        },
        "disk_bytes": 3_000_000,
        "total_s": 60.0,
        "accuracy": 0.5,
    }
    return Measured(**(settings | values))


FLOORS = [
    Baseline([4.0, 4.2, 4.4], [8.0, 8.0, 8.0], {"train": 6.0, "collect": 2.0}, 1),
    Baseline([4.6, 4.8, 5.0], [8.8, 8.8, 8.8], {"train": 6.6, "collect": 2.2}, 1),
]


def test_figures_are_those_worked_out_by_hand() -> None:
    figures = run_figures(measured(), FLOORS)
    assert figures["round_s"] == 5.0
    assert figures["baseline_s"] == pytest.approx(4.5)  # of medians 4.2 and 4.8
    assert figures["round_to_baseline"] == pytest.approx(5 / 4.5)
    assert figures["efficiency"] == pytest.approx(27 / 30)  # 27 s of work in 15 s x 2 workers
    assert figures["client_compute_s"] == 9.0
    # 10 worker seconds a round, of which the bare loop is busy for 8.4: 1.6 s over 100 clients.
    assert figures["overhead_ms"] == pytest.approx(16)
    assert figures["overhead_trained_ms"] == pytest.approx(160)
    assert figures["baseline_without_collection_s"] == pytest.approx(4.5 * (1 - 2.1 / 8.4))
    assert (figures["server_mb"], figures["worker_anonymous_mb"]) == (500, 100)
    assert figures["disk_mb"] == 3


@pytest.mark.parametrize(
    ("value", "at_least", "met"), [(0.9, True, True), (0.89, True, False), (0.91, False, False)]
)
def test_goal_is_met_on_its_limit_and_on_the_right_side(
    value: float, at_least: bool, met: bool
) -> None:
    goal = Goal("B1", "efficiency", value, 0.9, at_least)
    assert goal.met is met
    assert goal.line().startswith("met" if met else "MISSED")


def test_goals_are_of_what_was_measured_alone() -> None:
    small, large = run_figures(measured(), FLOORS), run_figures(measured(), FLOORS)
    large["server_mb"] = 1.3 * small["server_mb"]
    training = run_figures(measured(evaluated=0), FLOORS)
    found = goals(
        {"B2": {"figures": small}, "B3": {"figures": large}, "B2-train": {"figures": training}}
    )
    verdicts = {(goal.workload, goal.what): goal.met for goal in found}
    assert {workload for workload, _ in verdicts} == {"B2", "B2-train", "B3", "B3/B2"}
    assert verdicts["B3/B2", "server memory, resident"] is False
    assert verdicts["B3/B2", "server memory, anonymous"] is True
    overhead = "overhead, ms a round and client that trained or was evaluated"
    assert verdicts["B2", overhead] is True
    assert verdicts["B2-train", overhead] is False  # 1.6 s over 10 clients
    assert goals({"B5": {"figures": {}}}) == []
    assert [g.met for g in goals({"start": {"figures": {"start_up_ratio": 1.31}}})] == [False]
    state = {"state_s": 0.1, "compared_s": 0.2, "state_server_mb": -3.0}
    assert [g.met for g in goals({"B4": {"figures": state}})] == [True, False, True]


def test_table_has_a_row_for_every_federation() -> None:
    figures = run_figures(measured(), FLOORS)
    lines = table({"B1": {"figures": figures}, "B5": {"figures": {}}}).splitlines()
    assert len(lines) == 2
    heading, row = lines
    assert len(heading) == len(row)
    assert row.split()[:4] == ["B1", "5.000", "4.500", "1.111"]


def test_workloads_have_the_sizes_of_the_issue() -> None:
    found = workloads.workloads(quick=False)
    assert [w.clients for w in found.values()] == [10, 100, 1000, 20, 100, 1000]
    assert set(found) < set(NAMES)
    training = parse_run_config({**default_run_config(), **found["B3-train"].config})
    assert [n for n in range(1, 21) if training.evaluates_in(n)] == [20]
    assert found["B1"].images == (10_000, 200)
    for workload in [*found.values(), *workloads.workloads(quick=True).values()]:
        run = parse_run_config({**default_run_config(), **workload.config})
        assert run.num_rounds == workload.rounds > workloads.WARM_UP + 1
        assert run.method == workload.config["method"]


def test_unpacked_are_the_first_images_of_every_class() -> None:
    names = [f"{part}/{name}/{i}.jpg" for part in ("train", "test") for name in "ab" for i in "123"]
    folders = [tarfile.TarInfo("train"), tarfile.TarInfo("train/a")]
    for folder in folders:
        folder.type = tarfile.DIRTYPE
    members = [*folders, *map(tarfile.TarInfo, names)]
    chosen = workloads.chosen_members(members, {"train": 2, "test": 1})
    assert [member.name for member in chosen] == [
        "train/a/1.jpg", "train/a/2.jpg", "train/b/1.jpg", "train/b/2.jpg",
        "test/a/1.jpg", "test/b/1.jpg",
    ]  # fmt: skip


def test_images_are_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "images.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for name in ("train/a/1.jpg", "train/a/2.jpg", "test/a/1.jpg"):
            info = tarfile.TarInfo(name)
            info.size = 3
            file.addfile(info, io.BytesIO(b"jpg"))
    monkeypatch.setattr(workloads, "ARCHIVE", archive)
    monkeypatch.setenv("WILDFLOWER_CACHE", str(tmp_path / "cache"))
    workload = workloads.Workload("B1", "", 1, {"num-rounds": 4}, images=(10, 10))
    folder = Path(str(workloads.with_images(workload).config["data-dir"]))
    held = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    assert sorted(held) == ["test/a/1.jpg", "train/a/1.jpg"]
    archive.unlink()
    assert workloads.with_images(workload).config["data-dir"] == str(folder)
    with pytest.raises(workloads.BenchmarkError, match="is missing"):
        workloads.with_images(workloads.Workload("B1", "", 1, {}, images=(20, 10)))


def test_bare_loop_trains_the_clients_model_on_its_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    workload = workloads.workloads(quick=True)["B4"]
    request = {
        "config": {**workload.config, "models": "cnn5, cnn4"}, "clients": 4, "device": "cpu"
    }  # fmt: skip
    try:
        bare = Bare(request)
        assert bare.serve(1, trains=False, evaluates=True).keys() == {"evaluate"}
        assert bare.models.keys() == {"cnn4"}
        before = bare.models["cnn4"].head.weight.clone()
        assert bare.serve(1, trains=True, evaluates=False).keys() == {"train", "collect"}
        assert not torch.equal(before, bare.models["cnn4"].head.weight)
        assert not bare.models["cnn4"].training
    finally:
        torch.set_num_threads(threads)


def test_state_costs_are_means_over_messages_of_steady_rounds() -> None:
    rows = [
        {"round": 2, "read": 9.0},
        {"round": 3, "read": 1.0, "write": 2.0},
        {"round": 4, "read": 3.0},
    ]
    assert mean_parts(rows, 2) == {"read": 2.0, "write": 1.0}
    with pytest.raises(workloads.BenchmarkError, match="after round 4"):
        mean_parts(rows, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_timed_app_is_wildflower_with_another_client_app(tmp_path: Path, kind: str) -> None:
    write_app(tmp_path / "app", tmp_path, kind)
    project = (tmp_path / "app" / "pyproject.toml").read_text()
    assert f'clientapp = "client_app.{MODULE}:app"' in project
    code = (tmp_path / "app" / "client_app" / f"{MODULE}.py").read_text()
    assert f"PLACE, KIND = Path({str(tmp_path)!r}), {kind!r}" in code
    compile(code, MODULE, "exec")


def test_ends_of_rounds_are_rows_of_rounds_csv(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    assert _size(path) == 0

    class Nothing:
        def processes(self) -> set[Any]:
            return set()

    watch = Watch(Nothing(), path)  # type: ignore[arg-type]
    path.write_text(",".join(HEADERS["rounds.csv"]) + "\n")
    watch.look_at_rounds()
    assert watch.ended == []
    with path.open("a") as file:
        file.write("1,0.5\n2,0.5\n")
    watch.look_at_rounds()
    watch.look_at_rounds()
    assert len(watch.ended) == 2


def test_peaks_show_what_was_seen() -> None:
    values = dict.fromkeys(("highest", "resident", "anonymous", "file", "shared"), 2_000_000)
    assert Peaks({"server": values}).table().splitlines()[1].split() == ["server", *["2"] * 5]


def test_third_party_packages_are_neither_pythons_nor_ours() -> None:
    names = ["json", "json.decoder", "torch", "torch.nn", "client_app.app", "_cffi", "flwr.app"]
    assert third_party(names) == ["torch", "flwr"]


def test_processor_is_the_first_ones_name() -> None:
    assert processor("processor : 0\nmodel name\t: A CPU\nmodel name\t: B\n") == "A CPU"


def rows(**by_round: Any) -> list[dict[str, str]]:
    found = []
    for number, (loss, accuracy) in enumerate(by_round["values"], start=1):
        for client, shift in ((0, -0.1), (1, 0.1)):
            base = {"round": str(number), "client": str(client)}
            found += [
                base | {"phase": "train", "metric": "loss", "value": str(loss + shift)},
                base | {"phase": "post", "metric": "accuracy_head", "value": str(accuracy)},
            ]
    return found


def test_gpu_and_cpu_are_compared_round_by_round() -> None:
    cpu = rows(values=[(2.0, 0.20), (1.5, 0.30), (1.0, 0.4)])
    device = rows(values=[(2.03, 0.22), (1.6, 0.30), (9.0, 0.9)])
    found = {(g["round"], g["metric"]): g for g in gpu.gaps(device, cpu)}
    assert found.keys() == {(n, m) for n in (1, 2) for m in ("loss", "accuracy")}
    assert found[1, "loss"]["gap"] == pytest.approx(0.015)
    assert {key for key, gap in found.items() if not gap["agrees"]} == {(2, "loss")}
    with pytest.raises(ValueError, match="no loss of phase 'train'"):
        gpu.gaps([], cpu)


def test_gpu_script_says_in_one_line_that_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu"])
    assert gpu.main() == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "no CUDA device" in lines[0]
    assert gpu.refusal("cpu") is None


@pytest.mark.parametrize("kind", ["query", "train"])
def test_a_synthetic_device_answers_what_the_server_takes(kind: str) -> None:
    device = SyntheticDevice(3, "", "", generate_key_pairs(), threading.Event())
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    content = device._content(Message(RecordDict(), 1, kind, group_id="2"))
    if kind == "query":
        info = ClientInfo.from_record(content.config_records[CLIENT_INFO])
        assert (info.client_id, info.feature_dim) == (3, WIDTH)
        return
    update = read_reply(get_method("fedre"), content, 3, 2, {"d": WIDTH, "C": CLASSES}, {})
    assert (update.num_examples, len(update.rows)) == (EXAMPLES, 2)


def test_what_a_round_took_is_found_in_its_line() -> None:
    line = "round 3/9  10 of 10 clients  accuracy 5 %  up 5k  down 51k scalars  5.4 s  left 9 s"
    found = ROUND.search(line)
    assert found is not None
    assert found.groups() == ("3", "5.4")
