"""The headline figure: what sieving costs, where the weights go, whether confidence is honest."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bayesieve.assess.figures.quality import draw_reliability
from bayesieve.assess.figures.sparsity import check_runs, draw_curves, draw_layers
from bayesieve.assess.figures.style import new_figure, save
from bayesieve.assess.metrics import ReliabilityBins


def sieve_overview(
    path: str | Path,
    *,
    curve: Sequence[Sequence[float]],
    chosen: int,
    dense_error: float,
    layers: Mapping[str, tuple[int, int]],
    reliability: Mapping[str, ReliabilityBins],
) -> Path:
    """Draw error against weights kept, share kept per layer, and reliability, side by side.

    Args:
        path: PNG file to write.
        curve: points (zeros, error), fractions.
        chosen: index of the chosen point of the curve.
        dense_error: error of the network before sieving, a fraction.
        layers: for each layer the numbers of weights (kept, total), in order.
        reliability: bins under labels such as dense and sieved.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> bins = ReliabilityBins((0.3, 0.8), (0.2, 0.7), (4, 6), (0.0, 0.5, 1.0))
        >>> parts = {"layers": {"fc1": (80, 1000)}, "reliability": {"dense": bins}}
        >>> curve = [(0.5, 0.02), (0.9, 0.021), (0.99, 0.05)]
        >>> with TemporaryDirectory() as at:
        ...     path = Path(at, "overview.png")
        ...     sieve_overview(path, curve=curve, chosen=1, dense_error=0.02, **parts).name
        'overview.png'
    """
    runs, marks = {"sieved": curve}, {"sieved": chosen}
    check_runs("sieve_overview", runs, marks)
    if not (layers and reliability):
        raise ValueError("sieve_overview: layers and reliability must not be empty.")
    figure = new_figure(10.6, 3.6)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    draw_curves(left, runs, marks, dense=dense_error)
    kept, total = zip(*layers.values(), strict=True)
    draw_layers(middle, list(layers), kept, total, counts=False)
    draw_reliability(right, reliability)
    return save(figure, path)
