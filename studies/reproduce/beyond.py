"""Numbers that no paper reports: targets of our own, and what was measured without one."""

from collections.abc import Iterator

from studies.bmr_ways import ROWS as REDUCED
from studies.reproduce.entries import BEYOND, Row
from studies.sbnn_mnist import SETTINGS as SPARSE
from studies.structured_lenet5 import ERROR, SHRINKAGE, SPEEDUP
from studies.tdamp_uci import SETS as MESSAGE_SETS

_ERROR = "test error in %"
_NETS = {"l300": "LeNet-300-100", "l5": "LeNet-5-Caffe", "m1200": "784-1200-1200-10"}
_SHARES = ("0.5", "0.9", "0.95")
_DIGITS = {
    "tdamp-conv": "two convolutions", "tdamp-conv-half": "two convolutions, half the channels",
    "tdamp-mlp": "fully connected", "adam-conv": "two convolutions, Adam",
    "adam-mlp": "fully connected, Adam",
}  # fmt: skip
_TABLES = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")


def beyond_rows() -> Iterator[Row]:
    """Self-distillation, model reduction on MNIST, whole units, and engines on other data."""
    for name in ("l300-98.5-kd", "l5-99.5-soft-kd"):
        own = SPARSE[name]
        yield Row(f"own-{name}", BEYOND, "sparse MNIST networks",
                  f"{_NETS[own.net]}, sBNN, {100 * own.zeros:g} % zeros, self-distilled", _ERROR,
                  None, "sbnn-mnist", name, "error", target=_percent(own.target))  # fmt: skip
    for name, row in REDUCED.items():
        yield Row(f"own-bmr-{name}", BEYOND, "sparse MNIST networks",
                  f"{_NETS[row.net]}, BMR, {100 * row.zeros:g} % zeros", _ERROR, None, "bmr-mnist",
                  name, "error", target=_percent(row.target))  # fmt: skip
    yield from _units()
    for share in _SHARES:
        for way in ("unit", "magnitude"):
            yield Row(f"own-laplace-{way}-{share}", BEYOND, "reduction of a trained network",
                      f"784-300-100-10, MNIST, {100 * float(share):g} % zeros, by {way}", _ERROR,
                      None, "laplace-bmr", f"{way}/{share}", "error", "neither")  # fmt: skip
    for name in MESSAGE_SETS:
        yield Row(f"own-tdamp-{name}", BEYOND, "EM-TDAMP on tables", f"{name}, 1 x 50 units",
                  "RMSE", None, "tdamp-uci", name, "rmse", "neither")  # fmt: skip
    for name, what in _DIGITS.items():
        yield Row(f"own-digits-{name}", BEYOND, "EM-TDAMP on 8x8 digits", what, "accuracy", None,
                  "tdamp-digits", name, "accuracy", "neither")  # fmt: skip
    for name in _TABLES:
        yield Row(f"own-aeb-{name}", BEYOND, "SGHMC-SA on tables", f"{name}, 1 x 50 units", "RMSE",
                  None, "aeb-uci", f"{name}/sghmc-sa", "rmse", "neither")  # fmt: skip
    yield Row("own-aeb-logistic", BEYOND, "SGLD-SA, logistic regression",
              "p = 1000, three of them at work", "accuracy in %", None, "aeb-logistic", "sa",
              "accuracy", "neither")  # fmt: skip
    yield Row("own-scratch", BEYOND, "NumPy MLP", "784-500-250-100-10, recommended settings",
              "test accuracy", None, "scratch-mnist", "recommended", "accuracy", "higher",
              target=0.98)  # fmt: skip


def _units() -> Iterator[Row]:
    """LeNet-5-Caffe without most of its units."""
    item = "LeNet-5-Caffe, 8-16-50 units"
    yield Row("own-units-error", BEYOND, item, "error on MNIST", _ERROR, None,
              "structured-lenet5", "8-16-50", "error", target=100 * ERROR)  # fmt: skip
    for batch in (1, 64):
        yield Row(f"own-units-speed-{batch}", BEYOND, item, f"ONNX Runtime, batch {batch}",
                  "times faster", None, "structured-lenet5", "8-16-50", f"speedup-{batch}",
                  "higher", target=SPEEDUP)  # fmt: skip
    yield Row("own-units-file", BEYOND, item, "ONNX file", "times smaller", None,
              "structured-lenet5", "8-16-50", "shrinkage", "higher", target=SHRINKAGE)  # fmt: skip


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 6)
