"""A reproduction's page, as Markdown and as HTML."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from deploy.compare.differences import markdown_table
from deploy.pages import still_page
from deploy.reproduce.result import HEADS, ResultPage
from server_app.records.run_directory import write_atomically
from server_app.report.html import render
from server_app.report.style import LOGO

REDUCED = (
    "Reduced: these are not the paper's numbers and say nothing for or against them; they show "
    "that everything runs, and how methods stand to each other in this small setting."
)
_TEXTS = ("method", "quantity")

BODY = """\
<header><div class="eyebrow">{{ logo }}Wildflower reproduction
<span class="pill {{ "completed" if page.comparable else "running" }}">
{#- #}{{ "paper's scale" if page.comparable else "reduced" }}</span></div>
<h1>{{ page.title }}</h1><p class="note">{{ page.source }}</p></header>
<h2>Setting</h2><p class="note">{{ page.scale }}</p>
{% if not page.comparable %}<p class="alert">{{ reduced }}</p>{% endif %}
<h2>Paper and here</h2>
<div class="scroll"><table><thead><tr>
{% for head in heads %}<th class="left">{{ head }}</th>{% endfor %}</tr></thead><tbody>
{% for line in page.cells %}<tr>
{%- for text in line %}<td class="left">{{ text }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% for title, texts in lists if texts %}
<h2>{{ title }}</h2><ul>{% for text in texts %}<li class="note">{{ text }}</li>{% endfor %}</ul>
{% endfor %}
<h2>More</h2><p class="note"><a href="{{ comparison }}.html">{{ comparison }}.html</a> has curves,
traffic and every run.</p>
<footer>Written by wildflower reproduce from the files of the run directories.</footer>"""

CLAIMS = "What the paper's text says without a cell"
GAPS = "What of the paper's setting is not stated or cannot be had here"


def write_pages(page: ResultPage, output: Path, comparison: str) -> Path:
    """Write `<comparison>-paper.md` and `.html`, each whole or not at all; return the latter."""
    target = output / f"{comparison}-paper.html"
    write_atomically(target.with_suffix(".md"), markdown(page))
    write_atomically(target, html(page, comparison))
    return target


def markdown(page: ResultPage) -> str:
    """Return the page for GitHub."""
    align = [":---" if head in _TEXTS else "---:" for head in HEADS]
    lines = [f"# {page.title}", "", page.source, "", f"Setting: {page.scale}"]
    lines += [] if page.comparable else ["", REDUCED]
    lines += ["", *markdown_table(HEADS, align, page.cells)]
    for title, texts in ((CLAIMS, page.claims), (GAPS, page.gaps)):
        lines += ["", f"{title}:", "", *(f"- {text}" for text in texts)] if texts else []
    return "\n".join([*lines, ""])


def html(page: ResultPage, comparison: str) -> str:
    """Return the page as HTML; it makes no request of any kind."""
    body = render(
        BODY, page=page, logo=Markup(LOGO), heads=HEADS, reduced=REDUCED, comparison=comparison,
        lists=((CLAIMS, page.claims), (GAPS, page.gaps)),
    )  # fmt: skip
    return still_page(f"{page.title} and the paper", body)
