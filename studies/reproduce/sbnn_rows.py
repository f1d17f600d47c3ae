"""Tables and figures of the paper on sBNN ([Saha])."""

from collections.abc import Iterator

from studies.reproduce.entries import SBNN, Row
from studies.sbnn_published import CIFAR10, LENET5, MNIST, VGG, WIDTHS, Pairs

_SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht",
         "year")  # fmt: skip
# table 2: RMSE of every set at a droprate in %
_ONE_SHOT = {
    0: (3.07, 5.54, 0.69, 0.08, 0.00, 4.00, 4.48, 0.62, 0.94, 8.75),
    25: (3.07, 5.54, 0.69, 0.16, 0.01, 5.28, 4.80, 0.62, 0.94, 8.76),
    50: (3.07, 5.54, 0.69, 0.33, 0.01, 8.77, 4.84, 0.62, 0.94, 8.76),
    75: (3.69, 16.39, 0.72, 0.33, 0.02, 16.74, 5.05, 0.73, 1.01, 10.26),
    90: (6.22, 14.98, 6.15, 0.27, 0.04, 17.08, 11.15, 0.79, 4.27, 11.35),
    95: (7.18, 15.03, 10.08, 0.26, 0.03, 17.08, 7.69, 0.79, 7.94, 11.33),
}
_ERROR = "test error in %"
_RANKED = {"inclusion": "inclusion", "snr": "signal to noise"}
_BOTH = ("95", "98", "99", "99.5")  # droprates at which both rankings are shown, in %
_JPEG = "CIFAR-10 (JPEG copy)"


def sbnn_rows() -> Iterator[Row]:
    """Figures 1 to 11 and tables 1 to 9."""
    yield from _simulations()
    yield from _uci()
    yield from _mnist()
    yield from _cifar()
    yield from _lenets()
    for zeros, error in VGG.items():
        what = f"{zeros:g} % zeros" if zeros else "dense network"
        yield Row(f"sbnn-table-9-{zeros:g}", SBNN, "table 9", f"VGG-like, {_JPEG}, {what}", _ERROR,
                  error, "sbnn-vgg", f"{zeros:g}", "error")  # fmt: skip


def _simulations() -> Iterator[Row]:
    for number, what in (
        ("1", "importance against true importance, two features"),
        ("2", "importance against coefficients, linear"),
        ("3", "importance against coefficients, non-linear"),
    ):
        yield Row(f"sbnn-figure-{number}", SBNN, f"figure {number}", what, "correlation", None,
                  "sbnn-tables", f"figure-{number}", "correlation", "higher")  # fmt: skip
    yield Row("sbnn-figure-4", SBNN, "figures 4 to 6", "selection accuracy, D = 100, π = 0.2",
              "accuracy", 0.90, "sbnn-tables", "selection", "accuracy", "higher")  # fmt: skip
    yield Row("sbnn-figure-7", SBNN, "figures 7 to 9",
              "selection with a validated threshold, lowest over π", "accuracy", 0.80,
              "sbnn-tables", "validated", "accuracy", "higher")  # fmt: skip
    yield Row("sbnn-figure-10", SBNN, "figure 10", "test MSE against weights dropped",
              "points of the curve", None, "sbnn-tables", "droprate", "points",
              "neither")  # fmt: skip
    yield Row("sbnn-table-1", SBNN, "table 1", "test MSE after selection against the full model",
              "ratio of MSE", None, "sbnn-tables", "refit", "ratio")  # fmt: skip


def _uci() -> Iterator[Row]:
    """Table 2: one network cut in one shot. Table 3: the best network, whole and without half."""
    lost = {"year": "the data set is not available here"}
    for i, name in enumerate(_SETS):
        for rate, errors in _ONE_SHOT.items():
            yield Row(f"sbnn-table-2-{name}-{rate}", SBNN, "table 2",
                      f"{name}, the paper's settings, {rate} % dropped in one shot", "RMSE",
                      errors[i], "uci", f"{name}/one-shot", f"{rate}",
                      unavailable=lost.get(name), decimals=2)  # fmt: skip
    for i, name in enumerate(_SETS):
        yield Row(f"sbnn-table-3-{name}", SBNN, "table 3", f"{name}, all weights", "RMSE",
                  _ONE_SHOT[0][i], "uci", name, "rmse", unavailable=lost.get(name),
                  decimals=2)  # fmt: skip
        yield Row(f"sbnn-table-3-{name}-half", SBNN, "table 3", f"{name}, half the weights",
                  "RMSE", _ONE_SHOT[50][i], "uci", name, "rmse_50",
                  unavailable=lost.get(name), decimals=2)  # fmt: skip


