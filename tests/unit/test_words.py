"""Plain English: the field's words instead of our own, docstrings that begin with verb or noun.

A budget is the number of places that are left: none. It does not rise.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
BUDGETS = {"pages": 0, "docstrings": 0, "messages": 0, "heads": 0}

_COUNT = r"(?:\d[\d,]*|two|three|four|five|six|ten|twenty|forty)"
WORDS = {  # ours: write
    r"doubt(?:s|ed|ful)?": "uncertainty, is uncertain",
    r"strange(?:r|rs|st|ness)?": "out-of-distribution (OOD), unfamiliar",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:stand|stands|stood|standing) (?:in )?for": "represent, approximate, replace",
    r"stands? (?:in|at|beside|below|above|there)": "is in, is at",
    r"sits? (?:in|on|at)|(?:lie|lies) (?:on|at|where|beside|far)": "is, is stored",
    r"(?:tells?|told) (?:\w+ ){0,3}apart|unless told|are told|is told": "distinguish; by default",
    r"shares? of (?:the )?zeros": "sparsity",
    r"(?:within|beyond) chance": "(not) significantly different",
    r"(?:cut|pruned|dropped|removed|sieved) (?:at once|in one shot)": "one-shot pruning",
    rf"{_COUNT} passes(?! over the (?:weights|activations))": "epochs",
    r"weights? of the prior": "KL weight",
    r"networks? of five|five members": "an ensemble of five",
    r"steps in C|natively": "fused C kernels",
    r"dials?|rhythm": "factor, interval",
    r"for want of|none of that": "for lack of; not",
    r"how sure|surest|surer": "confident",
    r"whole units go|(?:units|weights|channels|heads) that go": "are removed",
}
PRIVATE = re.compile("|".join(rf"\b(?:{word})\b" for word in WORDS), re.I)
HEADS = ("What", "Of", "Those", "Whether", "How")
FIELDS = {"doubt", "strangers", "within chance"}  # of the data of a report: a file format

_NOT_PROSE = re.compile(
    r"^```.*?^```|<!-- *([\w -]+):begin.*?\1:end *-->|`[^`\n]*`|\$[^$\n]*\$", re.M | re.S
)


def prose(markdown: str) -> str:
    """The text without code, formulas and tables that a script writes."""
    return _NOT_PROSE.sub("`", markdown)


def of_pages() -> list[str]:
    found = []
    for path in PAGES:
        text = prose(path.read_text(encoding="utf-8"))
        found += [
            f"{path.relative_to(ROOT)}: {_around(text, hit)}" for hit in PRIVATE.finditer(text)
        ]
    return found


def _around(text: str, hit: re.Match[str]) -> str:
    return " ".join(text[max(hit.start() - 40, 0) : hit.end() + 30].split())


@cache
def strings(path: Path) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Docstrings of a file, and its other strings, each with its line."""
    tree, docs, others, seen = ast.parse(path.read_text(encoding="utf-8")), [], [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                about = text.partition("\nExample:")[0]  # examples are code
                docs.append((node.body[0].lineno, about))
                seen.add(id(node.body[0].value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in seen and node.value not in FIELDS:
            others += [(node.lineno, node.value)] if isinstance(node.value, str) else []
    return docs, others


def of_sources(kind: str) -> list[str]:
    found = []
    for path in SOURCES:
        docs, others = strings(path)
        for line, text in others if kind == "messages" else docs:
            where = f"{path.relative_to(ROOT)}:{line}"
            if kind == "heads":
                found += [f"{where}: {text.splitlines()[0]}"] if text.split()[0] in HEADS else []
            else:
                plain = re.sub(r"^ +strangers:", "", prose(text), flags=re.M)  # an argument
                found += [f"{where}: {_around(plain, hit)}" for hit in PRIVATE.finditer(plain)]
    return found


@pytest.mark.parametrize("kind", BUDGETS)
def test_plain_words(kind):
    found = of_pages() if kind == "pages" else of_sources(kind)
    advice = "\n".join(f"{ours}: write {write!r}" for ours, write in WORDS.items())
    assert len(found) <= BUDGETS[kind], "\n".join(found) + "\n" + advice


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("the doubt about the weights", True),
        ("`doubt` is a field of the file", False),
        ("after ten passes", True),
        ("two passes over the weights", False),
        ("<!-- a:begin -->\nstrangers\n<!-- a:end -->", False),
        ("R̂ represents no doubting", False),
    ],
)
def test_the_pattern_finds_prose_only(text, wrong):
    assert bool(PRIVATE.search(prose(text))) == wrong


def test_the_changelog_has_one_line_for_each_change():
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 150
    titles = [line for line in lines if line.startswith("### ")]
    assert set(titles) <= {"### Added", "### Changed", "### Fixed", "### Removed"}
    bullets = [line for line in lines if line.startswith("- ")]
    assert all(line.startswith(("- ", "#")) or not line[:1].isspace() for line in lines)
    assert len(bullets) > 50
