"""What a run's closing numbers rest on, and where that is less than a reader would think.

A mean over clients is read as one over all clients of the run, on enough test examples to tell two
methods apart, after all rounds that were asked for, with models that were trained; and "best" as
the best of the whole run. `Basis.caveats` says each thing that is not so:

- clients without test examples, and other clients that the last evaluation lacks;
- fewer than `FEW_EXAMPLES` test examples in all, so that one of them is a point or more;
- fewer rounds than `num-rounds`;
- clients that never trained, and so were measured with their initial models;
- evaluations left out of the choice of the best one, because they measured other clients.

They stand beside the numbers on the console, in summary.json (`rests_on`), on the report and in the
tables of comparisons.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from data.tasks import UNBOUNDED
from server_app.records.client_tasks import named_clients
from server_app.records.run_reader import RunRecords, section
from server_app.records.scores import Scores, comparable, main_scores

FEW_EXAMPLES = 100


@dataclasses.dataclass(frozen=True)
class Basis:
    """What the closing numbers of some clients rest on.

    Attributes
    ----------
    clients, known_clients : int
        In the last evaluation, and in the run.
    test_examples : int
        Of the last evaluation.
    rounds : int
        That were finished.
    planned_rounds : int, optional
        That were asked for; None where that is not known, or the run has not ended.
    evaluations, compared_evaluations : int
        Of the run, and those with the clients of the last one, of which "best" is one.
    untested, missing, untrained : tuple of int
        Clients without test examples, others that the last evaluation lacks, and those in it that
        never trained.
    share : bool
        Whether the score is a share, of which one example has its part; not so R2.
    """

    clients: int
    known_clients: int
    test_examples: int
    rounds: int
    planned_rounds: int | None
    evaluations: int
    compared_evaluations: int
    untested: tuple[int, ...]
    missing: tuple[int, ...]
    untrained: tuple[int, ...]
    share: bool = True

    @property
    def caveats(self) -> list[str]:
        """What a reader would not think of the final number."""
        if not self.evaluations:
            return []
        found = []
        if self.untested:
            found.append(f"no test examples: {named_clients(self.untested)}")
        if self.missing:
            found.append(f"not in the last evaluation: {named_clients(self.missing)}")
        if 0 < self.test_examples < FEW_EXAMPLES:
            examples = "example" if self.test_examples == 1 else "examples"
            point = 100 / self.test_examples
            shown = f"{point:.0f}" if point >= 10 else f"{point:.2g}"
            each = f", one is {shown} points" if self.share else ""
            found.append(f"{self.test_examples} test {examples} in all{each}")
        if self.planned_rounds is not None and self.rounds < self.planned_rounds:
            found.append(f"{self.rounds} of {self.planned_rounds} rounds")
        if self.untrained:
            found.append(f"never trained: {named_clients(self.untrained)}")
        return found

    @property
    def best_caveat(self) -> str:
        """What a reader would not think of the best number; "" if there is nothing."""
        if self.compared_evaluations == self.evaluations:
            return ""
        return (
            f"among the {self.compared_evaluations} of {self.evaluations} evaluations that have "
            "the final one's clients"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as summary.json has it."""
        lists = {"untested", "missing", "untrained", "share"}
        plain = {k: v for k, v in dataclasses.asdict(self).items() if k not in lists}
        return plain | {"caveats": self.caveats, "best_caveat": self.best_caveat}


def basis_of(
    run: RunRecords, scores: Scores, planned_rounds: int | None, model: str, test_split: str
) -> Basis:
    """Return what the closing numbers of a run's clients rest on.

    Parameters
    ----------
    run : RunRecords
        The run.
    scores : Scores
        Of the clients that the numbers are about.
    planned_rounds : int, optional
        The rounds that were asked for; None if that is unknown, or the run goes on.
    model, test_split : str
        As in the summary. A global model on the global split is measured on one client of each
        architecture on purpose, and whoever measures a global model need not have trained.
    """
    final = scores.final()
    untested = {card.client for card in run.clients if card.test_examples == 0} & {*scores.clients}
    trained = set(run.metrics["client"][run.metrics["phase"] == "train"])
    absent = scores.clients.keys() - final.keys() - untested
    personal = model == "personal"
    return Basis(
        clients=len(final),
        known_clients=len(scores.clients),
        test_examples=int(sum(examples for _, examples in final.values())),
        rounds=int(run.rounds["round"].max()) if len(run.rounds) else 0,
        planned_rounds=planned_rounds,
        evaluations=len(scores.tests),
        compared_evaluations=len(comparable(scores)),
        untested=tuple(sorted(untested - final.keys())),
        missing=tuple(sorted(absent)) if personal or test_split != "global" else (),
        # Runs that recorded no training at all do not say who trained.
        untrained=tuple(sorted(final.keys() - trained)) if trained and personal else (),
        share=not {*scores.tasks.values()} & {*UNBOUNDED},
    )


def caveats(run: RunRecords, task: str, entry: dict[str, Any]) -> tuple[str, str]:
    """Return what a reader would not think of a final and a best score of a run.

    Parameters
    ----------
    run : RunRecords
        The run, with or without a summary.
    task : str
        Whose scores they are; "" for all clients.
    entry : dict
        The summary's section that has the best score, which versions without `rests_on` chose
        among all evaluations.
    """
    scores = main_scores(run).of_task(task) if task else main_scores(run)
    planned = None if run.summary is None else run.settings.get("num-rounds")
    planned = planned if isinstance(planned, int) else None
    model = str(section(run.summary, "accuracy").get("model"))
    basis = basis_of(run, scores, planned, model, str(run.settings.get("test-split")))
    of_best = basis.best_caveat
    if "rests_on" not in (run.summary or {}):
        at: Any = entry.get("best_round"), entry.get("best_phase")
        measured = scores.tests.get(at, {})
        unlike = measured and measured.keys() != scores.final().keys()
        of_best = f"over {len(measured)} clients, not the final one's" if unlike else ""
    return "; ".join(basis.caveats), of_best
