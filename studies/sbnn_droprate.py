"""One-shot pruning of a trained sBNN and its cost ([Saha], tables 4 to 6 and 8, figure 11).

    python -m studies.sbnn_droprate --full --out results/sbnn_droprate.json
    python -m studies.sbnn_droprate --quick            # minutes on two CPU cores

A dense posterior is learned, then ever more weights are set to 0 with nothing trained afterwards:
by inclusion probability, as the paper does, and by signal to noise. Bayes by backprop (a scale
mixture prior, noise on weights, ranked by signal to noise) is the paper's baseline.

Rows: MNIST with two layers of 400, 800 and 1200 units; CIFAR-10 flattened, 2 x 1200; LeNet-300-100
and LeNet-5-Caffe under both of the paper's priors, set 1 (log slab std 0, log spike std -5) and
set 2 (-1, -3). "spike" rows start in the spike's basin, "close" rows have a prior with one resting
place, "moved" rows that prior and images that are moved and mirrored; their KL weight is chosen on
held-out images (--choose). Departures: Adam and fewer epochs; set 2 in tables 4 to 6, whose own
spikes are narrower still; elsewhere the KL has its full weight in the LeNets, 0.3 of it in the
wide networks on MNIST and 0.1 on CIFAR-10. `--held-out` scores 5,000 training images.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal

from bayesieve import SBNN, FlatVI, Problem, Schedule, fit, likelihoods, load_data, priors
from bayesieve.assess.evaluate import error_curve
from bayesieve.assess.figures.style import (
    MUTED,
    Corner,
    draw_series,
    dress,
    legend,
    panel_grid,
    save,
    series_colors,
)
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.data.augment import Augment
from bayesieve.data.examples import DataSet, Examples
from bayesieve.data.images import PixelScale
from bayesieve.engines import Engine
from bayesieve.sieve.prune import sparsity_curve
from bayesieve.sieve.ranking import ScoreName
from studies.harness import Row, Run, chosen, make_row, numbers, only_draws, splits, study_parser
from studies.images import mean_and_draws
from studies.sbnn_mnist import build

DROPRATES = (
    0.5, 0.75, 0.9, 0.95, 0.96, 0.97, 0.98, 0.982, 0.985, 0.987, 0.99, 0.992, 0.995, 0.997, 0.999,
)  # fmt: skip
# The paper's two sets, and ours, under which a weight without data has one resting place
# (docs/theory/sbnn.md).
PRIORS = {
    1: priors.SpikeSlab(math.exp(0), math.exp(-5), 0.5),
    2: priors.SpikeSlab(math.exp(-1), math.exp(-3), 0.5),
    3: priors.SpikeSlab(0.1, 0.03, 0.1),
}
RANKED = {"inclusion": "inclusion", "snr": "signal to noise"}

# Test errors in % that the paper prints. Table 4: units of both hidden layers, MNIST.
WIDTHS = {400: 1.45, 800: 1.47, 1200: 1.58}
# Tables 5 and 6: sBNN and Bayes by backprop at weights dropped in %.
Pairs = Mapping[float, tuple[float, float]]
MNIST: Pairs = {0: (1.58, 1.24), 50: (1.57, 1.24), 75: (1.52, 1.24), 95: (1.54, 1.29),
                98: (1.61, 1.39)}  # fmt: skip
CIFAR10: Pairs = {0: (26.34, 25.81), 50: (27.02, 25.86), 75: (27.04, 25.82), 90: (26.63, 26.26),
                  95: (27.45, 29.64), 98: (33.92, 42.83)}  # fmt: skip
# Table 8: LeNet-5-Caffe under prior set 1 and 2 at weights dropped in %.
LENET5: Pairs = {
    0: (0.70, 1.03), 96: (0.69, 1.01), 97: (0.87, 1.01), 98: (1.56, 1.01), 98.2: (1.78, 0.99),
    98.5: (2.64, 1.00), 98.7: (3.39, 1.02), 99: (4.46, 1.03), 99.2: (9.99, 1.06),
    99.5: (24.93, 1.30), 99.7: (63.82, 1.78), 99.9: (83.08, 31.62),
}  # fmt: skip
_PAPER: Mapping[str, tuple[Pairs, int]] = {
    "m1200": (MNIST, 0), "m1200-bbb": (MNIST, 1), "cifar10": (CIFAR10, 0),
    "cifar10-bbb": (CIFAR10, 1), "l5-set1": (LENET5, 0), "l5-set2": (LENET5, 1),
    "l5": (LENET5, 1),  # our prior is held against the set that the paper prunes with
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One trained posterior."""

    net: str  # "l300", "l5", or the width of two hidden layers
    data: str = "mnist"  # a data set by name
    prior: int = 2  # 1 or 2, the paper's sets, or 3, ours
    method: Literal["sbnn", "bbb"] = "sbnn"  # "sbnn" or "bbb", Bayes by backprop
    epochs: int = 60  # passes over the data
    kl: float = 1.0  # weight of the prior
    # starting means: small ("module"), by fan-in ("he") or in the spike's basin ("spike")
    start: Literal["module", "he", "spike"] = "module"
    shift: int = 0  # pixels by which training images are moved, and then mirrored too


