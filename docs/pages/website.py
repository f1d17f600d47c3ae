"""Hooks of mkdocs: what the site has besides the Markdown files of docs/.

The build runs the demo and the tutorials, lists every public name, takes in the pages that stand
beside docs/ (changelog, examples), shows the files that pages link to, and turns formulas into
MathML. So the folder that it writes needs no network and no other file.

BAYESIEVE_DOCS=draft leaves out what takes time: demo and tutorials.
"""

import html
import os
import posixpath
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))

import bayesieve
from bayesieve import runs
from pages import reference, tutorials
from pages.links import ELSEWHERE, moved_links, plain, site_place, source_page, targets

ROOT = Path(__file__).parents[2]
DRAFT = os.environ.get("BAYESIEVE_DOCS") == "draft"
EXECUTED = (
    "quickstart.md",
    "tutorial.md",
    "tutorials/images.md",
    "tutorials/table.md",
    "tutorials/language-model.md",
)
_MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
# Browsers leave out MathML's styles of letters: script N is a letter of its own, 𝒩.
_LETTERS = re.compile(r'<mi mathvariant="(script|double-struck)">([A-Z])</mi>')
_STYLES = {
    "script": "𝒜ℬ𝒞𝒟ℰℱ𝒢ℋℐ𝒥𝒦ℒℳ𝒩𝒪𝒫𝒬ℛ𝒮𝒯𝒰𝒱𝒲𝒳𝒴𝒵",
    "double-struck": "𝔸𝔹ℂ𝔻𝔼𝔽𝔾ℍ𝕀𝕁𝕂𝕃𝕄ℕ𝕆ℙℚℝ𝕊𝕋𝕌𝕍𝕎𝕏𝕐ℤ",
}
_BLOCK = r"<!-- {0}:begin -->\n(.*?)\n<!-- {0}:end -->"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write into a folder per version."""
    config.site_dir = str(ROOT / "site" / bayesieve.__version__)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files that the build makes."""

    def add(place: str, content: str | bytes) -> None:
        files.append(File.generated(config, place, content=content))

    pages = sorted((ROOT / "docs").rglob("*.md"))
    for page, path in ELSEWHERE.items():
        add(page, (ROOT / path).read_text(encoding="utf-8"))
    names = reference.public_names([ROOT / "README.md", *pages])
    add("reference/index.md", reference.overview(names))
    for room, paths in names.items():
        add(f"reference/{room}.md", reference.page(room, paths))
    texts = [*ELSEWHERE.values(), *(page.relative_to(ROOT).as_posix() for page in pages)]
    linked = {target for text in texts for target in targets(text)}
    for target in sorted(linked):
        if site_place(target).startswith("source/"):
            add(site_place(target), source_page(ROOT / target))
    add("demo/report.html", _demo())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run the code of tutorials, and translate GitHub's Markdown and links."""
    place = page.file.src_uri
    for name in re.findall(r"<!-- README:(\w+) -->", markdown):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        found = re.search(_BLOCK.format(name), readme, re.S)
        assert found is not None, f"README.md has no block {name}"
        block = found[1].replace("](docs/", "](")
        markdown = markdown.replace(f"<!-- README:{name} -->", block)
    if place in EXECUTED and not DRAFT:
        markdown, pictures = tutorials.executed(markdown, Path(place).stem)
        for name, content in pictures.items():
            file = File.generated(config, posixpath.join(posixpath.dirname(place), name),
                                  content=content)  # fmt: skip
            files.append(file)
            file.copy_file()
    return moved_links(plain(markdown), ELSEWHERE.get(place, f"docs/{place}"), place)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw without a library."""
    return _MATH.sub(_formula, content)


def on_page_context(context: Any, page: Page, config: MkDocsConfig, **_: Any) -> Any:
    """Name the version at the foot of the page, with the way to the others."""
    up = "../" * (page.url.count("/") + 1)
    version = bayesieve.__version__
    config.copyright = f'Version {version} · <a href="{up}index.html">other versions</a>'
    return context


def on_post_build(config: MkDocsConfig) -> None:
    """List the versions beside their folders."""
    here = Path(config.site_dir)
    for name in ("404.html", "sitemap.xml", "sitemap.xml.gz"):  # they need the site's address
        (here / name).unlink(missing_ok=True)
    folders = (folder.name for folder in here.parent.iterdir() if folder.is_dir())
    versions = sorted(folders, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])[::-1]
    links = "".join(f'<li><a href="{v}/index.html">Bayesieve {v}</a></li>' for v in versions)
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Bayesieve</title>'
        f'<meta http-equiv="refresh" content="3; url={versions[0]}/index.html">'
        f"<h1>Bayesieve</h1><p>The newest version opens by itself.</p><ul>{links}</ul></html>\n"
    )
    (here.parent / "index.html").write_text(text, encoding="utf-8")


def _formula(found: re.Match[str]) -> str:
    tex = html.unescape(found[2])
    tags = re.findall(r"\\tag\{(.*?)\}", tex)
    tex = re.sub(r"\\tag\{.*?\}", "", tex)
    drawn = convert(tex, display="inline" if found[1] == "span" else "block")
    drawn = _LETTERS.sub(lambda m: f"<mi>{_STYLES[m[1]][ord(m[2]) - ord('A')]}</mi>", drawn)
    if found[1] == "span":
        return drawn
    number = f"<span>({tags[0]})</span>" if tags else ""
    return f'<div class="formula">{drawn}{number}</div>'


def _demo() -> str:
    """The page of the demo, trained now."""
    if DRAFT:
        return "<!doctype html><title>draft</title><p>The demo is left out of drafts.</p>\n"
    folder = Path(tempfile.mkdtemp())
    try:
        runs.demo(out=folder / "demo")
        return (folder / "demo" / "report.html").read_text(encoding="utf-8")
    finally:
        shutil.rmtree(folder)
