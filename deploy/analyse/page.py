"""The page: all figures, what they are of, and where their numbers are."""

from __future__ import annotations

import base64
from pathlib import Path

from markupsafe import Markup

from deploy.analyse.analysis import Analysis
from deploy.analyse.figures import SHOWN, TITLES
from deploy.pages import still_page
from server_app.report.html import render
from server_app.report.style import LOGO
from strategies.base.files import replacing

BODY = """\
<header><div class="eyebrow">{{ logo }}Wildflower analysis</div>
<h1>{{ method }}</h1><div class="runname">{{ name }}</div></header>
<p class="note">{{ about }}</p>
{% for figure in figures %}
<h2>{{ figure.title }}</h2><p class="note">{{ figure.note }} As <a href="{{ figure.name }}.svg">
{{- figure.name }}.svg</a>; numbers in <a href="{{ figure.name }}.csv">{{ figure.name }}.csv</a>.
</p><img alt="{{ figure.title }}" src="data:image/png;base64,{{ figure.data }}">
{% endfor %}
<footer>Written by wildflower analyse from the files of the run directory.</footer>"""

_STYLE = "main img{max-width:100%;background:white;border-radius:6px}"


def write_page(folder: Path, analysis: Analysis, figures: list[str]) -> Path:
    """Write analysis.html beside the figures, whose pictures it holds, and return its path."""
    path, name = folder / "analysis.html", analysis.directory.name
    shown = [
        {
            "name": figure,
            "title": TITLES[figure],
            "note": notes_of(analysis)[figure],
            "data": base64.b64encode((folder / f"{figure}.png").read_bytes()).decode(),
        }
        for figure in figures
    ]
    body = render(
        BODY, logo=Markup(LOGO), method=analysis.method, name=name, about=about(analysis),
        figures=shown,
    )  # fmt: skip
    page = still_page(f"analysis of {name}", body, _STYLE, pictures=True)
    with replacing(path) as partial:
        partial.write_text(page, encoding="utf-8")
    return path


def about(analysis: Analysis) -> str:
    """Say which models were looked at."""
    count = len(analysis.clients)
    return (
        f"Models of {count} of {analysis.of_all} clients after round {analysis.round}"
        + (", drawn evenly over all" if count < analysis.of_all else "")
        + f"; CKA on {analysis.images} test examples, the same for all"
        + (" (all there are)." if analysis.images < 512 else ".")
    )


def notes_of(analysis: Analysis) -> dict[str, str]:
    """Say what every figure is of, by its name."""
    hidden = len(analysis.confusions) - SHOWN
    return {
        "cka": "1 is equal but for rotation and scale; means are over pairs of unlike clients. "
        "Stages are the backbone's levels, and the representation that the head reads.",
        "tsne": f"{analysis.map_note}. Distances between far groups mean little in t-SNE.",
        "regions": "The plane of representations (d = 2), coloured by the class that the head "
        "gives to each point; points are test examples where their clients' models put them, "
        "coloured by true class. Clients with the same head share a picture.",
        "confusion": "On the client's own test examples; rows are true classes, shares of each."
        + (f" The first {SHOWN} of {SHOWN + hidden} clients." if hidden > 0 else ""),
        "calibration": "On the client's own test examples: how often a model is right when it is "
        "so sure, 15 bins. ECE is the mean gap, 0 is calibrated. Of a method whose scores are no "
        "logits, such as FedProto's distances, the softmax of them.",
    }
