"""What is said and recorded beside a round's figures: who is missing, lost or diverging."""

from __future__ import annotations

from pathlib import Path

from server_app import console
from server_app.console import say
from server_app.metrics import Meter, open_meter
from server_app.records.client_tasks import named_clients
from server_app.records.recorder import Recorder
from server_app.records.round_result import Failure, RoundResult
from server_app.rounds.divergence import DivergenceWatch, warning
from server_app.rounds.method_server import MethodServer
from server_app.rounds.quarantine import Quarantine
from server_app.rounds.server_steps import ServerStepWatch


class RoundNotes:
    """The lines of the console for a run's rounds, and the failures that no exchange sees.

    Parameters
    ----------
    server : MethodServer
        Knows the clients.
    recorder : Recorder
        Knows the scores so far, and writes failures.
    directory : Path
        Of the run, with its records.

    Attributes
    ----------
    quarantine : Quarantine
        Who takes no more part.
    meter : Meter
        Counts for Prometheus, from `begin` on.
    """

    def __init__(self, server: MethodServer, recorder: Recorder, directory: Path) -> None:
        self.server = server
        self.recorder = recorder
        self.divergence = DivergenceWatch(directory / "metrics.csv", server.run)
        self.steps = ServerStepWatch(directory / "metrics.csv", server.run)
        self.quarantine = Quarantine(directory)
        self._limits_said: dict[int, int] = {}
        self.durations: list[float] = []
        self.directory = directory
        self.meter = Meter()

    def begin(self) -> None:
        """Take up what the records of a resumed run say, and say which clients are unusual."""
        self.divergence.begin()
        self.steps.begin()
        self.quarantine.begin()
        self.meter = open_meter(self.server.run, self.directory.name)
        if out := sorted(self.quarantine.clients):
            say(f"in quarantine from before: {named_clients(out)}")
        self.who_is_unusual()

    def who_is_unusual(self) -> None:
        """Say which clients have nothing to train on, or count with less than they say."""
        infos = self.server.clients
        self._who_is_limited()
        for client_id in sorted(infos):
            if infos[client_id].train_examples == 0:
                say(f"client {client_id} has no training examples: it is evaluated, not trained")

    def _who_is_limited(self) -> None:
        """Say once for every limit who counts with less examples than it says it has."""
        most = self.server.most_examples
        for client, info in sorted(self.server.clients.items()):
            if most is None or info.train_examples <= most or self._limits_said.get(client) == most:
                continue
            self._limits_said[client] = most
            say(
                f"warning: client {client} says that it has {info.train_examples:,} training "
                f"examples; in means it counts with {most:,} (max-examples)"
            )

    def left_out(self, number: int, problems: list[tuple[int | None, str]]) -> None:
        """Say and record who could not join, and empty the list of them."""
        for client_id, reason in problems:
            who = "a node" if client_id is None else f"client {client_id}"
            say(f"{who} was left out: {reason}")
        self.recorder.add_failures(
            number, [Failure(client, "registration", text) for client, text in problems]
        )
        self.meter.left_out(len(problems))
        problems.clear()

    def lost_states(self, outcome: RoundResult) -> None:
        """Say whose private state is older than it should be: lost, moved or damaged."""
        for client_id, trained in outcome.rounds_trained.items():
            expected = self.recorder.trained.get(client_id, 0)
            if trained < expected:
                reason = (
                    f"its private state knows {trained} of {expected} rounds of training; was its "
                    "state directory (state-dir, output-dir) lost or moved?"
                )
                say(f"warning: client {client_id}: {reason}")
                outcome.failures.append(Failure(client_id, "state", reason))

    def diverged(self, outcome: RoundResult) -> None:
        """Say whose training diverged or raises its loss; the run goes on."""
        classes = min(info.num_classes for info in self.server.clients.values())
        found = self.divergence.look(outcome, classes)
        if found:
            say(warning(outcome.server_round, found))
            outcome.failures += found
        if (said := self.steps.look(outcome)) is not None:
            say(said)

    def refused_too_often(self, outcome: RoundResult) -> None:
        """Say who takes no more part in the run."""
        found = self.quarantine.look(outcome)
        for failure in found:
            say(f"warning: client {failure.client_id} is in quarantine: {failure.reason}")
        outcome.failures += found

    def say_round(self, outcome: RoundResult) -> None:
        """Print the line of a round: scores, traffic, and the time that is left; count it."""
        self.meter.add(outcome)
        number, total = outcome.server_round, self.server.run.num_rounds
        shown = console.round_scores(self.recorder.latest, self.recorder.best)
        shown += console.server_scores(outcome.server_scores)
        scalars = {
            way: sum(
                t.scalars for t in outcome.traffic if t.direction == way and t.purpose == "train"
            )
            for way in ("uplink", "downlink")
        }
        trained = len({client for client, row in outcome.rows if row.phase == "train"})
        self.durations.append(outcome.seconds)
        recent = self.durations[-5:]
        left = (total - number) * sum(recent) / len(recent)
        say(
            f"round {number}/{total}  {trained} of {len(self.server.clients)} clients  {shown}  "
            f"up {console.human(scalars['uplink'])}  "
            f"down {console.human(scalars['downlink'])} scalars  {outcome.seconds:.1f} s  "
            f"left {left:.0f} s",
            **_figures(outcome, trained, left),
        )


def _figures(outcome: RoundResult, trained: int, left: float) -> dict[str, float]:
    """Return a round's figures as the JSON log has them."""
    sizes = {
        f"{way}_bytes": sum(t.num_bytes for t in outcome.traffic if t.direction == way)
        for way in ("uplink", "downlink")
    }
    return {
        "round": outcome.server_round, "trained": trained, "failures": len(outcome.failures),
        **sizes, "seconds": round(outcome.seconds, 3), "seconds_left": round(left, 1),
    }  # fmt: skip
