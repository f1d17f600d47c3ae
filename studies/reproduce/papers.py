"""Tables and figures of the other papers: model reduction, samplers, message passing, NumPy."""

from collections.abc import Iterator
from itertools import product

from studies.aeb_image_tasks import TASKS
from studies.aeb_resnet_table import PAPER as RESNET
from studies.bmr_published import DATA, NETS, published
from studies.reproduce.entries import AEB, BMR, SCRATCH, TDAMP, Better, Row

_SHOWN = {"fashion-mnist": "FashionMNIST", "cifar10": "CIFAR-10 (JPEG copy)",
          "cifar100": "CIFAR-100"}  # fmt: skip
_PRESETS = {"paper": "the paper's settings", "default": "our settings"}
_OTHERS = {"map": "plain network", "flat": "flat prior", "tiered": "tiered prior"}
_LOST = {"cifar100": "the data set is not available here"}
# [Deng], table 1: mean absolute and mean squared error at (v0, σ)
_LINEAR = {
    ("0.01", "2"): {"sa": (1.89, 5.56), "em": (3.49, 19.31), "sgld": (15.85, 416.39)},
    ("0.1", "2"): {"sa": (1.72, 5.64), "em": (2.23, 8.22), "sgld": (15.85, 416.39)},
    ("0.01", "1"): {"sa": (1.48, 3.51), "em": (2.23, 19.28), "sgld": (11.86, 229.38)},
    ("0.1", "1"): {"sa": (1.54, 4.42), "em": (2.07, 6.94), "sgld": (7.72, 88.90)},
}
_SAMPLERS = {"sa": "SGLD-SA", "em": "SGLD-EM", "sgld": "SGLD"}
_IMAGES = {"mnist": "MNIST", "mnist-da": "MNIST, augmented", "fashion": "FashionMNIST",
           "fashion-da": "FashionMNIST, augmented"}  # fmt: skip
_MESSAGES = {
    "accuracy": 0.9277, "precision": 0.9294, "recall": 0.9263, "f1": 0.9268, "entropy": 0.0070,
}  # fmt: skip
_SCRATCH = {"relu": 0.94, "sigmoid": 0.86, "tanh": 0.93}


def bmr_rows() -> Iterator[Row]:
    """Figures 1 to 4: model reduction under both presets, then the methods it is compared with."""
    for data, net, preset in product(DATA, NETS, _PRESETS):
        yield _reduced("figure 1", data, net, "accuracy", preset, "higher")
        yield _reduced("figure 1", data, net, "ece", preset, "lower")
        yield _reduced("figure 1", data, net, "nll", preset, "lower")
    for data, net, method in product(DATA, NETS, _OTHERS):
        for metric in ("accuracy", "ece", "nll"):
            what = f"{_SHOWN[data]}, {net}, {_OTHERS[method]}, the paper's settings"
            yield Row(f"bmr-figure-1-{data}-{net}-{metric}-{method}", BMR, "figure 1", what, metric,
                      _read(published(data, net, method)[metric]), "bmr-images",
                      f"{data}/{net}/{method}/paper", metric, "neither",
                      _LOST.get(data))  # fmt: skip
    for data, net, preset in product(DATA, NETS, _PRESETS):
        yield _reduced("figure 2", data, net, "pruned", preset, "higher")
    drawn = "FashionMNIST, lenet, the paper's settings"
    yield Row("bmr-figure-3", BMR, "figure 3", f"distribution of |E w| in each layer, {drawn}",
              "layers drawn", None, "bmr-images", "fashion-mnist/lenet/bmr/paper", "layers",
              "neither")  # fmt: skip
    yield Row("bmr-figure-4", BMR, "figure 4", f"first-layer means, {drawn}", "maps drawn", None,
              "bmr-images", "fashion-mnist/lenet/bmr/paper", "maps", "neither")  # fmt: skip


def _reduced(figure: str, data: str, net: str, metric: str, preset: str, better: Better) -> Row:
    return Row(f"bmr-{figure.replace(' ', '-')}-{data}-{net}-{metric}-{preset}", BMR, figure,
               f"{_SHOWN[data]}, {net}, {_PRESETS[preset]}", metric,
               _read(published(data, net, "bmr")[metric]), "bmr-images",
               f"{data}/{net}/bmr/{preset}", metric, better, _LOST.get(data))  # fmt: skip


