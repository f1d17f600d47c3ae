"""A page from objects in memory, for scripts and notebooks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesieve.core.posterior import Model, has_spread
from bayesieve.data import DataSet
from bayesieve.files import write_atomically
from bayesieve.report.collect import collect
from bayesieve.report.page import page
from bayesieve.report.source import Limits, Source


def write_report(
    model: Model,
    data: DataSet,
    path: Path | str,
    *,
    name: str = "model",
    before: Model | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    limits: Limits | None = None,
) -> Path:
    """Write the page of a model that is in memory: one HTML file that needs nothing else.

    Args:
        model: a posterior or a sparse model.
        data: what it was trained and tested on; the page tests it on `data.test`. Own tensors
            become one by `DataSet(name, Examples(x, y), Examples(x_test, y_test), task, classes)`.
        path: of the page; its folder must exist.
        name: of the model, in the page.
        before: a model to compare with, such as the one that was pruned.
        history: one row of numbers per epoch, such as `Fit.history`.
        limits: how much goes into the page.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> import bayesieve as bs
        >>> from torch import nn
        >>> data = bs.load_data("digits")
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> problem = bs.Problem(net, bs.likelihoods.Categorical(), data.train)
        >>> run = bs.fit(problem, bs.MAP(), epochs=1)
        >>> path = Path(tempfile.mkdtemp()) / "report.html"
        >>> write_report(run.posterior, data, path, limits=Limits(points=2)).name
        'report.html'
    """
    if not isinstance(data, DataSet):
        raise TypeError(
            f"write_report: data must be a DataSet, got {type(data).__name__}. Make one of tensors "
            'by bayesieve.data.DataSet("mine", Examples(x, y), Examples(x_test, y_test), '
            '"classification", ("no", "yes")), or "regression" without classes.'
        )
    source = Source(
        name,
        f"{name} on {data.name}",
        model,
        data,
        before=before,
        before_name="before",
        score="snr" if has_spread(model) else "magnitude",
        history=history,
    )
    target = Path(path)
    write_atomically(target, page(collect([source], limits=limits)))
    return target
