"""From the data of a report to one HTML file that needs nothing else.

Style and scripts stand inside the page. A content security policy names their hashes and forbids
everything else, so that a page can neither fetch nor send anything, whatever its data say.
"""

import base64
import hashlib
import html
import json
from importlib import resources

from bayesieve.deliver.card import headline_rows
from bayesieve.report.packing import Json
from bayesieve.report.source import MAX_BYTES

_SCRIPTS = (
    "numbers.js", "forward.js", "svg.js", "charts.js", "sieve.js", "pictures.js", "examples.js",
    "inputs.js", "play.js", "sections.js", "page.js",
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
    text = _fill(
        asset("page.html"),
        {
            "policy": html.escape(policy, quote=True).replace("&#x27;", "'"),
            "title": html.escape(f"{title} — bayesieve report"),
            "static": _static(data),
            "style": style,
            "data": body,
            "script": script,
        },
    )
    size = len(text.encode())
    if size > MAX_BYTES:
        raise ValueError(
            f"report: the page would have {size / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:g}. Give "
            "fewer runs or fewer --points."
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
    parts = [asset(name) for name in _SCRIPTS]
    return '(function () {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"


def _fill(template: str, parts: dict[str, str]) -> str:
    """Replace {{name}} marks in one pass, so that no part is searched for marks."""
    pieces = template.split("{{")
    text = pieces[0]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        text += parts[name] + rest
    return text


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _static(data: Json) -> str:
    """Headline tables for readers without JavaScript."""
    parts = []
    for run in data["runs"]:
        header, *rows = headline_rows(run)
        cells = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
        lines = [f"<tr>{cells}</tr>"]
        for first, *rest in rows:
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
            lines.append(f'<tr><th scope="row">{html.escape(first)}</th>{cells}</tr>')
        name = html.escape(f"{run['name']}: {run['title']}")
        parts.append(f"<h2>{name}</h2><table>{''.join(lines)}</table>")
    return "\n".join(parts)
