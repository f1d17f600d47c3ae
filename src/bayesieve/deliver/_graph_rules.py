"""Which names and values a stored graph may hold: identifiers and what is on the list."""

import keyword
import re
from typing import Any

from torch import fx

from bayesieve.deliver import _allowed

LIMIT = 1 << 40  # of a whole number in a file
FX_OPS = {
    "input": "placeholder", "tensor": "get_attr", "layer": "call_module",
    "function": "call_function", "method": "call_method", "output": "output",
}  # fmt: skip
_ATOM = re.compile(r"[A-Za-z0-9_]{1,200}")


def is_reference(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {"node"}


def _is_identifier(name: object) -> bool:
    return (
        isinstance(name, str)
        and _ATOM.fullmatch(name) is not None
        and name.isidentifier()
        and not name.startswith("__")
        and not keyword.iskeyword(name)
        and name != "self"
    )


def is_scalar(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < LIMIT
    return value is None or isinstance(value, bool | float) or (
        isinstance(value, str) and len(value) <= 200
    )  # fmt: skip


def check_path(path: object, who: str) -> None:
    atoms = path.split(".") if isinstance(path, str) else []
    if not atoms or len(atoms) > 50 or not all(_ATOM.fullmatch(atom) for atom in atoms):
        raise ValueError(f"{who}: {str(path)[:80]!r} is no name of a layer")
    if any(atom.startswith("__") or hasattr(fx.GraphModule, atom) for atom in atoms):
        raise ValueError(f"{who}: {str(path)[:80]!r} is no name of a layer")


def check_row(row: list[Any], who: str, kind: type[Exception]) -> None:
    """Raise unless a node holds only names that may be called."""
    name, op, target, arguments, keywords = row
    if not (_is_identifier(name) and op in FX_OPS):
        raise kind(f"{who}: a node of the graph has a wrong name or kind: {str(row)[:80]}")
    if not all(_is_identifier(key) for key in keywords):
        raise kind(f"{who}: node {name!r} has a wrong keyword")
    if op == "input":
        fits = _is_identifier(target) and not arguments and not keywords
    elif op in ("tensor", "layer"):
        check_path(target, who)
        fits = True
    elif op == "function":
        fits = target in _allowed.FUNCTIONS
        if target == "getattr":
            fits = len(arguments) == 2 and arguments[1] in sorted(_allowed.ATTRIBUTES)
            fits = fits and not keywords
        elif target in _allowed.ARITHMETIC:
            fits = len(arguments) == 2 and not keywords and any(map(is_reference, arguments))
            fits = fits and (target in _allowed.INFIX or is_reference(arguments[0]))
    elif op == "method":
        fits = target in _allowed.METHODS
    else:
        fits = target == "output" and len(arguments) == 1 and not keywords
    if op in ("function", "method") and fits and target not in ("torch.cat", "torch.stack"):
        fits = bool(arguments) or bool(keywords)
    if op == "method" or target == "getattr":
        fits = fits and bool(arguments) and is_reference(arguments[0])
    if not fits:
        raise kind(f"{who}: node {name!r} calls {op} {target[:80]!r}, which is not allowed")
