"""A masked network becomes a physically smaller one that computes the same function.

Every channel of every activation is a known constant or varies with the input, and some layer
reads it or none does. Constants are folded into the biases of the layers that read them, channels
that no layer reads are not computed, and layers shrink to the rest: see docs/theory/compaction.md.
Nothing is approximated; `verify` checks the result each time.
"""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.graph_module import _USER_PRESERVED_ATTRIBUTES_KEY

from bayesieve.core.inputs import Input, arguments, as_inputs, mapped, shown, tensors_of
from bayesieve.core.posterior import SparseModel
from bayesieve.core.problem import check_plain
from bayesieve.sieve.compaction.attention import HeadAttention
from bayesieve.sieve.compaction.flow import Flow, Rewriter
from bayesieve.sieve.compaction.passes import analyse, read_features
from bayesieve.sieve.compaction.prepare import keep_made_, measured, plain_copy, prepare
from bayesieve.sieve.verify import TOLERANCE, verify

_Sizes = tuple[str, int, int, int]  # kind, units, inputs, parameters
_GONE: _Sizes = ("", 0, 0, 0)


@dataclass(frozen=True)
class LayerChange:
    """One layer before and after; a layer that is gone has 0 of everything.

    Args:
        name: of the module, such as "layer1.0.conv1".
        kind: its class, such as "Conv2d".
        units: outputs (channels, heads) before and after.
        inputs: inputs before and after.
        parameters: weights and biases before and after.
    """

    name: str
    kind: str
    units: tuple[int, int]
    inputs: tuple[int, int]
    parameters: tuple[int, int]


@dataclass(frozen=True)
class CompactionReport:
    """Report of a compaction: what went, what stayed and why, and the difference of outputs.

    Args:
        layers: one entry per layer with weights, in the order of the forward pass.
        parameters: of the whole network, before and after.
        n_inputs: features of one example: length of the flattened example if the network
            flattens it first, else of the channel (or last) axis it reads.
        input_features: those that are read, ascending; None if all are. The compacted module
            still takes the full input and picks them itself.
        kept: one sentence for each thing that had to stay, with the reason.
        max_difference: largest |compact - masked| found, relative to the scale of the outputs.
    """

    layers: tuple[LayerChange, ...]
    parameters: tuple[int, int]
    n_inputs: int
    input_features: tuple[int, ...] | None
    kept: tuple[str, ...]
    max_difference: float

    def to_dict(self) -> dict[str, Any]:
        """The same as dicts, lists and numbers, as JSON gives it back."""
        return json.loads(json.dumps(asdict(self)))

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("layer", "kind", "units", "inputs", "parameters")]
        for layer in self.layers:
            sizes = map(_arrow, (layer.units, layer.inputs, layer.parameters))
            rows.append((layer.name, layer.kind, *sizes))
        rows.append(("all", "", "", "", _arrow(self.parameters)))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        if self.input_features is not None:
            lines.append(f"reads {len(self.input_features)} of {self.n_inputs} input features")
        return "\n".join([*lines, *self.kept])


def _arrow(pair: tuple[int, int]) -> str:
    before, after = pair
    return str(after) if before == after else f"{before} -> {after}"


