"""What `Problem` asks of a model and its data before anything is trained."""

import torch
from torch import Tensor, nn

from bayesieve.core.network import Network
from bayesieve.errors import UnsupportedModelError

_HALF = (torch.float16, torch.bfloat16)


def check_model(model: nn.Module) -> None:
    """Raise on a model that cannot be copied or run on other weights, or is of no use yet.

    Example:
        >>> check_model(nn.Linear(2, 1).half())
        Traceback (most recent call last):
        bayesieve.errors.UnsupportedModelError: Problem: parameter 'weight' is torch.float16, in ...
    """
    for path, owner in model.named_modules():
        if isinstance(owner, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"Problem: {_named('layer', path)} is compiled by torch.jit, which cannot run on "
                "other weights. Give the Python module it was made from."
            )
        for leaf, value in vars(owner).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                name = f"{path}.{leaf}" if path else leaf
                raise UnsupportedModelError(
                    f"Problem: tensor {name!r} is computed from parameters by a hook "
                    "(torch.nn.utils.prune, or the old weight_norm and spectral_norm). Call "
                    "prune.remove, or use torch.nn.utils.parametrizations."
                )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype in _HALF:
            raise UnsupportedModelError(
                f"Problem: parameter {name!r} is {parameter.dtype}, in which small steps vanish "
                "and sums over the data lose their digits. Use model.float(), and precision='bf16' "
                "for fast steps."
            )


def check_finite_weights(network: Network, w: Tensor) -> None:
    """Raise if a tensor of one weight vector, (d,), holds a NaN or an infinity."""
    if bool(w.isfinite().all()):
        return
    name = next(name for name, view in network.layout.pieces(w) if not view.isfinite().all())
    raise ValueError(
        f"Problem: parameter {name!r} of the model holds NaN or infinity. Initialise it again."
    )


def check_weight(weight: Tensor, n: int, dtype: torch.dtype) -> None:
    """Raise unless the weights of n examples, (n,), are usable."""
    if weight.shape != (n,) or weight.dtype != dtype:
        raise ValueError(
            f"Problem: weight must be {dtype} of shape ({n},), got {weight.dtype} of shape "
            f"{tuple(weight.shape)}."
        )
    if not bool((weight.isfinite() & (weight >= 0)).all()) or not bool((weight > 0).any()):
        raise ValueError("Problem: weights must be finite and >= 0, and at least one > 0.")


def check_examples(x: Tensor, y: Tensor, dtype: torch.dtype, who: str = "Problem") -> None:
    """Raise unless inputs, (N, ...), and targets, (N, ...), are finite and of the model's dtype."""
    if x.is_floating_point():
        if x.dtype != dtype:
            raise TypeError(
                f"{who}: inputs are {x.dtype} but the model is {dtype}. "
                "Convert one of them with .to(dtype)."
            )
        if not bool(torch.isfinite(x).all()):
            where = (~torch.isfinite(x)).flatten(1).any(1).nonzero()[0].item()
            raise ValueError(
                f"{who}: inputs must be finite; example {where} holds NaN or infinity. "
                "Clean or impute it."
            )
    if y.is_floating_point() and not bool(torch.isfinite(y).all()):
        where = (~torch.isfinite(y)).nonzero()[0][0].item()
        raise ValueError(f"{who}: targets must be finite; example {where} is not.")


def first_outputs(network: Network, w: Tensor, x: Tensor, who: str = "Problem") -> Tensor:
    """Outputs for a few examples, (n, ...), or a message that says why there are none.

    Args:
        network: whose module may be anybody's.
        w: its weights, (d,).
        x: the examples, (n, ...).
        who: asks.
    """
    check_finite_weights(network, w)
    x = x.to(network.device)
    try:
        output = network.outputs(w[None], x, network.buffers())[0]
    except UnsupportedModelError:
        raise
    except Exception as error:  # the user's forward may raise anything
        reason = str(error).partition("\n")[0].rstrip(".")
        hint = ""
        if isinstance(error, TypeError) and "positional argument" in reason:
            hint = " A model of several inputs needs a wrapper that splits one tensor."
        raise ValueError(
            f"{who}: the model must accept inputs of shape {tuple(x.shape)} and {x.dtype}, but it "
            f"failed: {reason or type(error).__name__}.{hint}"
        ) from error
    if output.dim() == 0 or len(output) != len(x):
        raise ValueError(
            f"{who}: the model must return one row per example, (n, outputs); got "
            f"{tuple(output.shape)} for {len(x)} examples."
        )
    if bool(output.isnan().any()):
        raise ValueError(
            f"{who}: the model returns NaN for the first examples. Look for NaN in its frozen "
            "parameters and buffers, and for inputs of a scale that overflows."
        )
    return output


def _named(kind: str, path: str) -> str:
    return f"{kind} {path!r}" if path else "the model"
