"""The slice of the flat weight vector w that each named tensor of a network has, and its role.

Entries are ordered by role: prunable weights first, then Bayesian weights that are never pruned,
then point parameters (norm scales, learned noise). `w[..., layout.sparse]` and
`w[..., layout.bayesian]` are therefore plain slices.
"""

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear, pad

from bayesieve.checks import did_you_mean
from bayesieve.errors import UnsupportedModelError


class Role(IntEnum):
    """Treatment of a parameter by inference; the order is the order of entries in w.

    Example:
        >>> [role.name for role in sorted(Role)]
        ['PRUNE', 'KEEP', 'POINT']
    """

    PRUNE = 0  # has a posterior and may be removed
    KEEP = 1  # has a posterior, never removed
    POINT = 2  # trained as a point estimate without a prior


RoleRule = Callable[[str, nn.Module], Role]
Patterns = tuple[str | type[nn.Module], ...]  # shell patterns on names, or types of modules

_WEIGHTED = (
    nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.RNNBase, nn.RNNCellBase,
)  # fmt: skip
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def default_role(name: str, owner: nn.Module) -> Role:
    """Weights of linear, convolution, attention and recurrent layers go, biases stay, rest points.

    A layer of another library is linear if it computes what `nn.Linear` does (`acts_as_linear`).

    Example:
        >>> default_role("weight", nn.Linear(1, 1)).name, default_role("bias", nn.GRU(1, 1)).name
        ('PRUNE', 'KEEP')
        >>> default_role("weight", nn.LayerNorm(1)).name
        'POINT'
    """
    leaf = name.rpartition(".")[2]
    if isinstance(owner, _WEIGHTED):
        return Role.PRUNE if leaf.startswith("weight") else Role.KEEP
    if isinstance(owner, nn.MultiheadAttention):
        return Role.PRUNE if leaf in _ATTENTION_WEIGHTS else Role.KEEP
    if leaf in ("weight", "bias") and acts_as_linear(owner):
        return Role.PRUNE if leaf == "weight" else Role.KEEP
    return Role.POINT


def acts_as_linear(module: nn.Module) -> bool:
    """Return whether a module computes x W + b, or x Wᵀ + b, of its `weight` and perhaps `bias`.

    It is tried on a few inputs with random numbers for its parameters.

    Example:
        >>> class Mapped(nn.Module):  # as the Conv1D of GPT-2
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = nn.Parameter(torch.ones(3, 2))
        ...
        ...     def forward(self, x):
        ...         return x @ self.weight
        >>> acts_as_linear(Mapped()), acts_as_linear(nn.Embedding(3, 2))
        (True, False)
    """
    shapes = {name: p.shape for name, p in module.named_parameters(recurse=False)}
    leaf = next(module.children(), None) is None
    if (
        not leaf
        or not {"weight"} <= shapes.keys() <= {"weight", "bias"}
        or len(shapes["weight"]) != 2
    ):
        return False
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for weight in (tensors["weight"], tensors["weight"].T):
        x = torch.randn(8, weight.shape[1], generator=generator)
        try:
            with torch.no_grad():
                found = functional_call(module, tensors, (x,))
                expected = linear(x, weight, tensors.get("bias"))
        except Exception:  # of whatever a module raises for an input that is not meant for it
            continue
        alike = isinstance(found, Tensor) and found.shape == expected.shape
        if alike and torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
            return True
    return False


