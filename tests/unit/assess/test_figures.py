"""Figures: they appear whole, hold what they should, and refuse what cannot be drawn."""

from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from bayesieve.assess import figures
from bayesieve.assess.figures import quality, style
from bayesieve.assess.metrics import ReliabilityBins
from bayesieve.assess.paired import groups_of

BINS = ReliabilityBins((0.0, 0.3, 0.8), (0.0, 0.2, 0.7), (0, 4, 6), (0.0, 0.2, 0.5, 1.0))
EVEN = ReliabilityBins((0.3, 0.8), (0.2, 0.7), (4, 6), (0.0, 0.5, 1.0))
RUN = [
    (0.0, 0.012, 0.05),
    (0.9, 0.013, 0.06),
    (0.99, 0.04, 0.2),
    (0.999, 0.5, 1.4),
    (1.0, 0.9, 2.3),
]
SHORT = [point[:2] for point in RUN]
HISTORY = [{"epoch": 1, "loss": 2.0, "kl": 1e4, "val_error": 0.5}, {"epoch": 2, "zeros": 0.4}]

Draw = Callable[[Path], Path]

DRAWINGS: dict[str, Draw] = {
    "training": lambda p: figures.training_curves(HISTORY, p),
    "training many": lambda p: figures.training_curves(
        [{"loss": 1.0, "elbo": -1e5, "kl": 3.0, "rmse": 2.0, "zeros": 0.1, "test_error": 0.2}] * 30,
        p,
    ),
    "curve": lambda p: figures.error_vs_sparsity(SHORT, p),
    "curves": lambda p: figures.error_vs_sparsity(RUN, p),
    "flat curve": lambda p: figures.error_vs_sparsity([(0.0, 0.0), (0.5, 0.0)], p),
    "reliability": lambda p: figures.reliability_diagram({"a": EVEN, "b": EVEN}, p),
    "reliability mass": lambda p: figures.reliability_diagram({"a": BINS}, p),
    "fit": lambda p: figures.regression_fit([1.0, 2.0], [0.1, 0.1], [1.1, 9.0], p),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_every_figure_is_a_whole_png_alone_in_its_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "figure.png"
    assert DRAWINGS[name](path) == path
    with Image.open(path) as image:
        image.load()
        assert round(image.info["dpi"][0]) == 150
        pixels = np.asarray(image.convert("L"))
    assert pixels.std() > 5  # something is drawn
    assert [member.name for member in path.parent.iterdir()] == ["figure.png"]


def test_equal_figures_have_equal_bytes(tmp_path: Path) -> None:
    first = DRAWINGS["curves"](tmp_path / "a.png").read_bytes()
    assert DRAWINGS["curves"](tmp_path / "b.png").read_bytes() == first


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")

    def fail(self: Figure, target: IO[bytes], **options: object) -> None:
        target.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        style.save(style.new_figure(1, 1), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """Figures that were drawn, in place of their files."""
    saved: list[Figure] = []

    def save(figure: Figure, path: str | Path) -> Path:
        saved.append(figure)
        return Path(path)

    monkeypatch.setattr(style, "save", save)
    return saved


def test_the_curve_drops_the_empty_network(drawn: list[Figure]) -> None:
    figures.error_vs_sparsity(SHORT, "curve.png")
    assert np.allclose(drawn[0].axes[0].lines[0].get_xdata(), [1.0, 0.1, 0.01, 0.001])


def test_bars_of_a_fit_are_the_interval_of_its_colours(drawn: list[Figure]) -> None:
    figures.regression_fit([0.0, 9.0], [1.0, 2.0], [0.0, 1.0], "fit.png")
    inside, outside = drawn[0].axes[0].collections
    for bars, mean, std in ((inside, 0.0, 1.0), (outside, 9.0, 2.0)):
        ends = bars.get_segments()[0][:, 1]
        assert np.allclose(ends, [mean - 1.6449 * std, mean + 1.6449 * std], atol=1e-3)


def test_quantities_of_different_size_have_axes_of_their_own(drawn: list[Figure]) -> None:
    row = {"elbo": -3e4, "kl": 2e4, "log_lik": -1e4, "zeros": 0.5}
    figures.training_curves([row, row], "training.png")
    titles = [axes.get_title(loc="left") for axes in drawn[0].axes if axes.lines]
    assert titles == ["Evidence bound", "KL from the prior", "Zero weights"]


def test_a_series_has_colour_marker_and_spread() -> None:
    axes = style.new_figure(4, 3).add_subplot()
    for i in range(3):
        style.draw_series(axes, [0, 1], [i, i], i, 3, label=str(i), spread=[0.5, 0.25])
    for looks in ("get_color", "get_marker"):
        assert len({str(getattr(line, looks)()) for line in axes.lines}) == 3
    low, high = axes.collections[2].get_paths()[0].get_extents().intervaly
    assert (low, high) == (1.5, 2.5)


def test_reliability_takes_bins_together_until_each_has_enough_examples() -> None:
    bins = ReliabilityBins(
        (0.2, 0.4, 0.6, 0.8, 0.95),
        (1.0, 0.5, 0.0, 0.75, 0.9),
        (1, 4, 2, 8, 300),
        (0.0, 0.3, 0.5, 0.7, 0.9, 1.0),
    )
    axes = style.new_figure(4, 3).add_subplot()
    quality.draw_reliability(axes, {"a": bins})
    # 8 and 2 make ten; the five least sure are too few for a point
    confidence, accuracy = (1 * 0.2 + 4 * 0.4 + 2 * 0.6 + 8 * 0.8) / 15, (1 + 2 + 0 + 6) / 15
    curve = _curves(axes)[0]
    assert np.allclose(curve.get_xydata(), [[confidence, accuracy], [0.95, 0.9]])
    # at the ends q of the bar 270 right among 300 are just 1.645 standard deviations away
    ends = axes.lines[2].get_ydata()
    assert np.allclose(np.abs(0.9 - ends), 1.645 * np.sqrt(ends * (1 - ends) / 300))
    assert ends[0] < 0.9 < ends[1]
    assert axes.get_xlim()[0] == 0.2  # the least sure bin


def _curves(axes):
    """The labelled lines: neither the diagonal nor the bars of the intervals."""
    return [line for line in axes.lines if not line.get_label().startswith("_")]


def test_ten_examples_are_enough_for_a_point() -> None:
    bins = ReliabilityBins((0.3, 0.8), (0.2, 0.7), (10, 10), (0.0, 0.5, 1.0))
    assert [group.n for group in groups_of(bins)] == [10, 10]


def test_a_small_test_set_still_has_a_reliability_curve() -> None:
    axes = style.new_figure(4, 3).add_subplot()
    quality.draw_reliability(
        axes, {"a": ReliabilityBins((0.5, 0.9), (0.0, 1.0), (1, 3), (0.0, 0.7, 1.0))}
    )
    assert _curves(axes)[0].get_xydata().tolist() == [pytest.approx([0.8, 0.75])]


def test_lines_are_told_apart_without_colour(drawn: list[Figure]) -> None:
    axes = style.new_figure(4, 3).add_subplot()
    quality.draw_reliability(axes, {"a": EVEN, "b": EVEN, "c": EVEN})
    markers = [line.get_marker() for line in _curves(axes)]
    assert len(set(markers)) == 3
    figures.regression_fit([0.0, 9.0], [1.0, 1.0], [0.0, 1.0], "fit.png")
    assert len({line.get_marker() for line in _curves(drawn[0].axes[0])}) == 2
    assert len({str(dash) for dash in style.series_dashes(6)}) == 6


WRONG: dict[str, tuple[Draw, str]] = {
    "suffix": (lambda p: DRAWINGS["fit"](p.with_suffix(".pdf")), "path must end in .png"),
    "history": (lambda p: figures.training_curves([{"speed": 1.0}], p), "holds none of loss"),
    "no point": (lambda p: figures.error_vs_sparsity([], p), "no point that keeps a weight"),
    "zeros": (lambda p: figures.error_vs_sparsity([(90, 0.1)], p), "zeros between 0 and 1"),
    "empty": (lambda p: figures.error_vs_sparsity([(1, 0.9)], p), "keeps a weight"),
    "no bins": (lambda p: figures.reliability_diagram({}, p), "at least one run"),
    "empty bins": (
        lambda p: figures.reliability_diagram(
            {"a": ReliabilityBins((0.0,), (0.0,), (0,), (0.0, 1.0))}, p
        ),
        "bins of 'a' are empty",
    ),
    "fit": (lambda p: figures.regression_fit([1.0], [1.0], [1.0, 2.0], p), "one shape"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_drawn_raises_and_writes_nothing(name: str, tmp_path: Path) -> None:
    draw, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        draw(tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []
