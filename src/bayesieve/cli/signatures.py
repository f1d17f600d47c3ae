"""The signature of a command as its source file has it: help must not import what commands need.

Commands are functions of modules that import torch, which takes a second. Their annotations are
made of names of `runs.arguments`, their defaults are plain values, and their docstring says what
each argument means. So all that flags are made of can be read from the source.
"""

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bayesieve import runs
from bayesieve.runs import arguments


class Signature(NamedTuple):
    """Arguments of a command."""

    parameters: dict[str, inspect.Parameter]
    about: str  # the docstring up to its arguments
    helps: dict[str, str]  # of each argument, on one line


@cache
def signature_of(name: str) -> Signature:
    """The signature of a function of `bayesieve.runs`.

    Example:
        >>> list(signature_of("verify").parameters), signature_of("verify").helps["bundle"]
        (['bundle', 'against', 'trust'], 'Bundle folder.')
    """
    function = _functions(runs.HOME[name])[name]
    about, _, rest = (ast.get_docstring(function) or "").partition("\n\nArgs:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", rest.partition("\n\n")[0], re.M)
    helps = {argument: " ".join(text.split()) for argument, text in found}
    return Signature(dict(_parameters(function.args)), about, helps)


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    source = (Path(runs.__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    nodes = ast.parse(source).body
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


def _parameters(args: ast.arguments) -> list[tuple[str, inspect.Parameter]]:
    """The parameters with their types; `**settings` is left out."""
    empty = inspect.Parameter.empty
    defaults = [None] * (len(args.args) - len(args.defaults)) + [*args.defaults]
    both = (
        (inspect.Parameter.POSITIONAL_OR_KEYWORD, args.args, defaults),
        (inspect.Parameter.KEYWORD_ONLY, args.kwonlyargs, args.kw_defaults),
    )
    found = []
    for kind, nodes, values in both:
        for node, value in zip(nodes, values, strict=True):
            default = empty if value is None else ast.literal_eval(value)
            hint: Any = eval(ast.unparse(node.annotation or ast.Name("Any")), vars(arguments))
            parameter = inspect.Parameter(node.arg, kind, default=default, annotation=hint)
            found.append((node.arg, parameter))
    return found
