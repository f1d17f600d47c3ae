"""From the data of a report to one HTML file that needs nothing else.

Style and scripts stand inside the page. A content security policy names their hashes and forbids
everything else, so that a page can neither fetch nor send anything, whatever its data say.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from bayesieve.assess.predict import has_spread
from bayesieve.core.posterior import Model
from bayesieve.data import DataSet
from bayesieve.deliver.card import headline_rows
from bayesieve.files import write_atomically
from bayesieve.report.collect import collect
from bayesieve.report.packing import Json
from bayesieve.report.source import MAX_BYTES, Limits, Source

_SCRIPTS = (
    "numbers.js", "state.js", "forward.js", "svg.js", "charts.js", "sieve.js", "pictures.js",
    "examples.js", "inputs.js", "familiarity.js", "play.js", "sections.js", "page.js",
)  # fmt: skip


def page(data: Json) -> str:
    """The page of what `collect` returns; raises if it would be larger than 3 MB."""
    style, script = asset("page.css"), script_text()
    body = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # No "<" stands in a script element that could end it or open a comment.
    body = body.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = " · ".join(run["name"] for run in data["runs"])
    parts = {
        "policy": html.escape(policy, quote=True).replace("&#x27;", "'"),
        "title": html.escape(f"{title} — bayesieve report"),
        "static": _static(data),
        "style": style,
        "data": body,
        "script": script,
    }
    # in one pass, so that no part is searched for marks
    text = re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], asset("page.html"))
    size = len(text.encode())
    if size > MAX_BYTES:
        raise ValueError(
            f"report: the page would have {size / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:g}. Give "
            "fewer runs or fewer `points`."
        )
    return text


def asset(name: str) -> str:
    """A file that comes with the package.

    Example:
        >>> asset("page.html")[:15]
        '<!doctype html>'
    """
    return (resources.files("bayesieve.report") / "assets" / name).read_text(encoding="utf-8")


def script_text() -> str:
    """All of the page's JavaScript, in one scope of its own."""
    scripts = [asset(name) for name in _SCRIPTS]
    return '(function () {\n"use strict";\n' + "\n".join(scripts) + "\n})();\n"


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _static(data: Json) -> str:
    """Headline tables for readers without JavaScript."""
    tables = []
    for run in data["runs"]:
        header, *rows = headline_rows(run)
        cells = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
        lines = [f"<tr>{cells}</tr>"]
        for first, *rest in rows:
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
            lines.append(f'<tr><th scope="row">{html.escape(first)}</th>{cells}</tr>')
        name = html.escape(f"{run['name']}: {run['title']}")
        tables.append(f"<h2>{name}</h2><table>{''.join(lines)}</table>")
    return "\n".join(tables)


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
