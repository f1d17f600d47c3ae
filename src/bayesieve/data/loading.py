"""One function from a short text to a data set."""

from pathlib import Path

from bayesieve.checks import did_you_mean
from bayesieve.data.cifar import LAYOUTS, load_cifar
from bayesieve.data.columns import Missing
from bayesieve.data.digits import load_digits
from bayesieve.data.examples import DataSet, Task
from bayesieve.data.files import data_root
from bayesieve.data.idx import load_idx
from bayesieve.data.images import load_images
from bayesieve.data.registry import REGISTRY
from bayesieve.data.tables import load_table
from bayesieve.data.uci import load_uci

_TABLES = ("csv", "parquet", "npz")
# which options each kind of spec takes; any other must keep its default
_OPTIONS: dict[str, tuple[str, ...]] = {
    "table": ("target", "task", "missing", "test_fraction"),
    "images": ("image_size", "test_fraction"),
    "uci": ("split",),
    "named": (),
}


def load_data(
    spec: str,
    *,
    target: str | None = None,
    task: Task | None = None,
    split: int = 0,
    root: Path | None = None,
    missing: Missing = "refuse",
    test_fraction: float = 0.2,
    seed: int = 0,
    image_size: int | None = None,
) -> DataSet:
    """Load a data set by name, or your own from a file or folder.

    Args:
        spec: a name (`digits`, `mnist`, `fashion-mnist`, `cifar10`, `cifar100`, `uci/boston`, ...)
            or `csv:PATH`, `parquet:PATH`, `npz:PATH`, `images:FOLDER_OR_TAR`.
        target: tables: the column to predict.
        task: tables: "classification" or "regression"; None guesses from the target.
        split: uci: which of the published splits, from 0.
        root: folder of named sets; None is `data_root()`.
        missing: tables: "refuse" missing values, or "impute" training median or mode.
        test_fraction: own data: part set aside for testing.
        seed: own data: of the random split.
        image_size: images: resize to this many pixels each way.

    Example:
        >>> data = load_data("digits")
        >>> data.name, data.input_shape, data.n_outputs, len(data.train)
        ('digits', (1, 8, 8), 10, 1433)
    """
    kind, path = _parse(spec)
    given: dict[str, object] = {"target": target, "task": task, "image_size": image_size}
    given["split"] = split or None
    given["missing"] = None if missing == "refuse" else missing
    given["test_fraction"] = None if test_fraction == 0.2 else test_fraction
    _check_options(spec, kind, [name for name, value in given.items() if value is not None])
    root = data_root() if root is None else Path(root)
    if kind == "images":
        return load_images(
            Path(path), image_size=image_size, test_fraction=test_fraction, seed=seed
        )
    if kind == "uci":
        return load_uci(path, root, split)
    if kind == "named":
        return _load_named(path, root)
    return load_table(
        kind,
        Path(path),
        target=target,
        task=task,
        missing=missing,
        test_fraction=test_fraction,
        seed=seed,
    )


def _check_options(spec: str, kind: str, given: list[str]) -> None:
    allowed = _OPTIONS["table" if kind in _TABLES else kind]
    unused = [name for name in given if name not in allowed]
    if unused:
        raise ValueError(f"load_data: {', '.join(unused)} cannot be used with {spec!r}. Remove it.")


def _parse(spec: str) -> tuple[str, str]:
    if not isinstance(spec, str):
        raise TypeError(f"load_data: spec must be text such as 'digits', got {spec!r}.")
    kind, colon, rest = spec.partition(":")
    if colon and rest and kind in (*_TABLES, "images", "uci"):
        return kind, rest if kind == "uci" else str(Path(rest).expanduser())
    if spec.startswith("uci/"):
        return "uci", spec.removeprefix("uci/")
    if spec in REGISTRY:
        return "named", spec
    raise ValueError(
        f"load_data: spec must be one of {', '.join(REGISTRY)}, or csv:PATH, parquet:PATH, "
        f"npz:PATH, images:PATH; got {spec!r}.{did_you_mean(spec, REGISTRY)}"
    )


def _load_named(name: str, root: Path) -> DataSet:
    if name == "digits":
        return load_digits()
    if name in LAYOUTS:
        return load_cifar(name, root)
    return load_idx(name, root)
