"""Number formats and the small SVG drawing kit of the report.

The charts are written by hand, without a plotting library: colours come from the page's CSS
variables, so the same SVG is right in light, dark and print; text stays text; and the same input
gives the same bytes.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 66, 546, 14, 258
NOT_EVALUATED = '<span class="none">not evaluated</span>'
NOT_RECORDED = '<span class="none">not recorded</span>'
XY = tuple[float, float]


def esc(text: object) -> str:
    """Escape text for element content and quoted attributes."""
    return html.escape(str(text), quote=True)


def percent(share: float | None, digits: int = 1) -> str:
    """``0.831`` -> ``83.1 %``; None -> "not evaluated"."""
    return NOT_EVALUATED if share is None else f"{100 * share:.{digits}f}\u202f%"


def change(percentage: float) -> str:
    """Write a relative change with its sign: ``9.86`` -> ``+9.9 %``."""
    return f"{percentage:+.1f}\u202f%"


def human(number: float | None, unit: str = "", step: int = 1000) -> str:
    """Three figures and a decimal prefix: ``1234567`` -> ``1.23 M``; None -> "not recorded"."""
    if number is None or not math.isfinite(number):
        return NOT_RECORDED
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    index = 0
    while abs(number) >= step * 0.9995 and index < len(prefixes) - 1:
        number, index = number / step, index + 1
    figures = f"{number:.0f}" if index == 0 and number == int(number) else f"{number:.3g}"
    return f"{figures}\u202f{prefixes[index]}{unit}".rstrip("\u202f")


def size(number: float | None) -> str:
    """Bytes with a decimal prefix (1 kB = 1000 B)."""
    return human(number, "B")


def grouped(number: float | None) -> str:
    """Whole number with thin spaces between thousands; None -> "not recorded"."""
    if number is None or not math.isfinite(number):
        return NOT_RECORDED
    return f"{number:,.0f}".replace(",", "\u202f")


def duration(seconds: float | None) -> str:
    """Seconds as a person would say them."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_RECORDED
    if seconds < 60:
        return f"{seconds:.3g}\u202fs"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u202fmin {rest:02d}\u202fs"
    return f"{minutes // 60}\u202fh {minutes % 60:02d}\u202fmin"


@dataclass(frozen=True)
class Scale:
    """Map a value range to a pixel range, linearly or by logarithm."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of ``value``, kept inside the frame."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + (self.stop - self.start) * min(max(share, 0.0), 1.0)


def ticks(low: float, high: float, wanted: int = 5, whole: bool = False) -> list[float]:
    """Round tick positions inside [low, high]: steps of 1, 2, 2.5 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    steps = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(m * power for m in steps if m * power >= rough * 0.999)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside [low, high], with 2 and 5 between them when there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 3 else (1,)
    return [m * 10.0**p for p in powers for m in steps if low <= m * 10.0**p <= high]


def thin(points: Sequence[XY], most: int) -> list[XY]:
    """Keep at most about ``most`` points, evenly spaced, and always the last one."""
    step = max(1, math.ceil(len(points) / most))
    kept = list(points[::step])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


@dataclass
class Plot:
    """Collect the marks of one chart inside a fixed frame; ``render`` returns the SVG."""

    x: Scale
    y: Scale
    label: str
    parts: list[str] = field(default_factory=list)

    def grid(
        self,
        x_ticks: Iterable[tuple[float, str]],
        y_ticks: Iterable[tuple[float, str]],
        x_title: str,
    ) -> None:
        """Draw horizontal hairlines, tick labels and the title of the x axis."""
        for value, text in y_ticks:
            at = self.y(value)
            self.parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{RIGHT}"/>')
            self.text(LEFT - 9, at + 4, text, "end")
        self.parts.append(f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>')
        for value, text in x_ticks:
            self.text(self.x(value), BOTTOM + 18, text, "middle")
        self.text((LEFT + RIGHT) / 2, HEIGHT - 4, x_title, "middle", "title")

    def text(self, x: float, y: float, text: str, anchor: str = "start", css: str = "") -> None:
        """Write text at a pixel position."""
        name = f' class="{css}"' if css else ""
        self.parts.append(
            f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{esc(text)}</text>'
        )

    def path(self, points: Iterable[XY]) -> str:
        """Path data through ``points`` in data coordinates."""
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)

    def line(self, points: Sequence[XY], css: str, title: str = "") -> None:
        """Draw a line; with a title it also gets a wide invisible twin that is easy to hover."""
        if not points:
            return
        data = self.path(points if len(points) > 1 else [points[0], points[0]])
        if not title:
            self.parts.append(f'<path class="line {css}" d="{data}"/>')
            return
        self.parts.append(
            f'<g class="hover"><title>{esc(title)}</title><path class="hit" d="{data}"/>'
            f'<path class="line {css}" d="{data}"/></g>'
        )

    def band(self, upper: Sequence[XY], lower: Sequence[XY]) -> None:
        """Fill the area between two lines."""
        self.parts.append(f'<path class="band" d="{self.path([*upper, *reversed(lower)])}Z"/>')

    def dot(self, point: XY, css: str, title: str, radius: float = 3.2) -> None:
        """Draw a dot that explains itself on hover."""
        self.parts.append(
            f'<circle class="{css}" cx="{self.x(point[0]):.1f}" cy="{self.y(point[1]):.1f}" '
            f'r="{radius}"><title>{esc(title)}</title></circle>'
        )

    def bar(self, x: float, width: float, height: float, css: str, title: str) -> None:
        """Draw a bar from the axis up to ``height``; ``x`` and ``width`` are pixels."""
        top = min(self.y(height), BOTTOM - 0.5)
        self.parts.append(
            f'<rect class="{css}" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{BOTTOM - top:.1f}"><title>{esc(title)}</title></rect>'
        )

    def render(self) -> str:
        """Return the finished SVG element."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{esc(self.label)}">'
            f"{''.join(self.parts)}</svg>"
        )


def figure(title: str, note: str, legend: Iterable[tuple[str, str]], body: str) -> str:
    """Wrap a chart with its title, one explaining sentence and a legend of (css, text) pairs."""
    keys = "".join(f'<li><i class="{css}"></i>{esc(text)}</li>' for css, text in legend)
    return (
        f"<figure><figcaption><h3>{esc(title)}</h3><p>{esc(note)}</p></figcaption>"
        f"{f'<ul class=legend>{keys}</ul>' if keys else ''}{body}</figure>"
    )


def empty(title: str, note: str) -> str:
    """Stand in for a chart without data, saying why."""
    return (
        f"<figure><figcaption><h3>{esc(title)}</h3></figcaption>"
        f'<p class="void">{esc(note)}</p></figure>'
    )
