"""The small SVG drawing kit of the pages.

The charts are written by hand, without a plotting library: colours come from the page's CSS
variables, so the same SVG is right in light, dark and print; text stays text; and the same input
gives the same bytes. `Markup.format` escapes every text that is put into a mark.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 66, 546, 14, 258
XY = tuple[float, float]


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
    """Collect the marks of one chart inside a fixed frame; `render` returns the SVG."""

    x: Scale
    y: Scale
    label: str
    parts: list[Markup] = field(default_factory=list)

    def draw(self, mark: str, *values: object) -> None:
        """Add a mark: SVG in which every {} takes a value, escaped."""
        self.parts.append(Markup(mark).format(*values))

    def grid(
        self,
        x_ticks: Iterable[tuple[float, str]],
        y_ticks: Iterable[tuple[float, str]],
        x_title: str,
    ) -> None:
        """Draw horizontal hairlines, tick labels and the title of the x axis."""
        for value, text in y_ticks:
            at = self.y(value)
            self.draw('<path class="grid" d="M{} {:.1f}H{}"/>', LEFT, at, RIGHT)
            self.text(LEFT - 9, at + 4, text, "end")
        self.draw('<path class="axis" d="M{} {}H{}"/>', LEFT, BOTTOM, RIGHT)
        for value, text in x_ticks:
            self.text(self.x(value), BOTTOM + 18, text, "middle")
        self.text((LEFT + RIGHT) / 2, HEIGHT - 4, x_title, "middle", ' class="title"')

    def text(self, x: float, y: float, text: str, anchor: str, css: str = "") -> None:
        """Write text at a pixel position."""
        mark = f'<text{css} x="{{:.1f}}" y="{{:.1f}}" text-anchor="{{}}">{{}}</text>'
        self.draw(mark, x, y, anchor, text)

    def path(self, points: Iterable[XY]) -> str:
        """Path data through `points` in data coordinates."""
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)

    def line(self, points: Sequence[XY], css: str, title: str = "") -> None:
        """Draw a line; with a title it also gets a wide invisible twin that is easy to hover."""
        if not points:
            return
        data = self.path(points if len(points) > 1 else [points[0], points[0]])
        if not title:
            self.draw('<path class="line {}" d="{}"/>', css, data)
            return
        self.draw(
            '<g class="hover"><title>{}</title><path class="hit" d="{}"/>'
            '<path class="line {}" d="{}"/></g>',
            title, data, css, data,
        )  # fmt: skip

    def area(self, upper: Sequence[XY], lower: Sequence[XY], css: str) -> None:
        """Fill the area between two lines."""
        self.draw('<path class="{}" d="{}Z"/>', css, self.path([*upper, *reversed(lower)]))

    def rule(self, x: float, css: str, title: str) -> None:
        """Draw a line across the whole plot at `x`."""
        mark = '<path class="{}" d="M{:.1f} {}V{}"><title>{}</title></path>'
        self.draw(mark, css, self.x(x), TOP, BOTTOM, title)

    def dot(self, point: XY, css: str, title: str, radius: float = 3.2) -> None:
        """Draw a dot that explains itself on hover."""
        self.draw(
            '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>',
            css, self.x(point[0]), self.y(point[1]), radius, title,
        )  # fmt: skip

    def bar(self, x: float, width: float, value: float, css: str, title: str) -> None:
        """Draw a bar between the line at zero and `value`; `x` and `width` are pixels."""
        top, end = sorted((self.y(value), self.y(0.0)))
        top = min(top, end - 0.5)
        self.draw(
            '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
            "<title>{}</title></rect>",
            css, x, top, width, end - top, title,
        )  # fmt: skip

    def render(self) -> Markup:
        """Return the finished SVG element."""
        return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
            WIDTH, HEIGHT, self.label, Markup("").join(self.parts)
        )
