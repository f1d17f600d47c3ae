"""A bundle: one folder that holds a finished model and everything needed to use it.

    model.safetensors       weights; those with many zeros as places and values (see `packing`)
    config.json             the graph, input shape, preprocessing, classes, likelihood, provenance
    metrics.json            numbers, where given
    masks.safetensors       which weights of the network before compaction were kept, where given
    posterior.safetensors   the kept part of the posterior, where given
    architecture.py         the same network in plain torch
    README.md               the model card

Nothing in a bundle is code to bayesieve: `load` reads tensors and JSON, and calls only names that
are on the list in `allowed`. architecture.py is for people without bayesieve and is never run here.
"""

from bayesieve.deliver.bundle.reading import Bundle as Bundle
from bayesieve.deliver.bundle.reading import check_input as check_input
from bayesieve.deliver.bundle.reading import check_outputs as check_outputs
from bayesieve.deliver.bundle.reading import example_input as example_input
from bayesieve.deliver.bundle.reading import is_bundle as is_bundle
from bayesieve.deliver.bundle.reading import load as load
from bayesieve.deliver.bundle.reading import read_bundle as read_bundle
from bayesieve.deliver.bundle.writing import check_free as check_free
from bayesieve.deliver.bundle.writing import copy_bundle as copy_bundle
from bayesieve.deliver.bundle.writing import save as save
from bayesieve.deliver.bundle.writing import save_bundle as save_bundle
from bayesieve.deliver.bundle.writing import stored_bytes as stored_bytes
