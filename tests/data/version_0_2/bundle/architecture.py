"""The network of this folder in plain torch; written by bayesieve.

    from architecture import load_model
    model = load_model()            # reads model.safetensors and config.json beside this file
"""

import json
import operator  # noqa: F401
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn  # noqa: F401
from torch.nn import functional as F  # noqa: F401


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(in_features=35, out_features=5)
        self.act1 = nn.ReLU()
        self.out = nn.Linear(in_features=5, out_features=10)
        self.register_buffer("fc1_inputs", torch.empty([35], dtype=torch.int64))

    def forward(self, input_1):
        flatten = self.flatten(input_1)
        fc1_inputs = self.fc1_inputs
        index_select = torch.index_select(flatten, 1, fc1_inputs)
        fc1 = self.fc1(index_select)
        act1 = self.act1(fc1)
        out = self.out(act1)
        return out


# names of the layers in model.safetensors
NAMES = {}


def unpack(name, tensors, how):
    """A tensor that is stored as the places and values of its non-zero entries."""
    size = torch.Size(how["shape"])
    if how["as"] == "gaps":  # zeros before each entry; 255 is 255 zeros and no entry
        codes = tensors[name + "#gaps"].long()
        is_entry = codes != 255
        places = (codes + is_entry.long()).cumsum(0)[is_entry] - 1
    else:  # one bit per element, the lowest of a byte first
        bits = (tensors[name + "#bits"].unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
        places = bits.flatten()[: size.numel()].nonzero().flatten()
    if how.get("index"):  # the places are the tensor
        return places
    values = tensors[name + "#values"]
    flat = torch.zeros(size.numel(), dtype=values.dtype)
    flat[places] = values
    return flat.reshape(size)


def load_model(folder=None):
    """The network with its weights, in eval mode."""
    folder = Path(__file__).parent if folder is None else Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stored = load_file(folder / "model.safetensors")
    weights = {name: value for name, value in stored.items() if "#" not in name}
    for name, how in config["packed"].items():
        weights[name] = unpack(name, stored, how)
    for name, order in config["order"].items():  # of the axes in memory, for equal rounding
        inverse = [order.index(axis) for axis in range(len(order))]
        weights[name] = weights[name].permute(order).contiguous().permute(inverse)
    for name, first in config["tied"].items():
        weights[name] = weights[first]
    renamed = {}
    for name, value in weights.items():
        owner, _, leaf = name.rpartition(".")
        usual = f"{NAMES.get(owner, owner)}.{leaf}" if owner else leaf
        renamed[NAMES.get(name, usual)] = value
    model = Model()
    model.load_state_dict(renamed, assign=True)
    return model.eval()
