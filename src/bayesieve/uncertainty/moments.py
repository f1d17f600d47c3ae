"""The predictive distribution without draws: means and variances, layer by layer.

Every activation is a Gaussian, and each layer turns the mean and variance of its inputs into those
of its outputs. With m and s² of independent weights, and mean a and variance v of the inputs,

    Linear, Conv:   mean m a,  variance (m² + s²) v + s² a²
    ReLU:           mean a Φ(z) + √v φ(z),  E[h²] = (a² + v) Φ(z) + a √v φ(z),  z = a / √v

which is exact but for two things: sums of many terms are taken as Gaussian, and inputs of a layer
as independent. They are independent after the first Linear layer. Later ones share the draws of
the layers below, and so do the positions of a convolution. Pools therefore treat positions as
moving together: the largest mean keeps its variance, and stds are averaged. Sums of two branches
are taken as independent. Other activations are integrated at eight points. The last layer, if it is
Linear, has the covariance of its outputs.

Two or three runs of the network take the place of a hundred draws. Outputs then become 32
fixed points of their Gaussian (Sobol's), from which the likelihood makes its prediction.

Reference: Frey and Hinton (1999), Variational Learning in Nonlinear Gaussian Belief Networks.
"""

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesieve.core.inputs import Input, one_input
from bayesieve.core.likelihoods.prediction import Prediction
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.errors import UnsupportedModelError
from bayesieve.fast import native
from bayesieve.graph.capture import capture
from bayesieve.graph.operations import UNCHANGING, Kind, Operation, reads_size

N_POINTS = 32
_MOST_CORRELATED = 32  # outputs
_ROWS_IN_CACHE = 384  # inputs that a CPU takes at a time
_MOST_OUTPUTS = 21_201  # dimensions of Sobol's points in torch
_NODES = 8
_LEAST_VARIANCE = 1e-30
_AVERAGES = ("avg_pool", "adaptive_avg_pool", "mean")


class Gaussians(NamedTuple):
    """Independent Gaussians, (n, ...); no variance is exactly 0 everywhere."""

    mean: Tensor
    variance: Tensor | None


class _Squares(NamedTuple):
    """Squares of a layer: m² + s², s² and the variance of its bias; None without a spread.

    `both` has m² + s² beside s² along the inputs: one product instead of two.
    """

    second: Tensor
    variance: Tensor | None
    bias: Tensor | None
    both: Tensor | None


class _Step(NamedTuple):
    """A node of the graph, with what is asked of it for every batch."""

    node: fx.Node
    sources: list[fx.Node]
    operation: Operation
    layer: Any  # that a "call_module" node calls
    squares: _Squares | None
    reads_size: bool
    reads_twice: bool  # one tensor by two arguments


def relu_moments(mean: Tensor, variance: Tensor) -> Gaussians:
    """Mean and variance of max(x, 0), x Gaussian.

    Example:
        >>> made = relu_moments(torch.zeros(1), torch.ones(1))  # 1 / √(2π) and 1/2 - 1 / (2π)
        >>> [round(value.item(), 4) for value in made]
        [0.3989, 0.3408]
    """
    library = native.steps() if mean.dtype == torch.float32 and mean.device.type == "cpu" else None
    if library is not None:
        made = Gaussians(torch.empty_like(mean), torch.empty_like(mean))
        tensors = (mean.contiguous(), variance.contiguous(), *made)
        library.bayesieve_relu_moments(mean.numel(), *map(native.address, tensors))
        return made
    std = variance.clamp_min(_LEAST_VARIANCE).sqrt()
    z = mean / std
    below = torch.special.ndtr(z)
    at = std * (-0.5 * z.square()).exp_().mul_(1 / math.sqrt(2 * math.pi))
    first = torch.addcmul(at, mean, below)
    # E[x²; x > 0] = v Φ + a E[x; x > 0], less the square of the mean
    spread = variance * below + first * (mean - first)
    return Gaussians(first, spread.clamp_min_(0))


