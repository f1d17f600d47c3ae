"""Count what a reader opens: all modules that some modules import, at any depth, and their lines.

    python tools/closure.py bayesieve.engines.sbnn
    python tools/closure.py bayesieve.training.fit bayesieve.assess.evaluate --list

Every import counts, also one inside a function; only those under `if TYPE_CHECKING` do not. Lines
are whole files, with docstrings and blanks. `tests/unit/test_rooms.py` holds budgets for them.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = "bayesieve"


def files(source: Path = SOURCE) -> dict[str, Path]:
    """The file of every module of the package, by dotted name."""
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(source).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def lines(path: Path) -> int:
    """Lines of a file."""
    return path.read_text(encoding="utf-8").count("\n")


def imports(name: str, known: dict[str, Path]) -> set[str]:
    """Modules of ours that a module imports at any depth."""
    path = known[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in _imports_in(ast.parse(path.read_text(encoding="utf-8"))):
        for dotted in _named(node, package):
            while dotted and dotted not in known:
                dotted = dotted.rpartition(".")[0]
            found.add(dotted)
    return found - {"", PACKAGE}


def closure(roots: list[str], known: dict[str, Path]) -> set[str]:
    """The modules that a reader of these modules may have to open, themselves included."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in known:
            raise SystemExit(f"closure.py: {name} is no module of {PACKAGE}.")
        if name not in seen:
            seen.add(name)
            waiting += imports(name, known) - seen
    return seen


def _imports_in(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from _imports_in(child)


def _named(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names)


def main() -> None:
    """Print the count, and with --list every module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="+", help="dotted names, such as bayesieve.engines.sbnn")
    parser.add_argument("--list", action="store_true", help="also print every module")
    options = parser.parse_args()
    known = files()
    found = closure(options.modules, known)
    if options.list:
        for name in sorted(found):
            print(f"{lines(known[name]):6} {name}")
    print(f"{len(found)} modules, {sum(lines(known[name]) for name in found):,} lines")


if __name__ == "__main__":
    main()