def _mnist() -> Iterator[Row]:
    for width, error in WIDTHS.items():
        yield Row(f"sbnn-table-4-{width}", SBNN, "table 4", f"MNIST, 2 x {width} units", _ERROR,
                  error, "sbnn-droprate", f"m{width}", "error")  # fmt: skip
    yield from _one_shot("5", "MNIST, 2 x 1200 units", "m1200", MNIST)
    yield Row("sbnn-table-5-gradual", SBNN, "table 5",
              "MNIST, 2 x 1200 units, 98 % zeros, pruned gradually", _ERROR, 1.61, "sbnn-mnist",
              "m1200-98", "error")  # fmt: skip
    yield Row("sbnn-figure-11", SBNN, "figure 11", "weights with inclusion below 1/4", "share",
              0.95, "sbnn-droprate", "m1200", "below_a_quarter", "higher")  # fmt: skip


def _cifar() -> Iterator[Row]:
    yield from _one_shot("6", f"{_JPEG} flattened, 2 x 1200 units", "cifar10", CIFAR10)


def _one_shot(table: str, what: str, key: str, errors: Pairs) -> Iterator[Row]:
    """A table of droprates: sBNN by both rankings, then Bayes by backprop."""
    for rate, (own, _) in errors.items():
        if table == "5" and not rate:
            continue  # stands in table 4
        for score, by in _rankings(str(rate)):
            cut = f"{rate} % dropped in one shot, by {by}" if rate else "nothing dropped"
            yield Row(f"sbnn-table-{table}-{rate}" + (f"-{score}" if score else ""), SBNN,
                      f"table {table}", f"{what}, {cut}", _ERROR, own, "sbnn-droprate", key,
                      f"{score}-{rate}" if rate else "error")  # fmt: skip
    for rate, (_, other) in errors.items():
        cut = f"{rate} % dropped" if rate else "nothing dropped"
        yield Row(f"sbnn-table-{table}-{rate}-bbb", SBNN, f"table {table}",
                  f"{what}, {cut}, Bayes by backprop", _ERROR, other, "sbnn-droprate",
                  f"{key}-bbb", f"snr-{rate}" if rate else "error", "neither")  # fmt: skip


def _rankings(rate: str) -> list[tuple[str, str]]:
    """How weights are ranked at a droprate: score and words; nothing is where none is dropped."""
    if rate == "0":
        return [("", "")]
    return list(_RANKED.items())[0 if rate in _BOTH else 1 :]


def _lenets() -> Iterator[Row]:
    for name, what, error, key in (
        ("l300", "LeNet-300-100, 95 % zeros", 1.94, "l300-95"),
        ("l300-more", "LeNet-300-100, 98.5 % zeros (theirs 95)", 1.94, "l300-98.5"),
        ("l5", "LeNet-5-Caffe, 99.5 % zeros (theirs 99.2)", 1.06, "l5-99.5"),
    ):
        yield Row(f"sbnn-table-7-{name}", SBNN, "table 7", what, _ERROR, error, "sbnn-mnist", key,
                  "error")  # fmt: skip
    for prior in (1, 2):
        for dropped, errors in LENET5.items():
            share = f"{dropped:g}"
            what = f"LeNet-5-Caffe, prior set {prior}"
            for score, by in _rankings(share):
                cut = f"{share} % dropped, by {by}" if score else "nothing dropped"
                yield Row(f"sbnn-table-8-set{prior}-{share}" + (f"-{score}" if score else ""),
                          SBNN, "table 8", f"{what}, {cut}", _ERROR, errors[prior - 1],
                          "sbnn-droprate", f"l5-set{prior}",
                          f"{score}-{share}" if score else "error")  # fmt: skip
