"""A user's network, named by the dotted path of the function that builds it."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesieve.checks import did_you_mean
from bayesieve.nets.mlp import check_sizes

_PREFIX = "module:"


def from_path(path: str, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    """Import a network factory, call it, and try the network on a batch of zeros.

    The factory takes `(input_shape, n_outputs)`, or nothing; a `nn.Module` class will do. A factory
    that can be called without arguments is, unless it has parameters of these two names. The
    working directory is importable during the call.

    Args:
        path: "module:package.module.factory"; the prefix "module:" may be left out.
        input_shape: shape of one example, without the batch axis.
        n_outputs: number of outputs the network must have.

    Returns:
        The network, in the training or evaluation mode the factory left it in.

    Raises:
        ValueError: the path is malformed, the module or the name in it does not exist, or the
            network cannot map (n, *input_shape) to (n, n_outputs).
        TypeError: the name is not a factory, or it does not return a `nn.Module`.

    Example:
        >>> net = from_path("module:bayesieve.nets.convnets.lenet5_caffe", (3, 32, 32), 10)
        >>> net.conv1.in_channels
        3
        >>> from_path("bayesieve.nets.mlp.mpl", (1, 28, 28), 10)
        Traceback (most recent call last):
        ValueError: from_path: module 'bayesieve.nets.mlp' has no 'mpl'. Did you mean 'mlp'?
    """
    check_sizes("from_path", input_shape, n_outputs)
    with _working_directory_importable():
        factory = _find(path)
        model = _call(path, factory, input_shape, n_outputs)
        _probe(path, model, input_shape, n_outputs)
    return model


def is_factory(name: str | None) -> bool:
    """Return whether a network is named by the path of its factory, so that building it runs code.

    Example:
        >>> is_factory("module:my_nets.small"), is_factory("mlp:50")
        (True, False)
    """
    return name is not None and name.startswith(_PREFIX)


def source_file(path: str) -> Path | None:
    """The file that `from_path` would import for a path; nothing is imported to find it.

    Returns:
        The file, or None where there is none: a built-in module, an archive, or no such module.

    Example:
        >>> source_file("module:bayesieve.nets.mlp.mlp").name
        'mlp.py'
    """
    spec: ModuleSpec | None = None
    search: list[str] | None = None
    with _working_directory_importable():
        names = _split(path)[0].split(".")
        for i in range(len(names)):
            spec = PathFinder.find_spec(".".join(names[: i + 1]), search)
            if spec is None:
                return None
            search = list(spec.submodule_search_locations or ())
    file = None if spec is None or spec.origin is None else Path(spec.origin)
    return file if file is not None and file.is_file() else None


def _split(path: str) -> tuple[str, str]:
    """Module and name of a factory's path."""
    module_name, _, name = path.removeprefix(_PREFIX).rpartition(".")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise ValueError(
            f"from_path: the path must read 'module:package.module.factory', got {path!r}."
        )
    return module_name, name


def _find(path: str) -> Callable[..., object]:
    module_name, name = _split(path)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise ValueError(
                f"from_path: module {module_name!r} imports {missing!r}, which is not installed. "
                f"Install {missing!r} in this environment."
            ) from error
        raise ValueError(
            f"from_path: there is no module {module_name!r}. "
            f"Run from the folder that holds {missing.split('.')[0]!r}, or install its package."
        ) from error
    except SyntaxError as error:
        raise ValueError(
            f"from_path: module {module_name!r} is no valid Python: {error}."
        ) from error
    if not hasattr(module, name):
        hint = did_you_mean(name, vars(module))
        raise ValueError(f"from_path: module {module_name!r} has no {name!r}.{hint}")
    factory = getattr(module, name)
    if not callable(factory):
        raise TypeError(
            f"from_path: {path!r} must be a function that builds the network, "
            f"got {_kind(factory)}. Name the function, not what it returns."
        )
    return factory


def _call(
    path: str, factory: Callable[..., object], input_shape: tuple[int, ...], n_outputs: int
) -> nn.Module:
    signature = inspect.signature(factory)
    named = {"input_shape": input_shape, "n_outputs": n_outputs}
    if named.keys() <= signature.parameters.keys() and _accepts(signature, **named):
        build = partial(factory, **named)
    elif _accepts(signature):
        build = partial(factory)
    elif _accepts(signature, input_shape, n_outputs):
        build = partial(factory, input_shape, n_outputs)
    else:
        raise TypeError(
            f"from_path: {path!r} must take (input_shape, n_outputs) or nothing, "
            f"got the signature {signature}. Give its other arguments defaults."
        )
    try:
        model = build()
    except Exception as error:  # whatever the user's own function raises
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise ValueError(f"from_path: {path!r} failed with {reason}.") from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"from_path: {path!r} must return a nn.Module, got {_kind(model)}.")
    return model


def _accepts(signature: inspect.Signature, *args: object, **named: object) -> bool:
    try:
        signature.bind(*args, **named)
    except TypeError:
        return False
    return True


def _probe(path: str, model: nn.Module, input_shape: tuple[int, ...], n_outputs: int) -> None:
    """Raise unless two examples of zeros give outputs of shape (2, n_outputs), in eval mode."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    zeros = torch.zeros(2, *input_shape, dtype=like.dtype, device=like.device)
    modes = {part: part.training for part in model.modules()}
    try:
        with torch.no_grad():
            outputs = model.eval()(zeros)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"from_path: the network of {path!r} must accept inputs of shape "
            f"{tuple(zeros.shape)}, but it failed: {reason}"
        ) from error
    finally:
        for part, training in modes.items():
            part.training = training
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"from_path: the network of {path!r} must return one tensor, got {_kind(outputs)}."
        )
    if outputs.shape != (2, n_outputs):
        raise ValueError(
            f"from_path: the network of {path!r} must map {tuple(zeros.shape)} to "
            f"{(2, n_outputs)}, got {tuple(outputs.shape)}. Set its last layer to "
            f"{n_outputs} outputs."
        )


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    here = os.getcwd()
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)


def _kind(thing: object) -> str:
    name = type(thing).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
