import itertools
import sys

import pytest
import torch

from bayesieve.nets import from_path

SOURCE = """
import math
import torch
from torch import nn

number = 3

def sized(input_shape, n_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), n_outputs))

def swapped(n_outputs, input_shape):
    return sized(input_shape, n_outputs)

def keywords(*, input_shape, n_outputs, bias=True):
    return sized(input_shape, n_outputs)

def other_names(shape, classes):
    return sized(shape, classes)

def fixed(hidden=5, depth=2):
    assert (hidden, depth) == (5, 2)
    return sized((2, 3), 4)

def needs_more(input_shape, n_outputs, depth):
    return sized(input_shape, n_outputs)

def three(a, b, c):
    return sized(a, b)

def returns_none(input_shape, n_outputs):
    return None

def double(input_shape, n_outputs):
    return sized(input_shape, n_outputs).double()

def partly_frozen(input_shape, n_outputs):
    net = nn.Sequential(*sized(input_shape, n_outputs), nn.BatchNorm1d(n_outputs))
    net[2].eval()
    return net

class Net(nn.Module):
    def __init__(self, input_shape, n_outputs):
        super().__init__()
        self.body = sized(input_shape, n_outputs)

    def forward(self, x):
        return self.body(x)

class Pair(Net):
    def forward(self, x):
        return self.body(x), x
"""
_serial = itertools.count()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of a fresh name in the working directory."""
    name = f"user_nets_{next(_serial)}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "factory", ["sized", "swapped", "keywords", "other_names", "fixed", "double", "Net"]
)
@pytest.mark.parametrize("prefix", ["", "module:"])
def test_factory_in_the_working_directory_is_built(module, factory, prefix):
    path_before = list(sys.path)
    net = from_path(f"{prefix}{module}.{factory}", (2, 3), 4)
    dtype = next(net.parameters()).dtype
    assert net(torch.zeros(5, 2, 3, dtype=dtype)).shape == (5, 4)
    assert net.training
    assert sys.path == path_before


def test_module_inside_a_package_is_found(tmp_path, monkeypatch):
    name = f"user_package_{next(_serial)}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    assert from_path(f"{name}.nets.sized", (2, 3), 4)[1].in_features == 6


def test_modes_and_statistics_are_left_as_the_factory_made_them(module):
    net = from_path(f"{module}.partly_frozen", (2, 3), 4)
    assert [layer.training for layer in net] == [True, True, False]
    assert net[2].num_batches_tracked == 0


@pytest.mark.parametrize("path", ["sized", "module:", "a..b", "nets.py:sized", ".sized", "a b.c"])
def test_malformed_path_raises(path):
    with pytest.raises(ValueError, match=r"must read 'module:package\.module\.factory', got"):
        from_path(path, (2, 3), 4)


def test_missing_module_raises():
    message = r"^from_path: there is no module 'no_such.nets'\. Run from the folder that holds"
    with pytest.raises(ValueError, match=message):
        from_path("no_such.nets.sized", (2, 3), 4)


def test_missing_import_inside_the_module_is_told_apart(tmp_path, monkeypatch):
    (tmp_path / "user_imports.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    message = r"'user_imports' imports 'no_such_library', which is not installed\."
    with pytest.raises(ValueError, match=message):
        from_path("user_imports.net", (2, 3), 4)


def test_missing_attribute_raises_with_a_suggestion(module):
    with pytest.raises(ValueError, match=r"has no 'size'\. Did you mean 'sized'\?$"):
        from_path(f"{module}.size", (2, 3), 4)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("number", r"must be a function that builds the network, got an int\."),
        ("three", r"must take \(input_shape, n_outputs\) or nothing, got the signature \(a, b, c"),
        ("needs_more", r"must take \(input_shape, n_outputs\) or nothing, got the signature"),
        ("returns_none", r"must return a nn\.Module, got a NoneType\.$"),
        ("Pair", r"must return one tensor, got a tuple\.$"),
    ],
)
def test_not_a_factory_of_networks_raises(module, factory, message):
    with pytest.raises(TypeError, match=message):
        from_path(f"{module}.{factory}", (2, 3), 4)


def test_wrong_output_size_raises(module):
    message = r"must map \(2, 2, 3\) to \(2, 9\), got \(2, 4\)\. Set its last layer to 9 outputs\.$"
    with pytest.raises(ValueError, match=message):
        from_path(f"{module}.fixed", (2, 3), 9)


def test_input_the_network_cannot_take_raises(module):
    message = r"must accept inputs of shape \(2, 7\), but it failed: mat1 and mat2"
    with pytest.raises(ValueError, match=message):
        from_path(f"{module}.fixed", (7,), 4)


def test_a_factory_that_fails_is_named_with_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "user_fails.py").write_text("def net(input_shape, n_outputs):\n    {}['width']\n")
    (tmp_path / "user_typo.py").write_text("def net(:\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"'user_fails\.net' failed with KeyError: 'width'\.$"):
        from_path("user_fails.net", (2, 3), 4)
    with pytest.raises(ValueError, match=r"'user_typo' is no valid Python: .*line 1\)\.$"):
        from_path("user_typo.net", (2, 3), 4)
