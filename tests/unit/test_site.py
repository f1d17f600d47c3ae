"""The site without its builder: pages have a place, public names an entry, links lead somewhere."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import yaml

import bayesieve as bs
from bayesieve import runs
from check_site import problems
from pages import links, reference, tutorials

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.BaseLoader)


def placed(entry) -> list[str]:
    """The pages of an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for one in inner for page in placed(one)]


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    return reference.public_names([ROOT / "README.md", *sorted(DOCS.rglob("*.md"))])


def test_every_page_has_one_place_in_the_navigation(names):
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    made = ["reference/index.md", *(f"reference/{room}.md" for room in names)]
    assert sorted(placed(SITE["nav"])) == sorted([*pages, *links.ELSEWHERE, *made])


def test_every_public_name_has_an_entry(names):
    listed = {name for room in names.values() for name in room}
    assert {f"bayesieve.{name}" for name in bs._HOME} <= listed
    assert {"bayesieve.core.priors.SpikeSlab", "bayesieve.sieve.rules.keep_zeros"} <= listed
    assert len(listed) == sum(len(room) for room in names.values())
    for name in listed:
        home, _, last = name.rpartition(".")
        assert getattr(importlib.import_module(home), last).__doc__, name


def test_commands_in_python_are_described_with_their_options(names):
    page = reference.page("runs", names["runs"])
    assert "::: bayesieve.runs.train\n" in page
    assert "    dry_run: " in runs.train.__doc__
    assert "::: bayesieve.runs.Run\n" in page


def test_every_figure_is_on_a_page():
    shown = {
        name
        for path in DOCS.rglob("*.md")
        for name in re.findall(r"images/([\w.-]+)", path.read_text(encoding="utf-8"))
    }
    assert {path.name for path in (DOCS / "images").iterdir()} <= shown


@pytest.mark.parametrize("module", [links, reference, tutorials], ids=lambda m: m.__name__)
def test_examples_of_the_builder(module):
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0


def test_what_pages_link_to_outside_becomes_a_page():
    for path in sorted(DOCS.rglob("*.md")):
        for target in links.targets(path.relative_to(ROOT).as_posix()):
            if links.site_place(target).startswith("source/"):
                assert links.source_page(ROOT / target), target


def test_a_built_site_is_checked(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.html").write_text('<h1 id="top">B</h1><a href="../index.html#none">x</a>')
    (tmp_path / "style.css").write_text("a { b: url(https://fonts.example/x) } /* url(y) */")
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="style.css"><img src="gone.png">'
        '<a href="a/b.html#top">fine</a><a href="https://example.org">a site of others</a>'
        '<script src="//cdn.example/x.js"></script><a href="/root.html">r</a>'
    )
    assert problems(tmp_path) == [
        "a/b.html links to ../index.html#none: no such heading",
        "index.html loads //cdn.example/x.js",
        "index.html links to gone.png: no such file",
        "index.html links to /root.html: an absolute path, which needs a server",
        "style.css loads https://fonts.example/x",
    ]