class MomentNetwork:
    """A factorised posterior as a function of inputs to Gaussians of outputs.

    Args:
        posterior: mean and std of each weight; its network must be made of Linear and Conv layers,
            BatchNorm, activations, pools, and operations that move, join or add tensors.

    Raises:
        UnsupportedModelError: an operation has no rule here, or there are no stds.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior  # 3-3-1, stds 0.1
        >>> mean, root = MomentNetwork(small_posterior()).outputs(torch.ones(5, 3))
        >>> mean.shape, root.shape
        (torch.Size([5, 1]), torch.Size([5, 1, 1]))
    """

    def __init__(self, posterior: Posterior) -> None:
        if not isinstance(posterior, Factorised):
            raise UnsupportedModelError(
                f"predict: moments need a mean and a std of each weight, and "
                f"{type(posterior).__name__} has others. Give a number of draws as n_samples."
            )
        self.posterior = posterior
        module = materialise(posterior.network, posterior.mean, posterior.buffers)
        self._graph = capture("predict", module.eval().requires_grad_(False))
        stds = posterior.layout.unflatten(posterior.std)
        squares: dict[str, _Squares] = {}
        spread = {name for name, std in stds.items() if bool(std.any())}
        single = "0." if not any("." in name for name in stds) else ""
        for node in self._graph.nodes:
            if node.op == "call_module" and self._graph.operation(node).name in ("linear", "conv"):
                name, layer = str(node.target), self._graph.layer(node)
                names = [f"{name}.{leaf}".removeprefix(single) for leaf in ("weight", "bias")]
                std, bias = (stds[one] if one in spread else None for one in names)
                variance, weight = None if std is None else std.square(), layer.weight
                assert isinstance(weight, Tensor)
                second, both = weight.square(), None
                if variance is not None:
                    second = second + variance
                    if getattr(layer, "groups", 1) == 1:
                        both = _stored(layer, torch.cat([second, variance], 1))
                    variance = _stored(layer, variance)
                squares[name] = _Squares(
                    second, variance, None if bias is None else bias.square(), both
                )
                spread -= set(names)
        if spread:
            raise UnsupportedModelError(
                f"predict: moments are known for weights of Linear and Conv layers, and "
                f"{min(spread)!r} is none. Give a number of draws as n_samples."
            )
        self._steps = {node: self._step(node, squares) for node in self._graph.nodes}
        self._numbers = posterior.network.numbers(posterior.mean.expand(N_POINTS, -1))
        last = self._graph.nodes[-1].args[0]  # of the node "output"
        self._last = last if isinstance(last, fx.Node) and self._is_linear(last) else None
        if self._last is not None:
            weight = self._steps[self._last].layer.weight
            self._products = torch.einsum("ch,dh->hcd", weight, weight).flatten(1)  # (H, C²)

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means of the outputs, (n, ...), and roots of their variance: (n, C, C), or as the means.

        Args:
            x: (n, ...), on the device of the network.
        """
        values: dict[fx.Node, Any] = {}
        with torch.no_grad():
            for node, step in self._steps.items():
                if node.op == "output":
                    found = values[step.sources[0]]
                    assert isinstance(found, Gaussians)
                    break
                values[node] = self._value(step, values, x)
            if self._last is not None:
                return found.mean, self._root(self._steps[self._last], values)
            if found.variance is None:
                return found.mean, torch.zeros_like(found.mean)
            return found.mean, found.variance.sqrt()

    def predict(self, x: Input, batch_size: int = 2048) -> Prediction:
        """The prediction of inputs, (N, ...): that of 32 points of the Gaussian of the outputs."""
        network = self.posterior.network
        if network.device.type == "cpu":
            batch_size = min(batch_size, _ROWS_IN_CACHE)
        rows = []
        for part in one_input("predict", x).to(network.device).split(batch_size):
            mean, root = self.outputs(part)
            flat = mean.flatten(1)
            points = _points(flat.shape[1], flat.dtype).to(flat.device)
            if root.shape == mean.shape:
                moved = points[:, None] * root.flatten(1)
            else:  # Σ_c points_sc root_ndc
                moved = (points @ root.flatten(0, 1).t()).view(N_POINTS, *flat.shape)
            rows.append(moved.add_(flat).view(N_POINTS, *mean.shape))
        outputs = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
        prediction = network.likelihood.predictive(outputs, self._numbers)
        return replace(prediction, drawn="all")

    def _step(self, node: fx.Node, squares: dict[str, _Squares]) -> _Step:
        sources = node.all_input_nodes
        return _Step(
            node,
            sources,
            self._graph.operation(node),
            self._graph.layer(node) if node.op == "call_module" else None,
            squares.get(str(node.target)),
            reads_size(node),
            len([n for n in node.args if isinstance(n, fx.Node)]) > len(sources),
        )

    def _is_linear(self, node: fx.Node) -> bool:
        step = self._steps[node]
        return step.operation.name == "linear" and step.layer.out_features <= _MOST_CORRELATED

    def _root(self, step: _Step, values: dict[fx.Node, Any]) -> Tensor:
        """Lower triangles L, (n, C, C), of the covariances L Lᵀ of a Linear layer's outputs.

        Outputs share the spread v of their inputs: Σ_j m_cj m_dj v_j beside what is their own.
        """
        inputs, n_outputs = values[step.sources[0]], step.layer.out_features
        shape = (len(inputs.mean), n_outputs, n_outputs)
        if inputs.variance is None:
            covariance = inputs.mean.new_zeros(shape)
        else:
            covariance = (inputs.variance @ self._products).view(shape)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        own = _of_weights(step, inputs)
        if own is not None:
            diagonal += own
        diagonal += 1e-6 * diagonal.mean(-1, keepdim=True) + _LEAST_VARIANCE
        return torch.linalg.cholesky(covariance)

    def _value(self, step: _Step, values: dict[fx.Node, Any], x: Tensor) -> Any:
        """Gaussians of a node's output, or whatever else it returns."""
        node, sources = step.node, step.sources
        if node.op == "placeholder":
            return Gaussians(x, None)
        if node.op == "get_attr":
            return self._graph.tensor(node)
        gaussian = [values[n] for n in sources if isinstance(values[n], Gaussians)]
        spread = [one.variance for one in gaussian if one.variance is not None]
        means = {n: _mean(values[n]) for n in sources}
        exact = not spread and step.squares is None
        if step.reads_size or exact or node is self._last:  # `_root` gives the last its variance
            found = _run(step, means)  # a tensor of the network, a size, or means
            return Gaussians(found, None) if gaussian and isinstance(found, Tensor) else found
        if (
            len(gaussian) == 1
            and not step.reads_twice
            and isinstance(made := self._of_one(step, means, gaussian[0]), tuple)
        ):
            return made
        if step.operation.name in ("add", "sub") and not step.reads_twice:
            mean = _run(step, means)
            return Gaussians(mean, torch.stack([one.expand_as(mean) for one in spread]).sum(0))
        if step.operation.name == "cat":
            zeros = {n: _or_zero(values[n]) for n in sources}
            return Gaussians(_run(step, means), _run(step, zeros))
        raise UnsupportedModelError(
            f"predict: moments have no rule for {self._graph.described(node)}. Give a number of "
            "draws as n_samples."
        )

    def _of_one(self, step: _Step, means: dict[fx.Node, Any], inputs: Gaussians) -> Any:
        """Gaussians after an operation on one tensor; None where there is no rule for it."""
        operation, variance = step.operation, inputs.variance
        if step.squares is not None:
            return Gaussians(_run(step, means), _mixed(step, step.squares, inputs))
        assert variance is not None
        source = next(n for n, mean in means.items() if mean is inputs.mean)
        if operation.name == "relu":
            return relu_moments(inputs.mean, variance)
        if operation.name == "max_pool":
            return _largest(step, inputs.mean, variance)
        if operation.name in UNCHANGING:
            return Gaussians(_run(step, means), variance)
        if operation.kind is Kind.POINTWISE:
            return _integrated(step, means, source, variance.sqrt())
        if operation.name == "batch_norm":
            return Gaussians(_run(step, means), _normed(step.layer, variance))
        if operation.name in _AVERAGES:
            std = _run(step, means | {source: variance.sqrt()})
            return Gaussians(_run(step, means), std.square())
        if operation.kind in (Kind.REARRANGING, Kind.RESHAPING) and operation.name != "amax":
            mean = _run(step, means)
            if isinstance(mean, Tensor):
                return Gaussians(mean, _run(step, means | {source: variance}))
        return None