def matrix_of(layer: nn.Module) -> Tensor:
    """The weights of a linear map as a view (outputs, inputs), whichever way it stores them."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if isinstance(layer, nn.Linear) or not _is_transposed(layer):
        return weight.detach()
    return weight.detach().T


def _is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer of another library has (inputs, outputs), as the Conv1D of GPT-2."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    try:
        with torch.no_grad():
            outputs = layer(weight.new_zeros(1, weight.shape[0])).shape[-1]
    except Exception:  # of whatever a module raises for inputs of another size
        return False
    if weight.shape[0] != weight.shape[1]:
        return bool(outputs == weight.shape[1])
    unit = torch.eye(len(weight), device=weight.device, dtype=weight.dtype)[:1]
    with torch.no_grad():
        row = layer(unit) - layer(torch.zeros_like(unit))
    return torch.allclose(row[0], weight[0], rtol=1e-3, atol=1e-6)


@dataclass(frozen=True)
class Roles:
    """A rule that overrides the default by parameter-name pattern or module type.

    Args:
        prune: shell patterns on parameter names, or module types, that may be pruned.
        keep: the same for parameters with a posterior that are never pruned.
        point: the same for parameters trained as point estimates.

    A parameter that matches several lists takes the last of point, keep, prune that matches;
    one that matches none takes `default_role`.

    Example:
        >>> rule = Roles(keep=("head.*",), point=(nn.Embedding,))
        >>> rule("head.weight", nn.Linear(2, 2)).name
        'KEEP'
    """

    prune: Patterns = ()
    keep: Patterns = ()
    point: Patterns = ()

    def __call__(self, name: str, owner: nn.Module) -> Role:
        """The role of one parameter."""
        role = default_role(name, owner)
        choices = ((Role.POINT, self.point), (Role.KEEP, self.keep), (Role.PRUNE, self.prune))
        for candidate, patterns in choices:
            if is_named(name, owner, patterns):
                role = candidate
        return role

    def check(self, names: Sequence[str]) -> None:
        """Raise if a name pattern fits none of a model's parameters: it is misspelt.

        Types, and patterns that begin with "*", state a policy for any model.
        """
        check_patterns("Roles", (*self.prune, *self.keep, *self.point), "parameter", names)


def is_named(name: str, owner: nn.Module, patterns: Patterns) -> bool:
    """Return whether a shell pattern fits the name, or the module is of one of the types."""
    return any(
        fnmatch.fnmatchcase(name, pattern)
        if isinstance(pattern, str)
        else isinstance(owner, pattern)
        for pattern in patterns
    )


def check_patterns(who: str, patterns: Patterns, what: str, names: Sequence[str]) -> None:
    """Raise if a name pattern fits none of the names; types and "*..." state a policy."""
    for pattern in patterns:
        if not isinstance(pattern, str) or pattern.startswith("*"):
            continue
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise ValueError(
                f"{who}: pattern {pattern!r} matches no {what} of the model; they are "
                f"{shown}.{did_you_mean(pattern, names)}"
            )


@dataclass(frozen=True)
class Layout:
    """Names, shapes and roles of the tensors inside w, in the order in which they lie there.

    Example:
        >>> layout = layout_of(nn.Linear(3, 2))
        >>> layout.names, layout.size, layout.n_sparse
        (('weight', 'bias'), 8, 6)
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    roles: tuple[Role, ...]

    def __post_init__(self) -> None:
        if list(self.roles) != sorted(self.roles):
            raise ValueError("Layout: roles must be sorted (PRUNE, KEEP, POINT); use layout_of.")

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The slice of w that each named tensor occupies."""
        ends = torch.tensor([0, *self.sizes]).cumsum(0).tolist()
        return {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(self.names)}

    @cached_property
    def size(self) -> int:
        """Length d of w."""
        return sum(self.sizes)

    @cached_property
    def n_sparse(self) -> int:
        """Number of prunable entries."""
        return self._count(Role.PRUNE)

    @cached_property
    def n_bayesian(self) -> int:
        """Number of entries with a posterior: prunable ones and those always kept."""
        return self._count(Role.PRUNE) + self._count(Role.KEEP)

    def describe(self) -> str:
        """Return how many entries play which part, in words.

        Example:
            >>> layout_of(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))).describe()
            '12 weights: 6 may be pruned, 2 are kept, 4 are points'
        """
        kept, points = self.n_bayesian - self.n_sparse, self.size - self.n_bayesian
        parts = f"{self.n_sparse:,} may be pruned, {kept:,} are kept, {points:,} are points"
        return f"{self.size:,} weights: {parts}"

    @property
    def prunable(self) -> list[str]:
        """Names of the tensors whose entries may be removed, in the order of w."""
        pairs = zip(self.names, self.roles, strict=True)
        return [name for name, role in pairs if role == Role.PRUNE]

    @property
    def sparse(self) -> slice:
        """The prunable entries of w."""
        return slice(0, self.n_sparse)

    @property
    def bayesian(self) -> slice:
        """The entries of w that have a posterior."""
        return slice(0, self.n_bayesian)

    def fan_in(self, name: str) -> int:
        """Number of inputs one output of the tensor sums over (1 for vectors)."""
        shape = self.shapes[self.names.index(name)]
        return math.prod(shape[1:]) if len(shape) > 1 else 1

    def flatten(self, tensors: nn.Module | Mapping[str, Tensor]) -> Tensor:
        """Copy named tensors into one vector, shape (d,)."""
        named = dict(tensors.named_parameters()) if isinstance(tensors, nn.Module) else tensors
        return torch.cat([named[name].detach().reshape(-1) for name in self.names])

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """View w, shape (..., d), as named tensors of shape (..., *shape): no copy."""
        return dict(self.pieces(w))

    def pieces(self, w: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, view) pairs of w, shape (..., d)."""
        if w.shape[-1] != self.size:
            raise ValueError(f"Layout: w must have {self.size} entries, got {w.shape[-1]}.")
        for name, shape in zip(self.names, self.shapes, strict=True):
            yield name, w[..., self.slices[name]].view(w.shape[:-1] + shape)

    def padded(self, values: Tensor, points: float) -> Tensor:
        """Values of the Bayesian entries, (n_bayesian,), with `points` for the others, (d,)."""
        return pad(values, (0, self.size - self.n_bayesian), value=points)

    def extended(self, extra: Mapping[str, Tensor]) -> "Layout":
        """Return a layout with point parameters added at the end."""
        return Layout(
            (*self.names, *extra),
            (*self.shapes, *(value.shape for value in extra.values())),
            (*self.roles, *(Role.POINT for _ in extra)),
        )

    def check_bayesian(self, who: str) -> None:
        """Raise if no entry has a posterior: an engine would train a point estimate in silence."""
        if self.n_bayesian == 0:
            raise UnsupportedModelError(
                f"{who}: no parameter of this model has a posterior; parameters outside Linear, "
                f"Conv, attention and recurrent layers are points by default. Give "
                f"Problem roles=Roles(prune=({self.names[0]!r}, ...)), or use MAP."
            )

    def to_json(self) -> list[list[object]]:
        """Plain lists, for headers of saved files."""
        rows = zip(self.names, self.shapes, self.roles, strict=True)
        return [[name, list(shape), role.name] for name, shape, role in rows]

    def _count(self, role: Role) -> int:
        pairs = zip(self.sizes, self.roles, strict=True)
        return sum(size for size, other in pairs if other == role)


