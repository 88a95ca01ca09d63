"""Several attacked runs side by side: a table over seeds, and charts of what privacy costs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from deploy.attack.attack import ATTACK, CONTROLS, Findings
from deploy.attack.output import Line, lines_of
from deploy.attack.victims import Scene
from deploy.compare.cells import Spread, spread
from deploy.compare.differences import markdown_table
from deploy.compare.page import PALETTE
from deploy.pages import still_page
from server_app.console import table
from server_app.records.csv_files import write_rows
from server_app.records.run_reader import RunRecords, section
from server_app.records.scores import main_scores, weighted_mean
from server_app.report.html import figure, joined, render
from server_app.report.style import LOGO
from server_app.report.svg import BOTTOM, LEFT, RIGHT, TOP, Plot, Scale, log_ticks, ticks
from strategies.base.files import replacing

OF_A_SEED = ("seed", "run-name", "output-dir")
"""Settings in which runs of one row differ."""

COLUMNS = (
    "run", "method", "attacker", "seed", "accuracy", "epsilon", "vectors", "found_by", "mse",
    "psnr", "best_psnr", "ssim", "ahead", "error",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Attacked:
    """One run that was attacked.

    Attributes
    ----------
    records : RunRecords
        Of the run.
    attacker : str
        Who attacked it.
    vectors : int
        How many vectors were attacked.
    lines : list of Line
        Mean scores, the attack's first.
    """

    records: RunRecords
    attacker: str
    vectors: int
    lines: list[Line]

    @classmethod
    def of(cls, scene: Scene, attacker: str, findings: Findings) -> Attacked:
        """Take from an attack what is set side by side."""
        return cls(scene.records, attacker, len(findings.results), lines_of(findings.results))

    @property
    def label(self) -> str:
        """Its run's name without the seed that `wildflower compare` ends it with."""
        return re.sub(r"-seed\d+$", "", self.records.directory.name)

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.records.settings["method"])

    @cached_property
    def accuracy(self) -> float | None:
        """The run's final score, weighted by test examples; None without one."""
        return weighted_mean(main_scores(self.records).final().values())

    @property
    def epsilon(self) -> float | None:
        """Of the run; None without noise."""
        value = section(self.records.summary, "privacy").get("epsilon")
        return None if value is None else float(value)

    def nearest(self, found_by: str) -> float:
        """Return the mean PSNR, in dB, with the true image that is nearest."""
        return next(line.best_psnr for line in self.lines if line.found_by == found_by)

    @property
    def ahead(self) -> float:
        """By how many dB the attack is ahead of the best control; below 0, behind it."""
        return self.nearest(ATTACK) - max(self.nearest(name) for name in CONTROLS)

    @property
    def beats(self) -> bool:
        """Whether it is ahead of every control by more than two standard errors."""
        return all(
            line.ahead is None or (line.error is not None and line.ahead > 2 * line.error)
            for line in self.lines
        )


Row = list[Attacked]
"""Runs that differ in their seed alone."""


def rows_of(runs: Iterable[Attacked]) -> list[Row]:
    """Put runs together that differ in nothing but their seed, in the order given."""
    rows: dict[str, Row] = {}
    for run in runs:
        settings = {k: v for k, v in run.records.settings.items() if k not in OF_A_SEED}
        key = repr((run.label, run.attacker, sorted(settings.items())))
        rows.setdefault(key, []).append(run)
    return list(rows.values())


def over(row: Row, value: Callable[[Attacked], float | None]) -> Spread | None:
    """Return mean and deviation over a row's runs, or None if a run has no value."""
    values = [value(run) for run in row]
    known = [item for item in values if item is not None]
    return spread(known) if len(known) == len(values) else None


def side_by_side(runs: Sequence[Attacked]) -> str:
    """Return the Markdown table of all runs."""
    heads, cells = _cells(rows_of(runs))
    rule = ["---", "---", *["---:"] * (len(heads) - 2)]
    return "\n".join(markdown_table(heads, rule, cells))


def as_text(runs: Sequence[Attacked]) -> str:
    """Return the same table for a terminal."""
    return table(*_cells(rows_of(runs)))


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    heads = [
        "run", "attacker", "runs", "accuracy %", "epsilon", "vectors", "PSNR", "nearest",
        *CONTROLS, "ahead", "beats all",
    ]  # fmt: skip
    return heads, [_row(row) for row in rows]


def _row(row: Row) -> list[str]:
    found = [spread(run.nearest(name) for run in row) for name in (ATTACK, *CONTROLS)]
    return [
        row[0].label, row[0].attacker, str(len(row)),
        _text(over(row, lambda run: None if run.accuracy is None else 100 * run.accuracy)),
        _text(over(row, lambda run: run.epsilon), "{:.3g}"),
        " ".join(dict.fromkeys(str(run.vectors) for run in row)),
        _text(spread(run.lines[0].psnr for run in row)), *map(_text, found),
        _text(spread(run.ahead for run in row), "{:+.2f}"),
        f"{sum(run.beats for run in row)} of {len(row)}",
    ]  # fmt: skip