_WIDE = 0.3  # of 0.1, 0.3 and 1 the best of 400 units on held-out images with 5 to 10 % left
SETTINGS = {
    "m400": Setting("400", kl=0.03),  # the best of the whole network: table 4 is about those
    "m800": Setting("800", kl=_WIDE),
    "m1200": Setting("1200", kl=_WIDE),
    "m1200-bbb": Setting("1200", method="bbb", kl=_WIDE),
    "cifar10": Setting("1200", "cifar10", kl=0.1),
    "cifar10-bbb": Setting("1200", "cifar10", method="bbb", kl=0.1),
    "l300-set1": Setting("l300", prior=1),
    "l300-set2": Setting("l300"),
    "l5-set1": Setting("l5", prior=1, epochs=40),
    "l5-set2": Setting("l5", epochs=40),
    # that inclusion may rank: start in the spike's basin, or have no other one
    "l5-set1-spike": Setting("l5", prior=1, epochs=40, start="spike"),
    "l5-set2-spike": Setting("l5", epochs=40, start="spike"),
    "l5-close": Setting("l5", prior=3, epochs=40),
    "m1200-close": Setting("1200", prior=3),
    "cifar10-close": Setting("1200", "cifar10", prior=3),
    "cifar10-moved": Setting("1200", "cifar10", prior=3, epochs=240, shift=4),
}


def engine(setting: Setting) -> Engine[Any]:
    """The variational engine of a setting."""
    prior = PRIORS[setting.prior]
    if setting.method == "bbb":
        assert setting.start != "spike", "Bayes by backprop starts as its module does"
        return FlatVI(prior, 1e-3, math.exp(-4), setting.start, local=False)
    init_std = prior.safe_init_std() if setting.start == "spike" else math.exp(-4)
    return SBNN(prior=prior, lr=1e-3, init_std=init_std, start=setting.start, local=True)


def run_setting(name: str, setting: Setting, data: DataSet, seeds: int, device: str) -> Row:
    """Train all seeds of a setting, on a GPU as one population, then prune each in one shot."""
    started, train = time.perf_counter(), data.train
    augment = None
    if setting.shift:
        black = PixelScale.of(data.preprocessing).black
        augment = Augment(shift=setting.shift, flip=True, fill=black)
    problem = Problem(
        build(setting.net, tuple(train.x.shape[1:])), likelihoods.Categorical(), train,
        augment=augment,
    ).to(device)  # fmt: skip
    schedule = Schedule(lr="cosine", kl=setting.kl, kl_warmup_epochs=min(10, setting.epochs / 6))
    size = seeds if device.startswith("cuda") else 1  # a CPU trains convolutions one by one faster
    runs = [
        fit(problem, [engine(setting)] * size, epochs=setting.epochs, seed=seed, schedule=schedule)
        for seed in range(1, seeds + 1, size)
    ]
    posteriors = [posterior for run in runs for posterior in run.posteriors]
    scores: tuple[ScoreName, ...] = ("snr",) if setting.method == "bbb" else ("inclusion", "snr")
    score_on = data.test.to(device)  # once, not for every mask
    each = [_scores(posterior, score_on, scores) for posterior in posteriors]
    below: float | None = None  # share of prunable weights of small inclusion (figure 11)
    first = posteriors[0]
    if isinstance(first, Factorised) and first.inclusion is not None:
        below = float((first.inclusion[first.layout.sparse] < 0.25).float().mean())
    return make_row(
        name, asdict(setting), each, seeds=seeds, seconds=time.perf_counter() - started,
        metrics={"below_a_quarter": below}, engine=repr(runs[0].engine),
    )  # fmt: skip


