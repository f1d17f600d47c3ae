"""Every study with the commands behind it, and every row of the papers in order.

A row names its finding by study, key and metric; `readers` says how these are found in a record.
"""

from studies.reproduce.beyond import beyond_rows
from studies.reproduce.entries import Check, Row, Study
from studies.reproduce.papers import aeb_rows, bmr_rows, scratch_rows, tdamp_rows
from studies.reproduce.sbnn_rows import sbnn_rows

__all__ = ["ROWS", "STUDIES", "Check", "Row", "Study"]

STUDIES = {
    "sbnn-mnist": Study(
        "sbnn_mnist",
        full=("--settings", "l300-95,l300-98.5,l5-99.5,m1200-98"),
        device=True,
        seeds=True,
    ),
    "sbnn-droprate": Study("sbnn_droprate", device=True, seeds=True),
    "sbnn-vgg": Study("sbnn_vgg", device=True),
    "sbnn-tables": Study("sbnn_tables", device=True),
    "uci": Study(
        "uci",
        quick=("--quick", "--sets", "yacht,boston,energy", "--rows", "sbnn,linear"),
        device=True,
    ),
    "structured-lenet5": Study("structured_lenet5", device=True, seeds=True),
    "bmr-images": Study("bmr_images", device=True, seeds=True),
    "bmr-mnist": Study("bmr_mnist", device=True, seeds=True),
    "laplace-bmr": Study("laplace_bmr", full=("--seeds", "3"), seeds=True),
    "aeb-linear": Study("aeb_linear"),
    "aeb-logistic": Study("aeb_logistic", device=True),
    "aeb-uci": Study("aeb_uci", device=True),
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
    "tdamp-uci": Study(
        "tdamp_uci",
        check=Check(("--sets", "yacht", "--splits", "1"), (("yacht", "first_split_rmse"),), 0.02),
    ),
    "tdamp-digits": Study("tdamp_digits", full=("--seeds", "3"), seeds=True),
    "scratch-mnist": Study("scratch_mnist"),
}

ROWS: tuple[Row, ...] = (
    *sbnn_rows(),
    *bmr_rows(),
    *aeb_rows(),
    *tdamp_rows(),
    *scratch_rows(),
    *beyond_rows(),
)
