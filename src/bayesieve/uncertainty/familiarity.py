"""Familiarity, an OOD score: a conformal p-value, small for unfamiliar inputs.

Epistemic uncertainty does not detect inputs unlike all training data. This score does. It looks at
inputs only, so it works for every network, likelihood and engine, and needs no labels.

    z   the input, centred and scaled; of an image its coarse view: the lowest 8 x 8 cosines of
        every channel. Finer cosines enter by their energies: the log of the squared length of
        each of ten bands of frequencies, waves along the rows apart from those along the columns
    w   the first 24 principal coordinates of z, and the log of the squared length of the rest
    d   the smallest Mahalanobis distance of these numbers to one of up to 16 kinds of training
        examples: clusters by k-means, each with its own covariance, shrunk to the pooled one

d becomes a share by the distances of training examples from models that have not seen them (five
folds). Of new examples like the training data about 5 % have a familiarity below .05.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesieve.core.storage import file_bytes, read_tensors
from bayesieve.errors import damaged
from bayesieve.files import parse_json

FILE = "familiarity.safetensors"  # in a run folder and in a bundle
_KEY = "bayesieve-familiarity"
_FOLDS = 5
_LEAST_ROWS = 20
_MOST_ROWS = 10_000  # of the training examples are looked at
_MOST_AXES = 24
_MOST_KINDS = 16
_ROWS_PER_KIND = 40
_SHARED_ROWS = 20.0  # rows that the pooled covariance counts as in that of a kind
COSINES = 8  # per side of an image
_BANDS = 10  # of finer cosines
_FAR = 1e6  # larger inputs, in units of their spread, count as this, so that squares stay finite
_BATCH = 1024
_COPIES = 8  # of a batch of inputs while it is looked at
_BODY, _TAIL = 32, 24  # distances kept of the held-out ones: evenly, and in the last tenth
_FLOATS = ("mean", "scale", "floor", "shift", "spread", "knots", "levels")
_HALVES = ("axes", "centres", "roots")


def bytes_to_learn(x: Tensor) -> int:
    """Bytes that `Familiarity.of` takes at once besides x, (N, ...): two copies of the rows used.

    Example:
        >>> bytes_to_learn(torch.zeros(100, 3))
        12000
    """
    if unavailable(x):
        return 0
    n, row = min(len(x), _MOST_ROWS), 4 * x[0].numel()
    return 2 * n * row + _COPIES * min(n, _BATCH) * row


def unavailable(x: Tensor) -> str:
    """Why inputs, (N, ...), can have no familiarity; an empty text if they can.

    Example:
        >>> unavailable(torch.zeros(100, 3)), unavailable(torch.zeros(100, 12, 3))
        ('', 'inputs must be flat or images (N, C, H, W), got shape (100, 12, 3)')
    """
    if not x.is_floating_point():
        return f"inputs must be real numbers, not tokens of {x.dtype}"
    if x.dim() not in (2, 4):
        return f"inputs must be flat or images (N, C, H, W), got shape {tuple(x.shape)}"
    if len(x) < _LEAST_ROWS:
        return f"it needs at least {_LEAST_ROWS} training examples, got {len(x)}"
    return ""


class Familiarity(nn.Module):
    """The familiarity of inputs, made by `Familiarity.of`.

    Args:
        shape: of one input, (d,) or (C, H, W).
        tensors: by the names of the buffers.

    Buffers, for m numbers in the view of an input, q axes, f features and k kinds:
        mean, scale: (d,) each, or one scale for all pixels; z = (x - mean) / scale.
        axes: (q, m), orthonormal rows.
        floor: one for each squared length, added before its log.
        shift, spread: (f,), mean and standard deviation of the features.
        centres, roots: (k, f) and (k, f, f); the squared distance is |(feature - centre) root|².
        knots, levels: (t,), distances of held-out examples and their tail probabilities.

    Example:
        >>> known = Familiarity.of(torch.randn(400, 3, generator=Generator().manual_seed(0)))
        >>> known.score(torch.tensor([[0.1, 0.0, 0.0], [9.0, 9.0, 9.0]])) > 0.05
        tensor([ True, False])
    """

    mean: Tensor
    scale: Tensor
    axes: Tensor
    floor: Tensor
    shift: Tensor
    spread: Tensor
    centres: Tensor
    roots: Tensor
    knots: Tensor
    levels: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(self, shape: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.shape, self.bands = tuple(shape), _bands(shape)
        for name in (*_FLOATS, *_HALVES):
            self.register_buffer(name, tensors[name].detach().float())
        for name, size in zip(("rows", "columns"), self.shape[1:], strict=False):
            self.register_buffer(name, _cosines(size))

    @classmethod
    def of(cls, x: Tensor, *, kinds: int | None = None, seed: int = 0) -> "Familiarity":
        """Learn what training inputs look like.

        Args:
            x: (N, d) or (N, C, H, W), prepared as for the network; at most 10,000 are used.
            kinds: of examples; one for every 40 rows, at most 16, unless given.
            seed: of the choice of rows and of the first clusters.
        """
        reason = unavailable(x)
        if reason:
            raise ValueError(f"Familiarity: {reason}.")
        generator = Generator().manual_seed(seed)
        chosen = torch.randperm(len(x), generator=generator)[:_MOST_ROWS].to(x.device)
        rows = x[chosen].detach().cpu().float()
        if not bool(rows.isfinite().all()):
            raise ValueError("Familiarity: inputs must be finite; some hold NaN or infinity.")
        fold = torch.arange(len(rows)) % _FOLDS
        held_out = torch.cat(
            [
                cls._fitted(rows[fold != i], kinds, generator).distance(rows[fold == i])
                for i in range(_FOLDS)
            ]
        )
        final = cls._fitted(rows, kinds, generator)
        final.knots, final.levels = _tail(held_out)
        return final

    @classmethod
    def _fitted(cls, x: Tensor, kinds: int | None, generator: Generator) -> "Familiarity":
        """Everything but the tail, which has no knots yet."""
        shape, flat = x.shape[1:], x.flatten(1)
        scale = _usable(flat.std(0, correction=0) if len(shape) == 1 else flat.std()[None])
        empty = torch.zeros(0)
        tensors = dict.fromkeys((*_FLOATS, *_HALVES), empty)
        model = cls(shape, tensors | {"mean": flat.mean(0), "scale": scale})
        views = [model._view(part) for part in x.split(_BATCH)]
        coarse = torch.cat([view for view, _ in views])
        fine = [
            torch.cat(lengths) for lengths in zip(*(lengths for _, lengths in views), strict=True)
        ]
        model.axes = _principal(coarse, generator)
        kept, rest = model._split(coarse, fine)
        least = 1e-6 * coarse.square().sum(1).mean()
        model.floor = torch.maximum(1e-3 * rest.mean(0), least)
        feature = model._features(kept, rest)
        model.shift = feature.mean(0)
        model.spread = _usable(feature.std(0, correction=0))
        k = min(_MOST_KINDS, len(x) // _ROWS_PER_KIND) if kinds is None else kinds
        kind = _clusters(kept, max(1, k), generator)
        model.centres, model.roots = _gaussians((feature - model.shift) / model.spread, kind)
        return model

    def forward(self, x: Tensor) -> Tensor:
        """Familiarity of inputs (N, ...), (N,): 1 is ordinary, near 0 unlike all training data."""
        gap = (self.knots[1:] - self.knots[:-1]).clamp_min(1e-12)
        passed = ((self._distance(x)[:, None] - self.knots[:-1]) / gap).clamp(0, 1)
        return 1 - (passed * (self.levels[:-1] - self.levels[1:])).sum(1)

    def score(self, x: Tensor) -> Tensor:
        """`forward` in batches, without gradients, for inputs of any dtype and device, (N,)."""
        self._check(x)
        with torch.no_grad():
            return torch.cat([self(part.to(self.mean)) for part in x.split(_BATCH)])

    def distance(self, x: Tensor) -> Tensor:
        """Distance to the nearest kind of training example, (N,); it ranks OOD inputs too."""
        self._check(x)
        with torch.no_grad():
            return torch.cat([self._distance(part.to(self.mean)) for part in x.split(_BATCH)])

    def in_units(self, mean: Tensor, std: Tensor) -> "Familiarity":
        """The same score for inputs, (N, d), before they were standardised by `mean` and `std`."""
        tensors = dict(self.named_buffers())
        center, scale = self.mean.double() * std + mean, self.scale.double() * std
        return Familiarity(self.shape, tensors | {"mean": center, "scale": scale})

    def _check(self, x: Tensor) -> None:
        if x.shape[1:] != self.shape:
            raise ValueError(
                f"Familiarity: inputs must have shape (N, {', '.join(map(str, self.shape))}), got "
                f"{tuple(x.shape)}."
            )

    def _view(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The view of inputs, (n, m), and squared lengths of what it leaves out, (n,) each."""
        z = ((x.flatten(1) - self.mean) / self.scale).clamp(-_FAR, _FAR)
        if len(self.shape) == 1:
            return z, []
        waves = self.rows @ z.reshape(-1, *self.shape) @ self.columns.T
        energy = waves.square().sum(1)
        lengths = [energy[:, a:b, c:d].sum((1, 2)) for a, b, c, d in self.bands]
        return waves[:, :, :COSINES, :COSINES].flatten(1), lengths

    def _split(self, coarse: Tensor, lengths: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Principal coordinates, (n, q), and all squared lengths of what is left out, (n, l)."""
        kept = coarse @ self.axes.T
        if self.axes.shape[0] < self.axes.shape[1]:
            lengths = [(coarse - kept @ self.axes).square().sum(1), *lengths]
        return kept, torch.stack(lengths, 1) if lengths else kept[:, :0]

    def _features(self, kept: Tensor, rest: Tensor) -> Tensor:
        return torch.cat([kept, (rest + self.floor).log()], 1)

    def _distance(self, x: Tensor) -> Tensor:
        feature = (self._features(*self._split(*self._view(x))) - self.shift) / self.spread
        gap = feature[None] - self.centres[:, None]
        return (gap @ self.roots).square().sum(-1).amin(0).sqrt()

    # Files: safetensors of half numbers where they suffice.

    def to_bytes(self) -> bytes:
        """The content of a file that `read` understands."""
        tensors = {name: getattr(self, name) for name in _FLOATS}
        lower = torch.tril_indices(*self.roots.shape[1:])
        packed = {"axes": self.axes, "centres": self.centres, "roots": self.roots[:, *lower]}
        tensors |= {name: value.half() for name, value in packed.items()}
        return file_bytes(tensors, {_KEY: json.dumps({"format": 1, "shape": self.shape})})

    @classmethod
    def read(cls, path: Path) -> "Familiarity":
        """Read a file of `to_bytes`; it gives the same numbers bit for bit."""
        tensors, metadata = read_tensors(path)
        about = parse_json(path, metadata.get(_KEY, "").encode(), "its header")
        shape: Any = about.get("shape")
        known = isinstance(shape, list) and len(shape) in (1, 3) and about.get("format") == 1
        if not known or not all(type(size) is int and 0 < size < 1 << 20 for size in shape):
            raise damaged(path, "it describes no familiarity of this version")
        try:
            _check_sizes(shape, tensors)
        except (KeyError, ValueError, IndexError) as error:
            raise damaged(path, f"its tensors do not fit together ({error})") from error
        lower = torch.tril_indices(*[tensors["shift"].numel()] * 2)
        roots = torch.zeros(len(tensors["centres"]), *[tensors["shift"].numel()] * 2)
        roots[:, *lower] = tensors["roots"].float()
        return cls(shape, tensors | {"roots": roots})


def _check_sizes(shape: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the tensors of a file belong to inputs of this shape."""
    d, f, k = math.prod(shape), tensors["shift"].numel(), len(tensors["centres"])
    q, view = tensors["axes"].shape
    coarse = d if len(shape) == 1 else shape[0] * math.prod(min(COSINES, s) for s in shape[1:])
    n_logs = (q < view) + len(_bands(shape))
    t = tensors["knots"].numel()
    sizes = {
        "mean": (d,), "scale": (d if len(shape) == 1 else 1,), "floor": (n_logs,), "shift": (f,),
        "spread": (f,), "knots": (t,), "levels": (t,), "axes": (q, view), "centres": (k, f),
        "roots": (k, f * (f + 1) // 2),
    }  # fmt: skip
    for name, size in sizes.items():
        if tensors[name].shape != size or not bool(tensors[name].isfinite().all()):
            raise ValueError(f"{name} must be finite and of shape {size}")
    if view != coarse or f != q + n_logs or not q or not k or t < 2:
        raise ValueError(f"{q} axes, {view} inputs and {f} features")
    if not bool((tensors["scale"] > 0).all() and (tensors["spread"] > 0).all()):
        raise ValueError("a scale is not positive")


def _cosines(size: int) -> Tensor:
    """The orthonormal cosines of a line of pixels, the slowest first, (size, size)."""
    place = (torch.arange(size, dtype=torch.float64) + 0.5) * math.pi / size
    waves = [(k * place).cos() * math.sqrt((2 if k else 1) / size) for k in range(size)]
    return torch.stack(waves).float()


def _bands(shape: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """First and last row, first and last column of the cosines of bands beyond the coarse view.

    A band is between two rectangles that begin at the slowest cosine: first its waves along the
    columns of pixels, then those along the rows. Bands without a cosine are left out.

    Example:
        >>> _bands((1, 8, 9)), len(_bands((3, 28, 28)))
        ([(0, 8, 8, 9)], 20)
    """
    if len(shape) == 1:
        return []
    ends = [
        [min(COSINES, size) + i * max(0, size - COSINES) // _BANDS for size in shape[1:]]
        for i in range(_BANDS + 1)
    ]
    places = []
    for (h, w), (height, width) in pairwise(ends):
        places += [(h, height, 0, width), (0, h, w, width)]
    return [place for place in places if place[0] < place[1] and place[2] < place[3]]


def _usable(std: Tensor) -> Tensor:
    """Standard deviations to divide by: those that are 0 beside the others become 1."""
    return torch.where(std > 1e-6 * std.amax().clamp_min(1e-30), std, 1.0)


def _principal(x: Tensor, generator: Generator) -> Tensor:
    """The axes of largest variance of centred rows, (q, m), those without variance left out."""
    if x.shape[1] > x.shape[0] or x.shape[1] > 2048:
        x = x[torch.randperm(len(x), generator=generator)[:2048]]
        values, left = torch.linalg.eigh((x @ x.T).double())
        axes = (x.double().T @ left / values.clamp_min(1e-30).sqrt()).T
    else:
        values, right = torch.linalg.eigh((x.T @ x).double())
        axes = right.T
    present = int((values > 1e-8 * values.amax()).sum())
    q = max(1, min(_MOST_AXES, present))
    return axes.flip(0)[:q].half().float()  # as precise as the file, so that it reads back the same


def _clusters(x: Tensor, k: int, generator: Generator) -> Tensor:
    """The cluster of each row by k-means from k random rows, (n,)."""
    centres = x[torch.randperm(len(x), generator=generator)[:k]]
    for _ in range(15):
        nearest = torch.cdist(x, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=k)
        sums = torch.zeros_like(centres).index_add_(0, nearest, x)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], centres)
    return torch.cdist(x, centres).argmin(1)


def _gaussians(feature: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    """Centre of each kind, (k, f), and the roots of inverse covariances, (k, f, f), lower."""
    feature = feature.double()
    groups = [feature[kind == i] for i in range(int(kind.max()) + 1)]
    groups = [group for group in groups if len(group)]
    centres = torch.stack([group.mean(0) for group in groups])
    scatter = torch.stack([(g - c).T @ (g - c) for g, c in zip(groups, centres, strict=True)])
    eye = torch.eye(feature.shape[1], dtype=torch.float64)
    shared = scatter.sum(0) / len(feature) + 1e-3 * eye
    counts = torch.tensor([float(len(group)) for group in groups], dtype=torch.float64)
    total = (counts + _SHARED_ROWS)[:, None, None]
    roots = torch.linalg.cholesky(torch.linalg.inv((scatter + _SHARED_ROWS * shared) / total))
    return centres.half().float(), roots.half().float()


def _tail(held_out: Tensor) -> tuple[Tensor, Tensor]:
    """Some distances of held-out examples, from 0 up, and the share that is at least as far."""
    ordered, n = held_out.sort().values, len(held_out)
    level = torch.arange(n, 0, -1, dtype=torch.float64) / (n + 1)  # of each in turn
    tail = torch.logspace(-1, math.log10(1 / (n + 1)), _TAIL, dtype=torch.float64)
    wanted = torch.cat([torch.linspace(1, 0.1, _BODY, dtype=torch.float64), tail])
    places = (level[None] - wanted[:, None]).abs().argmin(1).unique()
    knots = torch.cat([torch.zeros(1), ordered[places]])
    return knots, torch.cat([torch.ones(1), level[places].float()])