def layout_of(model: nn.Module, rule: RoleRule = default_role) -> Layout:
    """Lay out the trainable parameters of a module; tied ones count once, frozen ones not at all.

    A parameter shared by several modules takes the most prunable of the roles its owners give it.
    """
    roles: dict[nn.Parameter, Role] = {}
    for prefix, owner in model.named_modules(remove_duplicate=False):
        for leaf, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{leaf}" if prefix else leaf
            role = rule(name, owner)
            roles[parameter] = min(role, roles.get(parameter, role))
    if isinstance(rule, Roles):
        rule.check([name for name, _ in model.named_parameters(remove_duplicate=False)])
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    _check_parameters(named)
    named.sort(key=lambda pair: roles[pair[1]])  # stable: module order inside a role
    return Layout(
        tuple(name for name, _ in named),
        tuple(p.shape for _, p in named),
        tuple(roles[p] for _, p in named),
    )


class EntryGroups:
    """Which Bayesian entries of w share a number: those of a layer, or of a unit of a layer.

    The tensors of one module make a layer; with units only those that have equally many rows.

    Args:
        layout: the slice of w of each tensor.
        device: of w.
        by_unit: whether every unit of a layer is a group, and not the layer as a whole.

    Example:
        >>> groups = EntryGroups(layout_of(nn.Linear(3, 2)), torch.device("cpu"), by_unit=True)
        >>> groups.to_entries(torch.tensor([5.0, 7.0])).tolist()  # of the weights, then the biases
        [5.0, 5.0, 5.0, 7.0, 7.0, 7.0, 5.0, 7.0]
    """

    def __init__(self, layout: Layout, device: torch.device, *, by_unit: bool = False) -> None:
        names = [n for n in layout.names if layout.slices[n].start < layout.n_bayesian]
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        rows = {name: int(shapes[name][0]) if by_unit and shapes[name] else 1 for name in names}
        keys = {name: (name.rpartition(".")[0], rows[name]) for name in names}
        layers = list(dict.fromkeys(keys.values()))
        ends = [0, *accumulate(n for _, n in layers)]
        self.layers = [slice(*pair) for pair in pairwise(ends)]  # the groups of each layer
        self.n_layers, self.n_groups = len(layers), ends[-1]
        self.tensors = [(layers.index(keys[name]), layout.slices[name]) for name in names]
        self.prunable = [(i, part) for i, part in self.tensors if part.start < layout.n_sparse]
        self.last = (self.prunable or self.tensors)[-1][0]
        runs = [
            (part.start, part.stop, self.layers[i].start, self.layers[i].stop)
            for i, part in self.tensors
        ]
        self.runs = torch.tensor(runs)  # first and last entry and group of each tensor, for C
        self._index: Tensor | None = None  # group of each entry; on a CPU a copy is faster
        if device.type != "cpu":
            numbers = torch.arange(self.n_groups, dtype=torch.float64)
            self._index = self.to_entries(numbers).long().to(device)

    def to_entries(self, values: Tensor) -> Tensor:
        """One number per group, (..., G), to one per Bayesian entry, (..., n_bayesian)."""
        if self._index is not None:
            return values[..., self._index]
        columns = []
        for i, part in self.tensors:
            groups = values[..., self.layers[i], None]
            size = (part.stop - part.start) // groups.shape[-2]
            columns.append(groups.expand(*groups.shape[:-1], size).flatten(-2))
        return torch.cat(columns, -1)

    def total(self, values: Tensor) -> Tensor:
        """Sum over the entries of each group, (..., n_bayesian) -> (..., G)."""
        sums: dict[int, Tensor] = {}
        for i, part in self.tensors:
            n_groups = self.layers[i].stop - self.layers[i].start
            total = values[..., part].unflatten(-1, (n_groups, -1)).sum(-1)
            sums[i] = sums[i] + total if i in sums else total
        return torch.cat([sums[i] for i in range(self.n_layers)], -1)


def _check_parameters(named: list[tuple[str, nn.Parameter]]) -> None:
    if not named:
        raise UnsupportedModelError(
            "Problem: the model has no trainable parameter. Set requires_grad on what to infer."
        )
    for name, p in named:
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise UnsupportedModelError(
                f"Problem: parameter {name!r} is not initialised yet (a lazy module). "
                "Call the model once on an example first."
            )
        if not p.is_floating_point():
            raise UnsupportedModelError(
                f"Problem: parameter {name!r} must be real floating point, got {p.dtype}."
            )
    first_name, first = named[0]
    for name, p in named:
        if p.dtype != first.dtype or p.device != first.device:
            raise UnsupportedModelError(
                f"Problem: all parameters must share one dtype and device; {first_name!r} is "
                f"{first.dtype} on {first.device}, {name!r} {p.dtype} on {p.device}. "
                "Use model.to(...)."
            )