def _of_weights(step: _Step, inputs: Gaussians) -> Tensor | None:
    """Variance of a layer's outputs that comes from its own weights."""
    squares = step.squares
    if squares is None or squares.variance is None:
        return None
    if inputs.variance is None:
        total = inputs.mean.square()
    else:
        total = torch.addcmul(inputs.variance, inputs.mean, inputs.mean)
    return _apply(step.layer, total, squares.variance, squares.bias)


def _mixed(step: _Step, squares: _Squares, inputs: Gaussians) -> Tensor | None:
    """Variance of the outputs of a Linear or Conv layer."""
    mean, variance, layer = inputs.mean, inputs.variance, step.layer
    if variance is None:
        return _of_weights(step, inputs)
    if squares.both is not None:
        axis = mean.dim() - 1 if isinstance(layer, nn.Linear) else 1
        size = mean.shape[axis]
        shape = (*mean.shape[:axis], 2 * size, *mean.shape[axis + 1 :])
        joined = torch.empty(shape, dtype=squares.both.dtype, device=mean.device)
        joined.narrow(axis, 0, size).copy_(variance)
        torch.mul(mean, mean, out=joined.narrow(axis, size, size))
        return _apply(layer, joined, squares.both, squares.bias)
    made = _apply(layer, variance, squares.second, squares.bias)
    if squares.variance is not None:
        made += _apply(layer, mean.square(), squares.variance, None)
    return made