def _read(printed: str) -> float:
    """A number read off a figure; ">" marks one beyond the end of the axis."""
    return float(printed.lstrip(">"))


def aeb_rows() -> Iterator[Row]:
    """Tables 1 to 3 and figures 1 and 2."""
    for ((spike, scale), cells), column in product(_LINEAR.items(), (1, 0)):
        metric = ("MAE", "MSE")[column]
        for method, errors in cells.items():
            better: Better = "lower" if method == "sa" else "neither"
            yield Row(f"aeb-table-1-{spike}-{scale}-{method}-{metric.lower()}", AEB, "table 1",
                      f"linear regression, v0 = {spike}, σ = {scale}, {_SAMPLERS[method]}",
                      f"test {metric}", errors[column], "aeb-linear",
                      f"{method}/{spike}/{scale}", metric.lower(), better)  # fmt: skip
    for data, title in _IMAGES.items():
        for method, accuracy in dict(TASKS[data].paper).items():
            better = "higher" if method == "sghmc-sa" else "neither"
            yield Row(f"aeb-table-2-{data}-{method}", AEB, "table 2", f"{title}, {method}",
                      "accuracy in %", accuracy, "aeb-images", f"{data}/{method}", "accuracy",
                      better)  # fmt: skip
    for method, cells3 in RESNET.items():
        for zeros, accuracy in cells3.items():
            better = "higher" if method == "a-sghmc-sa" else "neither"
            yield Row(f"aeb-table-3-{method}-{zeros}", AEB, "table 3",
                      f"ResNet-20, CIFAR-10 (JPEG copy), {method}, {zeros} % zeros",
                      "accuracy in %", accuracy, "aeb-resnet", f"{method}/{zeros}", "accuracy",
                      better)  # fmt: skip
    yield Row("aeb-figure-1", AEB, "figure 1",
              "linear regression, v0 = 0.1, σ = 1, SGLD-SA: all three coefficients found",
              "data sets", None, "aeb-linear", "sa/0.1/1", "all_three_selected",
              "neither")  # fmt: skip
    yield Row("aeb-figure-2", AEB, "figure 2", "MNIST under attack (FGSM), strength 0.5, sghmc-sa",
              "accuracy in %", None, "aeb-images", "mnist/sghmc-sa", "attacked",
              "higher")  # fmt: skip
    yield Row("aeb-figure-2-vanilla", AEB, "figure 2",
              "MNIST under attack (FGSM), strength 0.5, vanilla", "accuracy in %", None,
              "aeb-images", "mnist/vanilla", "attacked", "neither")  # fmt: skip


def tdamp_rows() -> Iterator[Row]:
    """Table 4.1, and the pictures of a run."""
    for metric, value in _MESSAGES.items():
        better: Better = "neither" if metric == "entropy" else "higher"
        yield Row(f"tdamp-table-4.1-{metric}", TDAMP, "table 4.1",
                  "784-128-10, 10,000 MNIST images, 64 units left", metric, value, "tdamp-mnist",
                  "tdamp-64-of-128", metric, better)  # fmt: skip
    yield Row("tdamp-table-4.1-units", TDAMP, "table 4.1", "784-128-10, units left", "units", 64,
              "tdamp-mnist", "tdamp-64-of-128", "units", "neither")  # fmt: skip
    yield Row("tdamp-figures", TDAMP, "figures", "784-128-10: accuracy, scores and units by pass",
              "passes drawn", None, "tdamp-mnist", "tdamp-64-of-128", "passes",
              "neither")  # fmt: skip


def scratch_rows() -> Iterator[Row]:
    """Test accuracy of the three activations."""
    for name, value in _SCRATCH.items():
        yield Row(f"scratch-{name}", SCRATCH, "tables", f"784-500-250-100-10, {name}",
                  "test accuracy", value, "scratch-mnist", name, "accuracy", "higher")  # fmt: skip
