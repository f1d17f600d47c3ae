"""Check that a compacted network is the same function as the masked one."""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from bayesieve.core.inputs import Input, Inputs, arguments, logits_of, mapped, tensors_of
from bayesieve.errors import VerificationError
from bayesieve.graph.graph import evaluating

TOLERANCE = 1e-5
_LARGE = 100.0
_FINE = 1e-2  # of the tolerance, in float64: what was folded into other weights is rounded there


def verify(
    small: nn.Module, reference: nn.Module, example: Input, *, tolerance: float = TOLERANCE
) -> float:
    """Compare two networks on the example, on random inputs and on edge cases.

    Inputs are the example, standard normal draws (in batches of 7 and of 1), zeros, ones, large
    numbers of both signs and negative numbers. Inputs of integers (tokens) are redrawn from the
    values of the example instead. Where a network magnifies rounding beyond the tolerance, as
    attention does with large inputs, copies in float64 decide: they must agree far better.

    Args:
        small: the network to check.
        reference: what it should compute; both run in eval mode where they are, in their dtype.
        example: inputs, (n, ...), batch axis first.
        tolerance: largest difference allowed, relative to the largest |output| of the reference
            on the same input or on the example, whichever is larger.

    Returns:
        The largest relative difference; at most the tolerance.

    Raises:
        VerificationError: the difference is above the tolerance, or shapes differ.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> verify(net, net, torch.zeros(1, 2))
        0.0
        >>> other = nn.Linear(2, 1)
        >>> other.load_state_dict({"weight": net.weight, "bias": net.bias + 0.5})
        <All keys matched successfully>
        >>> verify(other, net, torch.zeros(1, 2))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        bayesieve.errors.VerificationError: verify: on the example the outputs differ by 0.5 ...
    """
    worst = usual = 0.0
    with evaluating(small, reference), torch.no_grad():
        for name, x in _inputs(example):
            pairs = _pairs(_run(small, x), _run(reference, x), name)
            usual = usual or _scale(pairs)
            difference, scale = _apart(pairs, usual)
            if not difference <= tolerance * scale:  # a NaN is not
                exact = _without_rounding(small, reference, x, name)
                exact_difference, exact_scale = _apart(exact, usual) if exact else (torch.inf, 1.0)
                if not exact_difference <= _FINE * tolerance * exact_scale:
                    raise VerificationError(
                        f"verify: on {name} the outputs differ by {difference:.3g} at a "
                        f"scale of {scale:.3g}, more than {tolerance:.1g} of it. Please "
                        "report this network as a bug."
                    )
            worst = max(worst, min(difference / scale, tolerance))
    return worst


def _without_rounding(
    small: nn.Module, reference: nn.Module, x: Input, name: str
) -> list[tuple[Tensor, Tensor]] | None:
    """The outputs of copies in float64; None where they are that already, or cannot be."""
    if any(tensor.dtype == torch.float64 for tensor in tensors_of(x)):
        return None
    exact = mapped(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, x)
    try:
        output, expected = (_run(copy.deepcopy(m).double(), exact) for m in (small, reference))
    except (RuntimeError, TypeError, ValueError):  # a dtype written down in the module
        return None
    return _pairs(output, expected, name)


def _run(module: nn.Module, x: Input) -> object:
    """The output of a module, or its logits; the module may write to its input."""
    args, kwargs = arguments(module, mapped(torch.clone, x))
    return logits_of(module(*args, **kwargs))


def _inputs(example: Input) -> Iterator[tuple[str, Input]]:
    """Named inputs of the example's kind; the random ones are the same in every call."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(example, Inputs):
        yield "the example", example
        for n in (7, 1):
            yield f"{n} random inputs", example.map(partial(redrawn, n=n, generator=generator))
        return
    rest = example.shape[1:]
    yield "the example", example
    if not example.is_floating_point():
        pool = example.flatten()
        for n in (7, 1):
            drawn = torch.randint(len(pool), (n, *rest), generator=generator)
            yield f"{n} random inputs", pool[drawn.to(pool.device)]
        return
    for n in (7, 1):
        drawn = torch.randn(n, *rest, generator=generator, dtype=torch.float64)
        yield f"{n} random inputs", drawn.to(example)
    drawn = torch.randn(2, *rest, generator=generator, dtype=torch.float64).to(example)
    yield "zeros", torch.zeros_like(drawn)
    yield "ones", torch.ones_like(drawn)
    yield "large inputs", _LARGE * drawn
    yield "negative inputs", -drawn.abs()


def _pairs(output: object, expected: object, name: str) -> list[tuple[Tensor, Tensor]]:
    """The tensors of two outputs side by side, float64; tuples, lists and dicts are opened."""
    if isinstance(expected, Tensor) and isinstance(output, Tensor):
        if output.shape == expected.shape:
            return [(output.double(), expected.double())]
    elif isinstance(expected, dict) and isinstance(output, dict):
        if output.keys() == expected.keys():
            return [p for key in expected for p in _pairs(output[key], expected[key], name)]
    elif isinstance(expected, tuple | list) and isinstance(output, tuple | list):
        if len(expected) == len(output):
            both = zip(output, expected, strict=True)
            return [p for a, b in both for p in _pairs(a, b, name)]
    elif not isinstance(expected, Tensor | dict) and output == expected:
        return []
    raise VerificationError(
        f"verify: on {name} the output must be {_describe(expected)}, got {_describe(output)}."
    )


def _describe(output: object) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    if isinstance(output, tuple | list | dict):
        return f"a {type(output).__name__} of {len(output)}"
    return repr(output)


def _scale(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Largest finite |output| of the reference."""
    sizes = [b[b.isfinite()].abs() for _, b in pairs]
    return max((float(size.max()) for size in sizes if len(size)), default=0.0)


def _apart(pairs: list[tuple[Tensor, Tensor]], usual: float) -> tuple[float, float]:
    """Largest difference of two outputs, NaN if one has a NaN more, and their scale."""
    difference = 0.0
    for a, b in pairs:
        same = (a == b) | (a.isnan() & b.isnan())
        gaps = (a - b).abs()[~same]
        if bool(gaps.isnan().any()):
            difference = float("nan")
            break
        difference = max(difference, float(gaps.max()) if len(gaps) else 0.0)
    return difference, max(_scale(pairs), usual) or 1.0


def redrawn(tensor: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Other examples of the kind that one of several inputs has, (n, ...).

    Real numbers are the example's with noise of its spread. Whole numbers are rows of the example
    in another order: other numbers may be no words, and a mask may leave nothing to read.

    Example:
        >>> mask = torch.tensor([[True, False], [True, True]])
        >>> redrawn(mask, 3, torch.Generator().manual_seed(0)).any(1).all().item()
        True
    """
    rows = torch.randint(len(tensor), (n,), generator=generator)
    chosen = tensor[rows.to(tensor.device)]
    if not tensor.is_floating_point():
        return chosen
    noise = torch.randn(chosen.shape, generator=generator, dtype=torch.float64)
    return chosen + (float(tensor.std(correction=0)) or 1.0) * noise.to(chosen)