def compact(sparse: SparseModel | nn.Module, example: Any) -> fx.GraphModule:
    """Remove units, channels, heads and input features that no longer matter.

    Args:
        sparse: a sparse model, of which the masked posterior mean is taken, or any module, in
            which weights that are exactly 0 may go. It is not changed.
        example: inputs of the shape the network is to take, (n, ...), batch axis first; a tuple or
            dict of tensors for several. Batch sizes may differ later.

    Returns:
        A module in eval mode that takes the same inputs and returns the same outputs. It is made
        of plain torch modules (and `HeadAttention` or `FoldedLayerNorm`), trains, copies, pickles
        and moves like any other; `compaction` says what was removed and what was not.

    Raises:
        UnsupportedModelError: the network cannot be traced.
        VerificationError: the result differs from the masked network, which would be a bug.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> with torch.no_grad():
        ...     _ = net[0].weight.copy_(torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]))
        ...     _ = net[2].weight.copy_(torch.tensor([[3.0, 4.0]]))
        ...     net[0].bias[:], net[2].bias[:] = 1.0, 1.0
        >>> small = compact(net, torch.zeros(1, 3))
        >>> print(small.compaction)  # unit 2 is always relu(1): 4 * 1 joins the bias
        layer  kind    units   inputs  parameters
        0      Linear  2 -> 1  3 -> 2  8 -> 3
        2      Linear  1       2 -> 1  3 -> 2
        all                            11 -> 5
        reads 2 of 3 input features
        >>> small.get_submodule("2").bias.item(), small(torch.ones(1, 3)).item()
        (5.0, 17.0)
    """
    if not isinstance(sparse, SparseModel | nn.Module):
        raise TypeError(
            f"compact: sparse must be a SparseModel or a module, got {type(sparse).__name__}. "
            "Use prune on a posterior first."
        )
    if isinstance(sparse, nn.Module):
        check_plain("compact", sparse)
    example = as_inputs("compact", example)
    if any(tensor.dim() < 1 or len(tensor) == 0 for tensor in tensors_of(example)):
        raise ValueError(f"compact: example must hold at least one input, got {shown(example)}.")
    reference = plain_copy(sparse.to_module() if isinstance(sparse, SparseModel) else sparse)
    device = next(reference.parameters(), tensors_of(example)[0]).device
    reference = reference.cpu().eval()
    example = mapped(lambda tensor: tensor.detach().cpu().clone(), example)  # it may be written to
    two = _two_of(reference, example)
    before, flow, small = _shrunk(reference, two, follow_ties=True)
    if _n_parameters(small) > _n_parameters(reference):  # what was tied has become two
        before, flow, small = _shrunk(reference, two, follow_ties=False)
    kinds = {p.dtype for p in reference.parameters() if p.is_floating_point()}
    rounding = [16 * torch.finfo(kind).eps for kind in kinds if kind.itemsize < 4]  # half precision
    difference = verify(small, reference, example, tolerance=max([TOLERANCE, *rounding]))
    read, n_inputs = read_features(flow)
    after = _sizes(small)
    changes = [
        LayerChange(name, kind, *zip(old, after.get(name, _GONE)[1:], strict=True))
        for name, (kind, *old) in before.items()
    ]
    report = CompactionReport(
        layers=tuple(changes),
        parameters=(_n_parameters(reference), _n_parameters(small)),
        n_inputs=n_inputs,
        input_features=None if len(read) == n_inputs else tuple(read.tolist()),
        kept=tuple(flow.notes),
        max_difference=difference,
    )
    vars(small)["compaction"] = report
    small.meta[_USER_PRESERVED_ATTRIBUTES_KEY] = {"compaction": report}  # deepcopy keeps no more
    return small.to(device)


def _two_of(reference: nn.Module, example: Input) -> Input:
    """Two examples, if the network takes two: a batch axis of 1 looks like any axis of 1."""
    if len(example) > 1:
        return example[:2]
    twice = example[torch.tensor([0, 0])]
    try:
        with torch.no_grad():
            positional, named = arguments(reference, mapped(torch.clone, twice))
            reference(*positional, **named)
    except Exception:  # the user's network may be made for one example, and raise anything
        return example
    return twice


def _shrunk(
    reference: nn.Module, example: Input, *, follow_ties: bool
) -> tuple[dict[str, _Sizes], Flow, fx.GraphModule]:
    """Sizes of the layers before, the last analysis, and the smaller network."""
    graph = prepare(reference, example, follow_ties=follow_ties)
    before = _sizes(graph.module)
    while True:  # the second pass finds little: a sum may shed a term once both are narrow
        extent = _n_parameters(graph.module), len(graph.nodes)
        flow = analyse(graph)
        small = Rewriter(flow).run().eval()
        for nodes in graph.tied:
            first, *others = (small.get_submodule(str(n.target)) for n in nodes)
            for layer in others:
                if torch.equal(first.get_parameter("weight"), layer.get_parameter("weight")):
                    layer.weight = first.weight
        keep_made_(small)
        if (_n_parameters(small), len(small.graph.nodes)) >= extent:
            return before, flow, small
        graph = measured(small, example, follow_ties=follow_ties)


def report_of(module: nn.Module) -> CompactionReport:
    """The report of a compacted module, typed; the same as its attribute `compaction`."""
    report = vars(module).get("compaction")
    if not isinstance(report, CompactionReport):
        raise TypeError(
            f"compact: {type(module).__name__} was not made by compact, so it has no report."
        )
    return report


def _sizes(module: fx.GraphModule) -> dict[str, _Sizes]:
    """Kind, units, inputs and parameters of every layer a graph calls."""
    sizes: dict[str, _Sizes] = {}
    for node in module.graph.nodes:
        if node.op != "call_module":
            continue
        layer = module.get_submodule(str(node.target))
        n_parameters = _n_parameters(layer)
        if isinstance(layer, HeadAttention):
            sizes[str(node.target)] = ("HeadAttention", layer.n_heads, layer.n_heads, 0)
        elif n_parameters:
            units, inputs = _width(layer, _UNITS), _width(layer, _INPUTS)
            sizes[str(node.target)] = (type(layer).__name__, units, inputs or units, n_parameters)
    return sizes


_UNITS = (
    "out_features", "out_channels", "num_features", "num_channels", "n_features", "embedding_dim",
)  # fmt: skip
_INPUTS = ("in_features", "in_channels", "num_embeddings")


def _width(layer: nn.Module, names: tuple[str, ...]) -> int:
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return math.prod(layer.normalized_shape)
    return next((getattr(layer, name) for name in names if hasattr(layer, name)), 0)


def _n_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