def choose(
    name: str, setting: Setting, kls: Sequence[float], device: str, few: int | None = None
) -> tuple[Setting, dict[str, float]]:
    """The setting with the KL weight that stands one-shot pruning best on held-out images.

    One network of every weight learns for a quarter of the epochs. They are compared by the
    geometric mean of their errors under inclusion at the droprates of the paper's table, whole
    network included: of small errors and large ones alike a tenth counts as much. Returns the
    setting, and these means by weight.
    """
    data = splits(load_data(setting.data), held_out=True, few=few)
    tried: dict[str, float] = {}
    for kl in kls:
        short = replace(setting, kl=kl, epochs=max(1, setting.epochs // 4))
        row = run_setting("choice", short, data, 1, device)
        fields = [metric("inclusion", rate) if rate else "error" for rate in published(name)]
        errors = [max(row["metrics"][field], 1 / len(data.test)) for field in fields]
        tried[f"{kl:g}"] = geometric_mean(errors)
    return replace(setting, kl=min(kls, key=lambda kl: tried[f"{kl:g}"])), tried


def _scores(
    posterior: Posterior, score_on: Examples, scores: tuple[ScoreName, ...]
) -> dict[str, float]:
    """Errors of one posterior: dense, with draws, and at each droprate under each ranking."""
    result = mean_and_draws(posterior, score_on, ("error", "nll", "ece"), ("error", "nll"))
    for score in scores:
        masks = sparsity_curve(posterior, DROPRATES, score=score)
        for rate, cut in zip(DROPRATES, error_curve(posterior, masks, score_on), strict=True):
            result[metric(score, 100 * rate)] = cut["error"]
            result[f"{metric(score, 100 * rate)}-zeros"] = cut["zeros"]
    return result


def metric(score: str, percent: float) -> str:
    """Name of the error with some percent of the weights dropped under a ranking.

    Example:
        >>> metric("snr", 98.5)
        'snr-98.5'
    """
    return f"{score}-{percent:g}"


def curve(row: Row, score: str) -> dict[float, float]:
    """Errors of a row by droprate under one ranking; empty where it was not ranked so.

    Example:
        >>> curve({"metrics": {"error": 0.1, "snr-50": 0.2, "snr-50-zeros": 0.5}}, "snr")
        {0.5: 0.2}
    """
    names = {rate: metric(score, 100 * rate) for rate in DROPRATES}
    return {rate: row["metrics"][name] for rate, name in names.items() if name in row["metrics"]}


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen settings and write one record."""
    parser = study_parser(
        __doc__, "--held-out", "--budget", quick="one seed, 2 epochs, 12,000 images", seeds=3,
        figures="sbnn_droprate.png",
    )  # fmt: skip
    parser.add_argument("--settings", help=f"comma list of {list(SETTINGS)}; all unless given")
    parser.add_argument("--kl", type=numbers, help="comma list, in place of each setting's own")
    parser.add_argument("--epochs", type=int, help="in place of each setting's own")
    parser.add_argument("--choose", action="store_true",
                        help="of --kl take the best on held-out images, after a quarter of the "
                             "epochs, and read the test images with that one alone")  # fmt: skip
    options = parser.parse_args(arguments)
    if only_draws(options, "sbnn_droprate", draw):
        return 0
    usual = ["m400", "l300-set1", "l300-set2"] if options.quick else SETTINGS
    names = chosen("sbnn_droprate", "setting", options.settings or ",".join(usual), SETTINGS)
    run = Run("sbnn_droprate", arguments, options)
    if options.choose and (options.held_out or len(options.kl or ()) < 2):
        parser.error("--choose needs several --kl to choose from, and goes without --held-out")
    for name, kl in product(names, (None,) if options.choose else options.kl or (None,)):
        setting, seeds = SETTINGS[name], options.seeds
        setting = replace(setting, kl=setting.kl if kl is None else kl,
                          epochs=options.epochs or setting.epochs)  # fmt: skip
        if options.quick:
            setting, seeds = replace(setting, epochs=2), 1
        few = 12_000 if options.quick else None
        data = splits(load_data(setting.data), held_out=options.held_out, few=few)
        tried: dict[str, float] = {}
        if options.choose:
            setting, tried = choose(name, setting, options.kl, options.device, few)
        if run.wants(name, asdict(setting), data=data.name):
            row = run_setting(name, setting, data, seeds, options.device)
            if tried:
                row["detail"]["held_out"] = tried
            run.add({**row, "data": data.name}, ("error", "snr-95", "snr-98", "snr-99", "snr-99.5"))
    return run.finish(draw=draw)


def published(name: str) -> dict[float, float]:
    """Errors in % that the paper prints for a network, by weights dropped in %.

    Example:
        >>> published("m1200-bbb")[98], published("m800"), published("l300-set1")
        (1.39, {0: 1.47}, {})
    """
    network = re.sub("-(spike|close|moved)$", "", name)
    if network in _PAPER:
        pairs, which = _PAPER[network]
        return {rate: errors[which] for rate, errors in pairs.items()}
    width = name.removeprefix("m")
    return {0: WIDTHS[int(width)]} if width.isdigit() else {}


# Titles, and where a panel has room for a legend; the curves of prior set 1 fill theirs.
_PANELS: Mapping[str, tuple[str, Corner | None]] = {
    "m1200": ("MNIST, 2 x 1200 units", "upper left"),
    "cifar10": ("CIFAR-10 flattened, 2 x 1200 units", "lower right"),
    "l5-set1": ("LeNet-5-Caffe, prior set 1", None),
    "l5-set2": ("LeNet-5-Caffe, prior set 2", "upper left"),
}
_TICKS = (0.5, 0.9, 0.98, 0.995, 0.999)
_ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def draw(rows: Sequence[Row], folder: Path) -> Path:
    """One panel per row that the paper has points for; Bayes by backprop joins its network's."""
    by_name = {row["name"]: row for row in rows}
    known = [name for name in _PANELS if name in by_name]
    if not known:
        raise ValueError(f"sbnn_droprate: no record of {', '.join(_PANELS)} to draw.")
    figure, grid = panel_grid(len(known), 2 if len(known) == 4 else min(3, len(known)), 4.4, 3.6)
    for axes, name in zip(grid, known, strict=True):
        title, corner = _PANELS[name]
        _panel(axes, by_name[name], by_name.get(f"{name}-bbb"))
        dress(axes, title=title, xlabel="dropped", ylabel="test error")
        if corner is not None:
            legend(axes, corner)
    return save(figure, folder / "sbnn_droprate.png")


def _panel(axes: Any, row: Row, baseline: Row | None) -> None:
    """Our curves with their range over seeds, the paper's crosses, the error of all weights."""
    name = row["name"]
    ours = [(row, score, f"sBNN, by {RANKED[score]}") for score in ("snr", "inclusion")]
    if baseline is not None:
        ours.append((baseline, "snr", "Bayes by backprop"))
    for i, (one, score, label) in enumerate(ours):
        errors = curve(one, score)
        if errors:
            x = [left(rate) for rate in errors]
            draw_series(axes, x, [*errors.values()], i, 3, label=label)
            seeds = [curve({"metrics": seed}, score).values() for seed in one["each"]]
            if len(seeds) > 1:
                low, high = ([end(each) for each in zip(*seeds, strict=True)] for end in (min, max))
                axes.fill_between(x, low, high, color=series_colors(3)[i], alpha=0.18, lw=0)
    _points(axes, _printed(name), "x", series_colors(3)[0], "the paper's sBNN")
    if baseline is not None:
        _points(axes, _printed(f"{name}-bbb"), "+", series_colors(3)[2], "the paper's backprop")
    axes.axhline(row["metrics"]["error"], color=MUTED, lw=1.2, ls=(0, (2, 2)), label="all weights")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_ylim(_ERRORS[0] * 0.6, 1.1)
    axes.set_yticks(_ERRORS, [f"{100 * error:g} %" for error in _ERRORS])
    axes.set_xticks([left(rate) for rate in _TICKS], [f"{100 * rate:g} %" for rate in _TICKS])


def _printed(name: str) -> dict[float, float]:
    return {rate / 100: error / 100 for rate, error in published(name).items() if rate}


def left(droprate: float) -> float:
    """Where a droprate stands on the axis: a unit is a tenth of what was left.

    Example:
        >>> round(left(0.999) - left(0.99), 6)
        1.0
    """
    return -math.log10(1 - droprate)


def _points(axes: Any, errors: Mapping[float, float], mark: str, color: str, label: str) -> None:
    if errors:
        axes.plot([left(rate) for rate in errors], [*errors.values()], mark, color=color, ms=7,
                  mew=1.6, label=label)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