def _text(value: Spread | None, form: str = "{:.2f}") -> str:
    if value is None:
        return ""
    deviation = "" if not value.std else f" ± {form.replace('+', '').format(value.std)}"
    return form.format(value.mean) + deviation


def write_side_by_side(path: Path, runs: Sequence[Attacked]) -> None:
    """Write the table in Markdown, a CSV row for every run and way of finding, and the page."""
    write_rows(path.with_name(f"{path.name}.csv"), COLUMNS, _records(runs))
    rows = rows_of(runs)
    heads, cells = _cells(rows)
    body = render(BODY, logo=Markup(LOGO), heads=heads, cells=cells, charts=_charts(rows))
    page = still_page("attacks side by side", body, _STYLE)
    for suffix, text in ((".md", side_by_side(runs) + "\n"), (".html", page)):
        with replacing(path.with_name(path.name + suffix)) as partial:
            partial.write_text(text, encoding="utf-8")


def _records(runs: Sequence[Attacked]) -> Iterable[Sequence[Any]]:
    for run in runs:
        for line in run.lines:
            yield [
                run.records.directory.name, run.method, run.attacker,
                run.records.settings.get("seed"),
                *("" if x is None else f"{x:.6g}" for x in (run.accuracy, run.epsilon)),
                run.vectors, line.found_by, f"{line.mse:.3f}", f"{line.psnr:.4f}",
                f"{line.best_psnr:.4f}", f"{line.ssim:.4f}",
                *("" if x is None else f"{x:.4f}" for x in (line.ahead, line.error)),
            ]  # fmt: skip


BODY = """\
<header><div class="eyebrow">{{ logo }}Wildflower attack</div>
<h1>Attacks <span>side by side</span></h1></header>
<p class="note">PSNR in dB, of the attack with all true images and with the nearest of them; of the
controls, which know nothing of what was sent, with the nearest. Mean ± standard deviation over runs
that differ in their seed alone. "Ahead": of the best control. "Beats all": ahead of every one by
two standard errors.</p>
<div class="scroll"><table><thead><tr>
{% for head in heads %}<th{% if loop.index < 3 %} class="left"{% endif %}>{{ head }}</th>
{% endfor %}</tr></thead><tbody>
{% for row in cells %}<tr>{% for cell in row %}
<td{% if loop.index < 3 %} class="left"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<div class="charts">{{ charts }}</div>
<footer>Written by wildflower attack from the files of the runs' directories.</footer>"""

_STYLE = "".join(f".q{i}{{--c:{colour}}}" for i, colour in enumerate(PALETTE))


def _charts(rows: Sequence[Row]) -> Markup:
    """Return accuracy against epsilon, and against what the attack finds, by method."""
    told = [row for row in rows if over(row, lambda run: run.accuracy) is not None]
    noisy = [row for row in told if over(row, lambda run: run.epsilon) is not None]
    charts = []
    if noisy:
        charts.append(_chart(noisy, "epsilon of the run", lambda run: run.epsilon, log=True))
    if told:
        nearest = "nearest true image, dB"
        charts.append(_chart(told, nearest, lambda run: run.nearest(ATTACK), log=False))
    return joined(charts)


def _chart(
    rows: Sequence[Row], what: str, value: Callable[[Attacked], float | None], *, log: bool
) -> Markup:
    """Draw a dot a row, joined within a method from the least noise to the most."""
    xs = [_mean(row, value) for row in rows]
    low, high = (min(xs) / 1.2, max(xs) * 1.2) if log else (min(xs) - 0.5, max(xs) + 0.5)
    plot = Plot(
        Scale(low, high, LEFT, RIGHT, log), Scale(0.0, 1.0, BOTTOM, TOP), f"Accuracy, {what}"
    )
    marks = log_ticks(low, high) if log else ticks(low, high)
    plot.grid(
        [(x, f"{x:g}") for x in marks], [(y, f"{100 * y:g} %") for y in ticks(0.0, 1.0)], what
    )
    methods = list(dict.fromkeys(row[0].method for row in rows))
    for place, method in enumerate(methods):
        own = [row for row in rows if row[0].method == method]
        own.sort(key=lambda row: -(row[0].epsilon or math.inf))
        points = [(_mean(row, value), _mean(row, lambda run: run.accuracy)) for row in own]
        css = f"q{place % len(PALETTE)}"
        plot.line(points, css)
        for row, point in zip(own, points, strict=True):
            plot.dot(point, f"dot {css}", _title(row, point, what))
    legend = [(f"k q{i % len(PALETTE)}", method) for i, method in enumerate(methods)]
    note = "a dot for every row of the table, joined by method from the least noise to the most"
    return figure(f"Accuracy against {what}", note, legend, plot.render())


def _title(row: Row, point: tuple[float, float], what: str) -> str:
    epsilon = over(row, lambda run: run.epsilon)
    noise = "no noise" if epsilon is None else f"epsilon {epsilon.mean:.3g}"
    return f"{row[0].label}: {100 * point[1]:.2f} %, {what} {point[0]:.3g}, {noise}"


def _mean(row: Row, value: Callable[[Attacked], float | None]) -> float:
    found = over(row, value)
    assert found is not None
    return found.mean