def _apply(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A layer with other weights; the three digits of bfloat16 are enough for a variance."""
    if isinstance(layer, nn.Linear):
        if weight.dtype == layer.weight.dtype:
            return F.linear(x, weight, bias)
        product = F.linear(x.to(weight.dtype), weight).to(layer.weight.dtype)
        return product if bias is None else product.add_(bias)
    return layer._conv_forward(x, weight, bias)


def _stored(layer: Any, squares: Tensor) -> Tensor:
    """Squares of a layer, in bfloat16 where the processor multiplies that twice as fast."""
    plain = squares.device.type == "cpu" and squares.dtype == torch.float32
    return squares.to(native.product_dtype()) if plain and isinstance(layer, nn.Linear) else squares


def _run(step: _Step, inputs: dict[fx.Node, Any], **options: Any) -> Any:
    """Evaluate one node on other values of the nodes that it reads."""
    node = step.node
    if node.op == "call_module" and len(step.sources) == len(node.args) == 1 and not node.kwargs:
        return step.layer(inputs[step.sources[0]])  # `map_arg` takes longer than a small layer
    parts: Any = (fx.map_arg(part, inputs.__getitem__) for part in (node.args, node.kwargs))
    args, kwargs = parts
    if node.op == "call_module":
        return step.layer(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **(kwargs | options))


def _mean(value: Any) -> Any:
    return value.mean if isinstance(value, Gaussians) else value


def _or_zero(value: Any) -> Any:
    """The variance of Gaussians, or of a tensor of the network, which has none."""
    if isinstance(value, Gaussians) and value.variance is not None:
        return value.variance
    mean = _mean(value)
    return torch.zeros_like(mean) if isinstance(mean, Tensor) else mean


def _normed(layer: Any, variance: Tensor) -> Tensor:
    """Variance after a BatchNorm in eval mode, which multiplies each channel by a number."""
    factor = 1 / (layer.running_var + layer.eps)
    if layer.weight is not None:
        factor = factor * layer.weight.square()
    return variance * factor.view(-1, *[1] * (variance.dim() - 2))


def _largest(step: _Step, mean: Tensor, variance: Tensor) -> Gaussians:
    """The entry with the largest mean of each window, with its variance."""
    if step.layer is not None:
        layer = step.layer
        pool = getattr(F, f"max_pool{mean.dim() - 2}d")
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
        found, index = pool(mean, *sizes, return_indices=True)
    else:
        found, index = _run(step, {step.sources[0]: mean}, return_indices=True)
    return Gaussians(found, variance.flatten(2).gather(2, index.flatten(2)).view_as(found))


def _integrated(step: _Step, means: dict[fx.Node, Any], source: fx.Node, std: Tensor) -> Gaussians:
    """Moments of a function of each entry of `source` by Gauss's quadrature."""
    places, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    total, square = torch.zeros_like(std), torch.zeros_like(std)
    for place, weight in zip(places.tolist(), (weights / weights.sum()).tolist(), strict=True):
        value = _run(step, means | {source: means[source] + place * std})
        total.add_(value, alpha=weight)
        square.addcmul_(value, value, value=weight)
    return Gaussians(total, (square - total.square()).clamp_min_(0))


@functools.lru_cache(maxsize=8)
def _points(size: int, dtype: torch.dtype) -> Tensor:
    """Fixed points whose mean and std are those of independent normals, (32, size)."""
    if size > _MOST_OUTPUTS:
        raise UnsupportedModelError(
            f"predict: moments are for at most {_MOST_OUTPUTS:,} outputs, got {size:,}. Give a "
            "number of draws as n_samples."
        )
    sobol = torch.quasirandom.SobolEngine(size, scramble=True, seed=0).draw(N_POINTS // 2)
    half = torch.special.ndtri(sobol.double().clamp(1e-6, 1 - 1e-6))
    points = torch.cat([half, -half])  # their mean is exactly 0
    return (points / points.square().mean(0).sqrt()).to(dtype)
