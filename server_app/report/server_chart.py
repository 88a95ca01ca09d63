"""The chart of what the server measured of its own model."""

from markupsafe import Markup

from server_app.formats import percent
from server_app.records.run_reader import RunRecords, section
from server_app.records.server_score import server_scores
from server_app.report.html import figure
from server_app.report.score_charts import COLOURS, MOST_DOTS, round_ticks, share_scale
from server_app.report.svg import LEFT, RIGHT, Plot, Scale, thin, ticks


def server_score_over_rounds(run: RunRecords) -> Markup:
    """Draw every score of the server's model as a line; nothing where it was not scored."""
    scores = dict(list(server_scores(run).items())[:COLOURS])
    if not scores:
        return Markup("")
    title = "Score of the server's model over rounds"
    rounds = [number for line in scores.values() for number in line]
    last = max(*rounds, min(rounds) + 1)
    across = Scale(min(rounds), last, LEFT + 8, RIGHT - 8)
    plot = Plot(across, share_scale([v for line in scores.values() for v in line.values()]), title)
    shares = [(t, percent(t, 0)) for t in ticks(plot.y.low, plot.y.high, 5)]
    plot.grid(round_ticks(plot.x, None), shares, "round")
    for index, (name, line) in enumerate(scores.items()):
        points = [(float(number), value) for number, value in line.items()]
        plot.line(thin(points, 400), f"term m{index}", name)
        for x, value in points if len(points) <= MOST_DOTS else ():
            plot.dot((x, value), f"dot m{index}", f"round {x:.0f}: {name} {percent(value)}", 2.6)
    on = section(run.summary, "server").get("on")
    note = "Measured by the server after each round's aggregation" + (f", on {on}." if on else ".")
    legend = [(f"k term m{index}", name) for index, name in enumerate(scores)]
    return figure(title, note, legend, plot.render())
