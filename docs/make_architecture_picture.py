"""Draw docs/images/architecture.svg: the way of the data through the heart and to its guests."""

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 1060, 500
INK, MUTED, LINE = "#1f2933", "#52606d", "#9aa5b1"
FILLS = {"in": "#e6f0fa", "know": "#fdf1dc", "waist": "#e3f4e8", "after": "#f1ecf8"}

# name, room or file, one line, x, y, width, colour
BOXES = [
    ("your nn.Module", "nets", "any network", 20, 40, 150, "in"),
    ("your data", "data", "sets, tables, images", 20, 120, 150, "in"),
    ("Likelihood", "core/likelihoods", "density, prediction", 20, 200, 150, "in"),
    ("Problem", "core/problem", "network + likelihood + data", 215, 120, 170, "know"),
    ("fit", "training", "loop, schedule, checkpoints", 430, 120, 170, "know"),
    ("Engine", "engines", "init, step, posterior", 645, 60, 170, "know"),
    ("its family", "variational, sampling", "draw, update", 645, 180, 170, "know"),
    ("problem.run", "fast", "C, compiled, eager: one door", 860, 120, 180, "know"),
    ("Posterior", "core/posterior", "mean, samples, inclusion", 430, 290, 170, "waist"),
    ("predict, evaluate", "assess", "metrics, calibration, figures", 645, 290, 170, "after"),
    ("select", "select, estimators", "columns, scikit-learn", 860, 290, 180, "after"),
    ("prune", "sieve", "scores, rules, evidence", 430, 400, 170, "after"),
    ("compact", "sieve/compaction", "smaller and exactly equal", 645, 400, 170, "after"),
    ("deliver", "deliver", "bundle, ONNX, C, runtime", 860, 400, 180, "after"),
    ("runs, cli, report", "runs", "a folder and its report", 215, 400, 170, "after"),
]
# from, to; sides are chosen by position
ARROWS = [
    ("your nn.Module", "Problem"),
    ("your data", "Problem"),
    ("Likelihood", "Problem"),
    ("Problem", "fit"),
    ("fit", "Engine"),
    ("Engine", "its family"),
    ("its family", "problem.run"),
    ("fit", "Posterior"),
    ("Posterior", "predict, evaluate"),
    ("predict, evaluate", "select"),
    ("Posterior", "prune"),
    ("prune", "compact"),
    ("compact", "deliver"),
    ("prune", "runs, cli, report"),
]
BOX_HEIGHT = 62


def box(name: str, room: str, line: str, x: int, y: int, width: int, kind: str) -> str:
    """One rounded box with a name, its room and a line of text."""
    middle = x + width / 2
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{BOX_HEIGHT}" rx="8" fill="{FILLS[kind]}" '
        f'stroke="{LINE}"/>'
        f'<text x="{middle}" y="{y + 21}" font-size="14" font-weight="600">{escape(name)}</text>'
        f'<text x="{middle}" y="{y + 38}" font-size="11" fill="{MUTED}" '
        f'font-family="monospace">{escape(room)}</text>'
        f'<text x="{middle}" y="{y + 54}" font-size="11" fill="{MUTED}">{escape(line)}</text>'
    )


def arrow(start: tuple[int, int, int], end: tuple[int, int, int]) -> str:
    """A straight arrow between the facing sides of two boxes, given as x, y, width."""
    (x0, y0, w0), (x1, y1, w1) = start, end
    if x1 >= x0 + w0:
        points = (x0 + w0, y0 + BOX_HEIGHT / 2, x1, y1 + BOX_HEIGHT / 2)
    elif x0 >= x1 + w1:
        points = (x0, y0 + BOX_HEIGHT / 2, x1 + w1, y1 + BOX_HEIGHT / 2)
    else:
        points = (x0 + w0 / 2, y0 + BOX_HEIGHT, x1 + w1 / 2, y1)
    a, b, c, d = points
    return f'<path d="M{a} {b} L{c} {d}" stroke="{INK}" marker-end="url(#head)"/>'


def picture() -> str:
    """The whole SVG."""
    places = {name: (x, y, width) for name, _, _, x, y, width, _ in BOXES}
    arrows = "\n".join(arrow(places[a], places[b]) for a, b in ARROWS)
    boxes = "\n".join(box(*entry) for entry in BOXES)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"
 aria-label="Data, network and likelihood make a problem; fit asks an engine for steps; the
 posterior goes to evaluation, selection, pruning, compaction and delivery.">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>
<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"
 orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>
<g fill="none">
{arrows}
</g>
<g font-family="system-ui, sans-serif" text-anchor="middle" fill="{INK}">
{boxes}
<text x="627" y="28" font-size="12" fill="{MUTED}">depends on the algorithm</text>
<text x="120" y="312" font-size="12" fill="{MUTED}">sees only mean, samples</text>
<text x="120" y="329" font-size="12" fill="{MUTED}">and inclusion, from here on</text>
</g>
<path d="M215 320 H415" stroke="{LINE}" stroke-dasharray="4 4"/>
</svg>
"""


if __name__ == "__main__":
    Path(__file__).with_name("images").joinpath("architecture.svg").write_text(
        picture(), encoding="utf-8"
    )
