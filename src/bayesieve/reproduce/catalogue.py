"""What the papers report, row by row, and the study that covers each row.

A row names its finding by study, key and metric; `findings` says how these are found in a record.
Numbers are the papers' own, in the unit named by `metric`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from bayesieve.studies.bmr_published import published

SBNN = "sBNN"  # spike-and-slab variational inference
BMR = "BMR"  # stochastic Bayesian model reduction
AEB = "SG-MCMC-SA"  # adaptive empirical Bayes
TDAMP = "EM-TDAMP"
SCRATCH = "NumPy MLP"


@dataclass(frozen=True)
class Check:
    """A cheap run that should repeat numbers of the record.

    Args:
        arguments: of the study's command, besides --out.
        numbers: key and field of what should repeat.
        tolerance: how close.
    """

    arguments: tuple[str, ...]
    numbers: tuple[tuple[str, str], ...]
    tolerance: float


@dataclass(frozen=True)
class Study:
    """A command that makes records.

    Args:
        module: what `python -m` runs.
        quick: arguments of a run of minutes on two CPU cores.
        full: arguments of the run that the committed record comes from.
        check: a cheap run that should repeat the record, if there is one.
        device: whether it takes --device.
        seeds: whether it takes --seeds.
    """

    module: str
    quick: tuple[str, ...] = ("--quick",)
    full: tuple[str, ...] = ("--full",)
    check: Check | None = None
    device: bool = False
    seeds: bool = False


@dataclass(frozen=True)
class Row:
    """One number of a paper, or a figure of it.

    Args:
        name: unique, for the command line.
        source: the paper.
        item: its table or figure.
        what: what was measured on what.
        metric: name and unit.
        paper: the paper's number; None where it prints none.
        study: name in STUDIES.
        key: the record of the study.
        field: the number in that record.
        better: which way is better.
        unavailable: why there can be no number of ours here.
    """

    name: str
    source: str
    item: str
    what: str
    metric: str
    paper: float | None
    study: str | None = None
    key: str = ""
    field: str = ""
    better: Literal["lower", "higher", "neither"] = "lower"
    unavailable: str | None = None


STUDIES = {
    "sbnn-mnist": Study(
        "sbnn_mnist",
        full=("--settings", "l300-95,l300-98.5,l5-99.5,m1200-98"),
        device=True,
        seeds=True,
    ),
    "sbnn-droprate": Study("sbnn_droprate", device=True, seeds=True),
    "sbnn-tables": Study("sbnn_tables"),
    "uci": Study("uci"),
    "structured-lenet5": Study("structured_lenet5", device=True, seeds=True),
    "bmr-images": Study("bmr_images", device=True, seeds=True),
    "bmr-mnist": Study("bmr_mnist", device=True, seeds=True),
    "laplace-bmr": Study("laplace_bmr"),
    "aeb-linear": Study("aeb_linear"),
    "aeb-logistic": Study("aeb_logistic"),
    "aeb-uci": Study("aeb_uci"),
    "aeb-images": Study("aeb_images", device=True),
    "aeb-resnet": Study("aeb_resnet", device=True),
    "tdamp-mnist": Study(
        "tdamp_mnist",
        full=("--seeds", "5"),
        check=Check(
            ("--seeds", "1", "--rows", "tdamp-64-of-128"), (("tdamp-64-of-128", "accuracy"),), 0.006
        ),
        seeds=True,
    ),
    "tdamp-uci": Study("tdamp_uci"),
    "scratch-mnist": Study("scratch_mnist"),
}

# RMSE of the paper's table 2 with all weights and with half of them
_UCI = {
    "boston": (3.07, 3.07), "concrete": (5.54, 5.54), "energy": (0.69, 0.69),
    "kin8nm": (0.08, 0.33), "naval": (0.00, 0.01), "power": (4.00, 8.77),
    "protein": (4.48, 4.84), "wine": (0.62, 0.62), "yacht": (0.94, 0.94), "year": (8.75, 8.76),
}  # fmt: skip
_LINEAR = {("0.01", "2"): 5.56, ("0.1", "2"): 5.64, ("0.01", "1"): 3.51, ("0.1", "1"): 4.42}
_IMAGES = {
    "mnist": (99.59, "MNIST"), "mnist-da": (99.75, "MNIST, augmented"),
    "fashion": (93.01, "FashionMNIST"), "fashion-da": (94.38, "FashionMNIST, augmented"),
}  # fmt: skip
_PRESETS = {"paper": "the paper's settings", "default": "our settings"}
_FLAT_CIFAR = {0: 26.34, 50: 27.02, 75: 27.04, 90: 26.63, 95: 27.45, 98: 33.92}
_RESNET = {"30": 94.23, "50": 94.27, "70": 93.74, "90": 91.68}
_MESSAGES = {
    "accuracy": 0.9277, "precision": 0.9294, "recall": 0.9263, "f1": 0.9268, "entropy": 0.0070,
}  # fmt: skip
_SCRATCH = {"relu": 0.94, "sigmoid": 0.86, "tanh": 0.93}


def _sbnn() -> Iterator[Row]:
    for number, what in (
        ("1", "importance against true importance, two features"),
        ("2", "importance against coefficients, linear"),
        ("3", "importance against coefficients, non-linear"),
    ):
        yield Row(f"sbnn-figure-{number}", SBNN, f"figure {number}", what, "correlation", None,
                  "sbnn-tables", f"figure-{number}", "correlation", "higher")  # fmt: skip
    yield Row("sbnn-figure-4", SBNN, "figures 4 to 6", "selection accuracy, D = 100, π = 0.2",
              "accuracy", 0.90, "sbnn-tables", "selection", "accuracy", "higher")  # fmt: skip
    yield Row("sbnn-figure-7", SBNN, "figures 7 to 9", "selection with a validated threshold",
              "accuracy", 0.80, "sbnn-tables", "validated", "accuracy", "higher")  # fmt: skip
    yield Row("sbnn-figure-10", SBNN, "figure 10", "test MSE against weights dropped", "curve",
              None, "sbnn-tables", "droprate", "points", "neither")  # fmt: skip
    yield Row("sbnn-table-1", SBNN, "table 1", "test MSE after selection against the full model",
              "ratio of MSE", None, "sbnn-tables", "refit", "ratio")  # fmt: skip
    for name, (full, half) in _UCI.items():
        lost = "the data set is not available here" if name == "year" else None
        yield Row(f"sbnn-table-3-{name}", SBNN, "tables 2 and 3", f"{name}, all weights", "RMSE",
                  full, "uci", name, "rmse", unavailable=lost)  # fmt: skip
        yield Row(f"sbnn-table-3-{name}-half", SBNN, "tables 2 and 3",
                  f"{name}, half the weights", "RMSE", half, "uci", name, "rmse_50",
                  unavailable=lost)  # fmt: skip
    for width, error in ((400, 1.45), (800, 1.47), (1200, 1.58)):
        yield Row(f"sbnn-table-4-{width}", SBNN, "table 4", f"MNIST, 2 x {width} units",
                  "test error, %", error, "sbnn-droprate", f"m{width}", "error")  # fmt: skip
    for rate, error in ((50, 1.57), (75, 1.52), (95, 1.54), (98, 1.61)):
        yield Row(f"sbnn-table-5-{rate}", SBNN, "table 5",
                  f"MNIST, 2 x 1200 units, {rate} % dropped in one shot", "test error, %", error,
                  "sbnn-droprate", "m1200", f"snr-{rate}")  # fmt: skip
    yield Row("sbnn-table-5-gradual", SBNN, "table 5",
              "MNIST, 2 x 1200 units, 98 % zeros, pruned gradually", "test error, %", 1.61,
              "sbnn-mnist", "m1200-98", "error")  # fmt: skip
    yield Row("sbnn-figure-11", SBNN, "figure 11", "weights with inclusion below 1/4", "share",
              0.95, "sbnn-droprate", "m1200", "below_a_quarter", "higher")  # fmt: skip
    for rate, error in (
        (0, 26.34),
        (50, 27.02),
        (75, 27.04),
        (90, 26.63),
        (95, 27.45),
        (98, 33.92),
    ):
        yield Row(f"sbnn-table-6-{rate}", SBNN, "table 6",
                  f"CIFAR-10 (JPEG copy) flattened, 2 x 1200 units, {rate} % dropped",
                  "test error, %", error, "sbnn-droprate", "cifar10",
                  f"snr-{rate}" if rate else "error")  # fmt: skip
    yield Row("sbnn-table-7-l300", SBNN, "table 7", "LeNet-300-100, 95 % zeros", "test error, %",
              1.94, "sbnn-mnist", "l300-95", "error")  # fmt: skip
    yield Row("sbnn-table-7-l300-more", SBNN, "table 7", "LeNet-300-100, 98.5 % zeros (theirs 95)",
              "test error, %", 1.94, "sbnn-mnist", "l300-98.5", "error")  # fmt: skip
    yield Row("sbnn-table-7-l5", SBNN, "table 7", "LeNet-5-Caffe, 99.5 % zeros (theirs 99.2)",
              "test error, %", 1.06, "sbnn-mnist", "l5-99.5", "error")  # fmt: skip
    for prior, errors in ((1, (0.70, 1.56, 4.46, 24.93)), (2, (1.03, 1.01, 1.03, 1.30))):
        for share, error in zip(("0", "98", "99", "99.5"), errors, strict=True):
            yield Row(f"sbnn-table-8-set{prior}-{share}", SBNN, "table 8",
                      f"LeNet-5-Caffe, prior set {prior}, {share} % dropped in one shot",
                      "test error, %", error, "sbnn-droprate", f"l5-set{prior}",
                      "error" if share == "0" else f"snr-{share}")  # fmt: skip
    yield Row("sbnn-table-9", SBNN, "table 9", "VGG-like, CIFAR-10, 98.5 % zeros",
              "test error, %", 8.7, None, "", "",
              unavailable="the original CIFAR-10 files are not available here")  # fmt: skip


def _bmr() -> Iterator[Row]:
    names = {"fashion-mnist": "FashionMNIST", "cifar10": "CIFAR-10 (JPEG copy)",
             "cifar100": "CIFAR-100"}  # fmt: skip
    for data, title in names.items():
        lost = "the data set is not available here" if data == "cifar100" else None
        for net, preset in product(("mlp", "lenet", "vit", "mixer"), ("paper", "default")):
            printed = published(data, net, "bmr")
            for metric, better, figure in (
                ("accuracy", "higher", "1"), ("ece", "lower", "1"), ("nll", "lower", "1"),
                ("pruned", "higher", "2"),
            ):  # fmt: skip
                yield Row(f"bmr-figure-{figure}-{data}-{net}-{metric}-{preset}", BMR,
                          f"figure {figure}", f"{title}, {net}, {_PRESETS[preset]}", metric,
                          float(printed[metric].lstrip(">")), "bmr-images",
                          f"{data}/{net}/bmr/{preset}", metric, better,  # type: ignore[arg-type]
                          lost)  # fmt: skip
    for figure, what in (("3", "distribution of |E w| per layer"), ("4", "first-layer means")):
        yield Row(f"bmr-figure-{figure}", BMR, f"figure {figure}", what, "picture", None,
                  "bmr-images", "figures", "pictures", "neither")  # fmt: skip


def _aeb() -> Iterator[Row]:
    for (spike, scale), mse in _LINEAR.items():
        yield Row(f"aeb-table-1-{spike}-{scale}", AEB, "table 1",
                  f"linear regression, v0 = {spike}, σ = {scale}", "test MSE", mse, "aeb-linear",
                  f"sa/{spike}/{scale}", "mse")  # fmt: skip
    for data, (accuracy, title) in _IMAGES.items():
        yield Row(f"aeb-table-2-{data}", AEB, "table 2", title, "accuracy, %", accuracy,
                  "aeb-images", f"{data}/sghmc-sa", "accuracy", "higher")  # fmt: skip
    for zeros, accuracy in _RESNET.items():
        yield Row(f"aeb-table-3-{zeros}", AEB, "table 3", f"ResNet-20, CIFAR-10, {zeros} % zeros",
                  "accuracy, %", accuracy, "aeb-resnet", f"a-sghmc-sa/{zeros}", "accuracy",
                  "higher", "the original CIFAR-10 files are not available here")  # fmt: skip
    yield Row("aeb-figure-2", AEB, "figure 2", "MNIST under attack (FGSM)", "curve", None,
              "aeb-images", "attack", "points", "neither")  # fmt: skip


def _tdamp() -> Iterator[Row]:
    for metric, value in _MESSAGES.items():
        better: Literal["higher", "neither"] = "neither" if metric == "entropy" else "higher"
        yield Row(f"tdamp-table-4.1-{metric}", TDAMP, "table 4.1",
                  "784-128-10, 10,000 MNIST images, 64 units left", metric, value, "tdamp-mnist",
                  "tdamp-64-of-128", metric, better)  # fmt: skip
    yield Row("tdamp-table-4.1-units", TDAMP, "table 4.1", "784-128-10, units left", "units", 64,
              "tdamp-mnist", "tdamp-64-of-128", "units", "neither")  # fmt: skip


def _scratch() -> Iterator[Row]:
    for name, value in _SCRATCH.items():
        yield Row(f"scratch-{name}", SCRATCH, "tables", f"784-500-250-100-10, {name}",
                  "test accuracy", value, "scratch-mnist", name, "accuracy", "higher")  # fmt: skip


ROWS: tuple[Row, ...] = (*_sbnn(), *_bmr(), *_aeb(), *_tdamp(), *_scratch())
