"""What an attack found: a table, a CSV file and a page with pictures."""

from __future__ import annotations

import base64
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from deploy.attack.attack import ATTACK, CONTROLS, Findings, Plan, Result
from deploy.attack.comparison import ahead_of, ahead_text, verdict_on
from deploy.attack.victims import Scene
from deploy.evenly import evenly
from deploy.pages import still_page
from server_app.console import table
from server_app.records.csv_files import write_rows
from server_app.report.html import render
from server_app.report.style import LOGO
from strategies.base.files import replacing

SHOWN = 24
"""Vectors with pictures on the page."""

COLUMNS = (
    "client", "model", "vector", "images_in_it", "found_by", "mse", "psnr", "best_psnr", "ssim",
    "lpips",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """The mean over all vectors of what one way of finding an image came to.

    Attributes
    ----------
    found_by : str
        `ATTACK` or a control.
    mse, psnr, best_psnr, ssim : float
        Means of the fields of `Score`.
    ahead : float or None
        Of a control: by how many dB of best PSNR the attack is ahead of it, on average.
    error : float or None
        Its standard error over vectors; None with a single one.
    lpips : float or None
        Mean of the field of `Score`.
    """

    found_by: str
    mse: float
    psnr: float
    best_psnr: float
    ssim: float
    ahead: float | None = None
    error: float | None = None
    lpips: float | None = None


def lines_of(results: Sequence[Result]) -> list[Line]:
    """Average the scores of all vectors, the attack first."""
    lines = []
    for name in (ATTACK, *CONTROLS):
        scores = [result.scores[name] for result in results]
        mse, psnr, best_psnr, ssim = (
            statistics.fmean(getattr(item, field) for item in scores)
            for field in ("mse", "psnr", "best_psnr", "ssim")
        )
        known = [item.lpips for item in scores if item.lpips is not None]
        lpips = statistics.fmean(known) if known else None
        lines.append(Line(name, mse, psnr, best_psnr, ssim, *_ahead_of(name, results), lpips))
    return lines


def _ahead_of(name: str, results: Sequence[Result]) -> tuple[float | None, float | None]:
    """Return by how much the attack is ahead of a control, and the standard error of that."""
    if name == ATTACK:
        return None, None
    own, other = ([r.scores[key].best_psnr for r in results] for key in (ATTACK, name))
    return ahead_of(own, other)


def verdict(lines: Sequence[Line]) -> str:
    """Say whether the attack is better than what anyone can do without the uplink."""
    ahead = {line.found_by: (line.ahead, line.error) for line in lines if line.ahead is not None}
    return verdict_on(ahead, "come as near to a true image")


def label_lines(findings: Findings) -> list[str]:
    """Say what the uplinks tell of labels."""
    told = findings.labels
    if not told:
        return ["labels: nothing is told of them outright"]
    exact = sum(item.classes_exact for item in told)
    distance = statistics.fmean(item.distance for item in told)
    guess = statistics.fmean(item.guess for item in told)
    how = "inferred from the last layer's bias" if told[0].inferred else "told"
    return [
        f"labels: the classes of {exact} of {len(told)} clients are {how} exactly; their "
        f"proportions up to {distance:.3f} (0 exact, 1 nothing in common; {guess:.3f} without the "
        "uplink)"
    ]


def text_of(findings: Findings) -> str:
    """Return the table and the verdict as text."""
    lines = lines_of(findings.results)
    rows = [
        (
            line.found_by, f"{line.mse:.0f}", f"{line.psnr:.2f}", f"{line.best_psnr:.2f}",
            f"{line.ssim:.3f}", *_lpips(line), _ahead(line),
        )
        for line in lines
    ]  # fmt: skip
    lpips = ["LPIPS"] * (lines[0].lpips is not None)
    heads = ("found by", "MSE", "PSNR (dB)", "nearest (dB)", "SSIM", *lpips, "attack ahead (dB)")
    count = f"{len(findings.results)} of {findings.sent} vectors attacked"
    return "\n".join([count, table(heads, rows), verdict(lines), *label_lines(findings)])


def _lpips(line: Line) -> list[str]:
    return [] if line.lpips is None else [f"{line.lpips:.3f}"]


def _ahead(line: Line) -> str:
    return ahead_text(None if line.ahead is None else (line.ahead, line.error))


def write_csv(path: Path, findings: Findings, models: dict[int, str]) -> None:
    """Write a row for every vector and way of finding an image."""
    rows = (
        [
            result.client, models[result.client], result.target.name, len(result.target.truth),
            name, f"{score.mse:.3f}", f"{score.psnr:.4f}", f"{score.best_psnr:.4f}",
            f"{score.ssim:.4f}", "" if score.lpips is None else f"{score.lpips:.4f}",
        ]
        for result in findings.results
        for name, score in result.scores.items()
    )  # fmt: skip
    write_rows(path, COLUMNS, rows)


BODY = """\
<header><div class="eyebrow">{{ logo }}Wildflower attack</div>
<h1>{{ method }} <span>on</span> {{ dataset }}</h1><div class="runname">{{ name }}</div></header>
<p class="alert">{{ verdict }}</p>
<p class="note">Round {{ round }}. {{ about }} {{ attacked }} of {{ sent }} vectors, seed
{{ seed }}. "Nearest" compares with the true image that is nearest to what was found. Controls know
nothing of the vector: the same attack on a random vector of equal length, an image of the right
class that the client does not have, and the mean image of the data set.</p>
<p class="note">{% for text in labels %}{{ text }}. {% endfor %}</p>
<h2>Scores</h2><div class="scroll"><table><thead><tr><th class="left">found by</th><th>MSE</th>
<th>PSNR, dB</th><th>nearest, dB</th><th>SSIM</th>
{%- if lines[0].lpips is not none %}<th>LPIPS</th>{% endif %}
<th>attack ahead, dB</th></tr></thead><tbody>
{% for line in lines %}
<tr><td class="left">{{ line.found_by }}</td><td>{{ "%.0f" % line.mse }}</td>
<td>{{ "%.2f" % line.psnr }}</td><td>{{ "%.2f" % line.best_psnr }}</td>
<td>{{ "%.3f" % line.ssim }}</td>
{%- for cell in lpips(line) %}<td>{{ cell }}</td>{% endfor %}<td>{{ ahead(line) }}</td></tr>
{% endfor %}
</tbody></table></div>
<h2>Pictures</h2>{% if shown < attacked %}<p class="note">{{ shown }} of {{ attacked }} vectors,
drawn evenly over the list, not chosen by how well they went.</p>{% endif %}
<div class="scroll"><table><thead><tr><th class="left">client</th><th class="left">vector</th>
<th>images in it</th><th>nearest true image</th>
{% for name in names %}<th>{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for result in results %}
<tr><td class="left">{{ result.client }}</td><td class="left">{{ result.target.name }}</td>
<td>{{ result.target.truth | length }}</td><td>{{ picture(result.nearest) }}</td>
{% for name in names %}<td>{{ picture(result.images[name]) }}<br><small>
{{- "%.1f" % result.scores[name].best_psnr }} dB</small></td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
<footer>Written by wildflower attack from the files of the run directory.</footer>"""

_STYLE = "td img{width:72px;height:72px;image-rendering:pixelated;border-radius:4px}"


def write_page(path: Path, scene: Scene, plan: Plan, findings: Findings) -> None:
    """Write the page; it holds its pictures and makes no request."""
    lines = lines_of(findings.results)
    shown = evenly(findings.results, SHOWN)
    settings = scene.records.settings
    body = render(
        BODY,
        logo=Markup(LOGO),
        method=settings["method"],
        dataset=settings["dataset"],
        name=scene.directory.name,
        verdict=verdict(lines),
        round=scene.round,
        about=plan.attacker.about(findings.results[0].target.output),
        attacked=len(findings.results),
        sent=findings.sent,
        seed=plan.seed,
        labels=label_lines(findings),
        lines=lines,
        ahead=_ahead,
        lpips=_lpips,
        shown=len(shown),
        names=(ATTACK, *CONTROLS),
        results=shown,
        picture=_picture,
    )
    page = still_page(f"attack on {scene.directory.name}", body, _STYLE, pictures=True)
    with replacing(path) as partial:
        partial.write_text(page, encoding="utf-8")


def _picture(image: NDArray[np.uint8]) -> Markup:
    """Return an image (C, H, W) of one or three channels as an HTML element."""
    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    return Markup('<img alt="" src="data:image/png;base64,{}">').format(data)
