"""Files of the repository as pages of the site: their places, their links, their Markdown.

No import of mkdocs: the tests read every link without it.
"""

import ast
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Pages that stand elsewhere in the repository, by their place in the site.
ELSEWHERE = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples.md": "examples/README.md",
    "log.md": "results/LOG.md",
}
_PLACES = {path: page for page, path in ELSEWHERE.items()} | {
    "README.md": "index.md",
    "examples": "examples.md",
}
_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")


def plain(markdown: str) -> str:
    r"""GitHub's Markdown as Python-Markdown reads it: blank lines before lists, four spaces inside.

    Example:
        >>> plain("Two:\n- a\n  - b\n<!-- note -->\n| c |")
        'Two:\n\n- a\n    - b\n\n\n| c |'
    """

    def translated(text: str) -> str:
        text = re.sub(r"^<!--.*?-->$", "\n", text, flags=re.M)
        text = re.sub(r"^((?! *[-*] | *\d+\. |\s).+)\n(?=[-*] )", r"\1\n\n", text, flags=re.M)
        return re.sub(r"^  (?=[-*] )", "    ", text, flags=re.M)

    return _outside_fences(markdown.replace("```python runnable", "```python"), translated)


def moved_links(markdown: str, path: str, place: str) -> str:
    """Links of a file of the repository, as its page of the site has them.

    Args:
        markdown: the text.
        path: of the file it comes from.
        place: of the page.

    Example:
        >>> moved_links("[new](docs/data.md#sets)", "CHANGELOG.md", "changelog.md")
        '[new](data.md#sets)'
        >>> moved_links("[it](../../src/bayesieve/text.py)", "docs/theory/map.md", "theory/map.md")
        '[it](../source/src/bayesieve/text.py.md)'
    """

    def moved(link: re.Match[str]) -> str:
        if path == f"docs/{place}" and not (ROOT / "docs" / place).exists():
            return link[0]  # made by the build
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        new = posixpath.relpath(site_place(target), posixpath.dirname(place) or ".")
        return f"]({new}{link[2] or ''})"

    return _outside_fences(markdown, lambda text: _LINK.sub(moved, text))


def site_place(path: str) -> str:
    """Where the site has a file of the repository.

    Example:
        >>> site_place("docs/images/a.png"), site_place("README.md"), site_place("results/a.json")
        ('images/a.png', 'index.md', 'source/results/a.json')
    """
    if path in _PLACES:
        return _PLACES[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith((".json", ".mjs")) else f"source/{path}.md"


def source_page(path: Path) -> str:
    """A file as a page that shows it; data as they are; a folder as a list of its files."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix in {".json", ".mjs"}:
        return path.read_text(encoding="utf-8")
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n"
    if path.is_dir():
        rows = [f"- `{file.name}`: {_first_line(file)}" for file in sorted(path.glob("*.py"))]
        return head + "\n".join(rows)
    language = "python" if path.suffix == ".py" else "text"
    return f"{head}````{language}\n{path.read_text(encoding='utf-8')}````\n"


def targets(path: str) -> list[str]:
    """Files of the repository that a page links to."""
    text = _FENCE.sub("", (ROOT / path).read_text(encoding="utf-8"))
    folder = posixpath.dirname(path)
    return [posixpath.normpath(posixpath.join(folder, link[1])) for link in _LINK.finditer(text)]


def _first_line(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n")[0]


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    pieces, last = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces += [change(markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*pieces, change(markdown[last:])])
