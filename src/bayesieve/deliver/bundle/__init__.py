"""A bundle: one folder that holds a finished model and everything needed to use it.

    model.safetensors       weights; those with many zeros as places and values (see `packing`)
    config.json             the graph, input shape, preprocessing, classes, likelihood, provenance
    metrics.json            numbers, where given
    masks.safetensors       which weights of the network before compaction were kept, where given
    posterior.safetensors   the kept part of the posterior, where given
    familiarity.safetensors what training inputs look like, where given
    architecture.py         the same network in plain torch
    README.md               the model card

Nothing in a bundle is code to bayesieve: `load` reads tensors and JSON, and calls only names that
are on the list in `allowed`. architecture.py is for people without bayesieve and is never run here.
"""

from pathlib import Path
from typing import Any

from torch import nn

from bayesieve.core import storage
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.deliver.bundle.reading import Bundle as Bundle
from bayesieve.deliver.bundle.reading import check_input as check_input
from bayesieve.deliver.bundle.reading import check_outputs as check_outputs
from bayesieve.deliver.bundle.reading import example_input as example_input
from bayesieve.deliver.bundle.reading import is_bundle as is_bundle
from bayesieve.deliver.bundle.reading import read_bundle as read_bundle
from bayesieve.deliver.bundle.writing import FILES as FILES
from bayesieve.deliver.bundle.writing import check_free as check_free
from bayesieve.deliver.bundle.writing import copy_bundle as copy_bundle
from bayesieve.deliver.bundle.writing import save_bundle as save_bundle
from bayesieve.deliver.bundle.writing import stored_bytes as stored_bytes


def load(folder: Path | str) -> Any:
    """Read the module of a bundle, in eval mode; it gives the saved one's outputs bit for bit.

    A folder of a narrowed model of transformers gives that model (`deliver.huggingface`).

    Example:
        >>> import tempfile, torch
        >>> module, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(1, 3)
        >>> path = save_bundle(module, Path(tempfile.mkdtemp()) / "small")
        >>> torch.equal(load(path)(x), module(x))
        True
    """
    from bayesieve.deliver import huggingface  # which needs this module

    if huggingface.is_folder(Path(folder)):
        return huggingface.load(folder)
    return read_bundle(folder).module


def save(
    thing: Posterior | SparseModel | nn.Module, path: Path | str, **options: Any
) -> Path:  # fmt: skip
    """Write a posterior or sparse model to one file, or a module to a folder.

    The folder is a bundle; of a narrowed model of transformers one of `deliver.huggingface`.

    Args:
        thing: what to save.
        path: file of a posterior or sparse model; folder of a module.
        options: `extra` of `core.storage.save`, or those of `save_bundle`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "small"
        >>> sorted(p.name for p in save(nn.Linear(2, 1), folder).iterdir())
        ['README.md', 'architecture.py', 'config.json', 'model.safetensors']
    """
    from bayesieve.deliver import huggingface  # which needs this module

    if huggingface.is_narrowed(thing):
        return huggingface.save(thing, path, **options)
    if isinstance(thing, nn.Module):
        return save_bundle(thing, path, **options)
    if isinstance(thing, SparseModel | Posterior):
        return storage.save(thing, path, **options)
    raise TypeError(
        f"save: {type(thing).__name__} cannot be saved; give a Posterior, a SparseModel or a "
        "module."
    )
