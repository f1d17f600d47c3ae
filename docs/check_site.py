"""Check a built site: every link leads somewhere, and no page asks the network for anything.

    python docs/check_site.py site/0.2.0

Links are read from HTML, what pages load from HTML and style sheets. Links to other sites may stand
in the text: nobody follows them unless the reader does.
"""

import argparse
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, by tag: the attribute with the address.
_LOADED = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src",
    "audio": "src", "embed": "src", "object": "data", "link": "href", "use": "href",
}  # fmt: skip
_STYLE = re.compile(r"""(?:url\(\s*|@import\s+)['"]?([^'")\s;]+)""")


class _Reader(HTMLParser):
    """Addresses that a page links to and loads, and the names that links may have."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        self._style = tag == "style"
        self.loaded += _STYLE.findall(values.get("style", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if (name := _LOADED.get(tag)) in values and name is not None:
            navigation = tag == "link" and values.get("rel") in ("next", "prev", "canonical")
            (self.links if navigation else self.loaded).append(values[name])
        self.loaded += [one.split()[0] for one in values.get("srcset", "").split(",") if one]

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loaded += _STYLE.findall(data)
            self._style = False


def problems(folder: Path) -> list[str]:
    """Everything that is wrong with the pages of a folder, one line each."""
    pages = {path: _read(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(folder)
        for address in page.loaded:
            if _is_outside(address):
                found.append(f"{where} loads {address}")
        for address in [*page.loaded, *page.links]:
            if not _is_outside(address) and (reason := _broken(path, address, pages)):
                found.append(f"{where} links to {address}: {reason}")
    for path in sorted(folder.rglob("*.css")):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
        for address in _STYLE.findall(text):
            if _is_outside(address):
                found.append(f"{path.relative_to(folder)} loads {address}")
            elif not address.startswith(("data:", "#")) and not (path.parent / address).exists():
                found.append(f"{path.relative_to(folder)} loads {address}: no such file")
    return found


def _read(path: Path) -> _Reader:
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def _is_outside(address: str) -> bool:
    """Whether an address is that of another site.

    Example:
        >>> _is_outside("//cdn.example.org/a.js"), _is_outside("data:,a"), _is_outside("a.html#b")
        (True, False, False)
    """
    return address.startswith("//") or urlsplit(address).scheme in ("http", "https", "ftp", "ws")


def _broken(path: Path, address: str, pages: dict[Path, _Reader]) -> str | None:
    """Why an address of this site leads nowhere; None where it leads somewhere."""
    parts = urlsplit(address)
    if parts.scheme or address.startswith(("data:", "javascript:")):
        return None
    if parts.path.startswith("/"):
        return "an absolute path, which needs a server"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return "no such file"
    if not parts.path and "demo" in path.parts:
        return None  # its script makes the headings
    page = next((reader for file, reader in pages.items() if file.resolve() == target), None)
    top = parts.fragment in ("", "__top")
    if page is not None and not top and unquote(parts.fragment) not in page.names:
        return "no such heading"
    return None


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if not (folder / "index.html").is_file():
        raise SystemExit(f"{folder}: there is no index.html; build the site first: make docs")
    found = problems(folder)
    print(
        "\n".join(found) or f"{folder}: every link leads somewhere, nothing is loaded from outside"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
