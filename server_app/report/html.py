"""Templates of the pages: every text that is put into one is escaped unless it is `Markup`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from server_app import formats

DASH = Markup("&ndash;")


def unknown(words: str) -> Markup:
    """Set off words that stand where there is no number."""
    return Markup('<span class="none">{}</span>').format(words)


def _number(write: Callable[..., str]) -> Callable[..., str]:
    """Return a format whose words for an unknown number are set off."""

    def shown(value: float | None, *args: Any) -> str:
        text = write(value, *args)
        return unknown(text) if text in (formats.NOT_EVALUATED, formats.NOT_RECORDED) else text

    return shown


percent, human, size = _number(formats.percent), _number(formats.human), _number(formats.size)
grouped, duration = _number(formats.grouped), _number(formats.duration)


def or_dash(value: float | None, write: Callable[[float], str]) -> str:
    """Write a number, or a dash where there is none."""
    return DASH if value is None else write(value)


def setting(value: Any) -> str:
    """Write a value of a configuration."""
    if value is None:
        return unknown(formats.NOT_RECORDED)
    if isinstance(value, bool):
        return str(value).lower()
    return unknown("empty") if value == "" else str(value)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": percent, "human": human, "size": size, "grouped": grouped, "setting": setting,
        "dash_percent": lambda value: or_dash(value, percent),
        "dash_size": lambda value: or_dash(value, size),
        "dash_change": lambda value: or_dash(value, formats.change),
        "key": lambda value: "" if value is None else format(value, ".6g"),
    }  # fmt: skip
    return environment


@functools.cache
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


def render(source: str, **values: Any) -> Markup:
    """Fill a template."""
    return Markup(_compiled(source).render(values))


PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{{ title }} · Wildflower</title><style>{{ style }}</style></head><body><main>
{{ body }}
</main>{% if script %}<script>{{ script }}</script>{% endif %}</body></html>
"""

FIGURE = """\
<figure><figcaption><h3>{{ title }}</h3><p>{{ note }}</p></figcaption>
{%- if legend %}<ul class=legend>
{% for css, text in legend %}<li><i class="{{ css }}"></i>{{ text }}</li>{% endfor %}
</ul>{% endif %}{{ body }}</figure>"""

EMPTY = """\
<figure><figcaption><h3>{{ title }}</h3></figcaption><p class="void">{{ note }}</p></figure>"""


def figure(title: str, note: str, legend: list[tuple[str, str]], body: Markup) -> Markup:
    """Wrap a chart with its title, one explaining sentence and a legend of (css, text) pairs."""
    return render(FIGURE, title=title, note=note, legend=legend, body=body)


def empty(title: str, note: str) -> Markup:
    """Stand in for a chart without data, saying why."""
    return render(EMPTY, title=title, note=note)


def joined(parts: Any) -> Markup:
    """Put pieces of a page one after the other; a piece that is plain text is escaped."""
    return Markup("").join(parts)
