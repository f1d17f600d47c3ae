"""The problem to solve: a network, a likelihood and data; no prior, no algorithm."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesieve.checks import check_choice
from bayesieve.core.batch import (
    Augment,
    Batch,
    Data,
    Rows,
    Streamed,
    TrainingData,
    first_not_finite,
)
from bayesieve.core.execution import PRECISIONS, Execution, F, Formats, Precision
from bayesieve.core.inputs import Input, one_input, shown, tensors_of
from bayesieve.core.layout import Layout, Patterns, RoleRule, check_patterns, default_role
from bayesieve.core.likelihoods.base import Likelihood
from bayesieve.core.network import Network, plain_model
from bayesieve.core.random import own_stream
from bayesieve.core.workspace import Found, Layers, Workspace
from bayesieve.errors import UnsupportedModelError

_QUANTISED = ("torch.ao.nn.quantized", "torch.nn.quantized")
_HALF = (torch.float16, torch.bfloat16)


class Problem:
    """An unmodified module, a likelihood and training data.

    The model is copied in structure and left untouched. Log-likelihoods are in nats over the full
    data set: sums over a batch of n examples are scaled by N / n.

    Args:
        model: any `nn.Module` mapping (n, ...) to (n, outputs), or to an object with `logits`.
        likelihood: `Categorical`, `Bernoulli` or `Gaussian`.
        data: an object with tensors `.x` (N, ...) and `.y` (N, ...), or an (x, y) pair. x is one
            tensor, or a tuple or dict of them for a model of several inputs (core/inputs.py). Or a
            `DataLoader`, `Dataset` or `Stream`, which is read batch by batch (docs/streams.md).
        roles: which parameters are pruned, kept or point estimates (see `Roles`).
        weight: (N,), what each example counts in the log-likelihood; None counts all once.
        rows: the rows that each model of a population learns from; None gives all to all.
        precision: "bf16" runs the network of a training step in bfloat16 (core/workspace.py),
            whatever the dtype of its inputs.
        full_precision: modules that stay in float32 then, by name pattern or type:
            `("head", nn.LayerNorm)`.
        augment: random changes of the images of each training batch.
        n_data: N of a stream that has no length.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 2.0)
        >>> problem = Problem(model, Gaussian(), (torch.ones(4, 1), torch.zeros(4)))
        >>> problem
        Problem(Gaussian, 1 weights (1 may be pruned), 4 examples, on cpu)
        >>> w = problem.initial[None]
        >>> log_lik, grad = problem.value_and_grad(w, Batch(torch.ones(2, 1), torch.zeros(2)))
        >>> grad.item()  # -(N/n) Σ w = -(4/2) * 2 * 2
        -8.0
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        data: Data | Streamed,
        *,
        roles: RoleRule = default_role,
        weight: Tensor | None = None,
        rows: Rows | None = None,
        precision: Precision = "float32",
        full_precision: Patterns = (),
        augment: Augment | None = None,
        n_data: int | None = None,
    ) -> None:
        check_choice("Problem", "precision", precision, PRECISIONS)
        if not isinstance(model, nn.Module):
            raise TypeError(f"Problem: model must be a nn.Module, got {type(model).__name__}.")
        if isinstance(likelihood, type) or not isinstance(likelihood, Likelihood):
            got = likelihood.__name__ if isinstance(likelihood, type) else repr(likelihood)
            raise TypeError(f"Problem: likelihood must be one such as Gaussian(), got {got}.")
        model = plain_model(model)
        check_model(model)
        names = [name for name, _ in model.named_modules() if name]
        check_patterns("Problem", full_precision, "module", names)
        self.execution = Execution(formats=Formats(precision, full_precision))
        found = TrainingData.of(data, n_data, weight=weight, rows=rows, augment=augment)
        self.network = Network.of(model, likelihood, roles).seeing(found.sample.x)
        if rows is not None:
            found = replace(found, rows=rows.to(self.network.device, self.network.dtype))
        self.data, self.initial = found, self.network.weights_of(model)
        self._model = model
        self._workspace: Workspace | None = None
        self._check()

    def __repr__(self) -> str:
        likelihood = type(self.likelihood).__name__
        weights = f"{self.layout.size:,} weights ({self.layout.n_sparse:,} may be pruned)"
        return f"Problem({likelihood}, {weights}, {self.n_data:,} examples, on {self.device})"

    @property
    def layout(self) -> Layout:
        """The slice of w of each tensor."""
        return self.network.layout

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of outputs."""
        return self.network.likelihood

    @property
    def n_data(self) -> int:
        """N, the number of training examples (of one model, if each has its rows)."""
        return self.data.n

    @property
    def x(self) -> Any:
        """All inputs; raises for a stream."""
        return self.data.x

    @property
    def y(self) -> Tensor:
        """All targets; raises for a stream."""
        return self.data.y

    @property
    def device(self) -> torch.device:
        """Where w lives."""
        return self.network.device

    def to(self, device: torch.device | str) -> "Problem":
        """The same problem with network and data on another device."""
        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise ValueError(
                f"Problem: device must be cpu, cuda or cuda:N, got {device!r}."
            ) from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"Problem: device {str(device)!r}: torch finds no CUDA device. Use cpu."
            )
        clone = self._copy()
        clone.network = self.network.to(device)
        clone.initial = self.initial.to(device)
        clone.data = self.data.to(device)
        return clone

    def _copy(self) -> "Problem":
        clone = object.__new__(Problem)
        clone.__dict__.update(self.__dict__)
        clone._workspace = None
        return clone

    def workspace(self, n_models: int = 1, layers: Layers | None = None) -> Workspace:
        """The flat buffers of k models; made on first use and whenever k or `layers` changes."""
        space = self._workspace
        if space is None or space.n_models != n_models or space.layers != layers:
            self._workspace = space = Workspace(
                self.network, n_models, layers=layers, execution=self.execution
            )
        return space

    def run(self, function: F) -> F:
        """Return what computes a definition here: the function, compiled, or its twin in C."""
        return self.execution.backend.run(function)

    def value_and_grad(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-likelihood over the full data set and its gradient, in training mode.

        Args:
            w: (k, d); passing the `weights` of the workspace saves a copy.
            batch: n examples.

        Returns:
            Values (k,) and gradients (k, d). The gradient is a buffer: the next call overwrites it.
        """
        space = self.workspace(len(w))
        if w.data_ptr() != space.weights.data_ptr():
            space.weights.copy_(w)
        found = gradient(self, space, batch).flatten()
        return found.log_lik, found.grad

    def _check(self) -> None:
        if self.device.type == "meta":
            return  # there are no numbers to check
        data = self.data
        if data.stream is not None and (data.rows is not None or data.weight is not None):
            raise ValueError("Problem: rows and weight are of examples in memory, not of a stream.")
        if data.rows is not None:
            data.rows.check(len(data.x))
        weight, dtype = data.weight, self.network.dtype
        n = data.n if data.stream is not None else len(data.x)
        x, y = data.sample[:2] if data.whole is None else data.whole
        if weight is not None and (weight.shape != (n,) or weight.dtype != dtype):
            raise ValueError(
                f"Problem: weight must be {dtype} of shape ({n},), got {weight.dtype} of shape "
                f"{tuple(weight.shape)}."
            )
        if weight is not None and not (weight.isfinite() & (weight >= 0)).all() & weight.any():
            raise ValueError("Problem: weights must be finite and >= 0, and at least one > 0.")
        check_examples(x, y, self.network.dtype)
        if data.augment is not None:
            data.augment.check(one_input("Augment", x))
        self._first_output = first_outputs(self.network, self.initial, x[:2])
        self.likelihood.check(self._first_output, y)


def starting_points(problem: Problem, n_models: int, generator: Generator, scheme: str) -> Tensor:
    """Make initial weight vectors, shape (k, d).

    Args:
        problem: whose network starts.
        n_models: k.
        generator: source of the random starts.
        scheme: "module" takes the weights of the model for the first member and calls
            `reset_parameters` for the others; "he" draws weights from U(±√(6 / fan_in)) and
            sets biases to 0, leaving other vectors (the factors of norms, which are no biases)
            and point parameters as they are in the model.
    """
    problem._workspace = None  # a new run starts from the buffers of the module
    if scheme not in ("module", "he"):
        raise ValueError(f"Problem: scheme must be 'module' or 'he', got {scheme!r}.")
    if scheme == "module":
        if n_models == 1 or problem.device.type == "meta":  # which has no numbers
            return problem.initial.repeat(n_models, 1)
        seeds = torch.randint(2**31, (n_models - 1,), generator=generator, device=problem.device)
        rows = [reset_weights(problem._model, problem.network, seed) for seed in seeds.tolist()]
        return torch.stack([problem.initial, *rows])
    w, layout = problem.initial.repeat(n_models, 1), problem.layout
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        part = layout.slices[name]
        if part.start < layout.n_bayesian and len(shape) > 1:
            bound = (6 / layout.fan_in(name)) ** 0.5
            w[:, part] = w[:, part].uniform_(-bound, bound, generator=generator)
        elif part.start < layout.n_bayesian and "bias" in name.rpartition(".")[2]:
            w[:, part] = 0.0  # a norm whose factors were 0 would let nothing through
    return w


def gradient(problem: Problem, space: Workspace, batch: Batch) -> Found:
    """The log-likelihood over the full data set and its gradient at the weights of a workspace.

    Sums are over the processes that share the batch, and the gradient is within its bound.
    """
    found = space.differentiate(batch, problem.n_data / batch.n_step)
    if not problem.execution.takes_whole(batch.n):
        tensors = (found.log_lik, found.flatten().grad)
        found.log_lik, grad = problem.execution.summed(space, batch.n / batch.n_step, *tensors)
        problem.execution.bounds.clip_(problem.n_data, grad)
        found.replaced(grad)
    return found


def check_plain(who: str, model: nn.Module) -> None:
    """Raise on a model with layers whose weights cannot be other ones: compiled, or quantised."""
    for path, owner in model.named_modules():
        what = f"layer {path!r}" if path else "the model"
        if isinstance(owner, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"{who}: {what} is compiled by torch.jit, which cannot run on "
                "other weights. Give the Python module it was made from."
            )
        if type(owner).__module__.startswith(_QUANTISED):
            raise UnsupportedModelError(
                f"{who}: {what} is quantised: its weights are whole numbers, which are not "
                "trained. Give the float module it was made from, and quantise what is left of it."
            )


def check_model(model: nn.Module) -> None:
    """Raise on a model that cannot be copied or run on other weights, or is of no use yet.

    Example:
        >>> check_model(nn.Linear(2, 1).half())
        Traceback (most recent call last):
        bayesieve.errors.UnsupportedModelError: Problem: parameter 'weight' is torch.float16, in ...
    """
    check_plain("Problem", model)
    for path, owner in model.named_modules():
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


def check_examples(x: Input, y: Tensor, dtype: torch.dtype, who: str = "Problem") -> None:
    """Raise unless inputs, (N, ...), and targets, (N, ...), are finite and of the model's dtype."""
    for tensor in tensors_of(x):
        if tensor.is_floating_point() and tensor.dtype != dtype:
            raise TypeError(
                f"{who}: inputs are {tensor.dtype} but the model is {dtype}. "
                "Convert one of them with .to(dtype)."
            )
    if (where := first_not_finite(x)) is not None:
        raise ValueError(
            f"{who}: inputs must be finite; example {where} holds NaN or infinity. "
            "Clean or impute it."
        )
    if (where := first_not_finite(y)) is not None:
        raise ValueError(f"{who}: targets must be finite; example {where} is not.")


def first_outputs(network: Network, w: Tensor, x: Input, who: str = "Problem") -> Tensor:
    """Outputs for a few examples, (n, ...), or a message that says why there are none.

    Args:
        network: whose module may be anybody's.
        w: its weights, (d,).
        x: the examples, (n, ...).
        who: asks.
    """
    for name, view in network.layout.pieces(w):
        if not bool(view.isfinite().all()):
            raise ValueError(
                f"Problem: parameter {name!r} of the model holds NaN or infinity. Initialise it "
                "again."
            )
    x = x.to(network.device)
    try:
        output = network.outputs(w[None], x, network.buffers())[0]
    except UnsupportedModelError:
        raise
    except Exception as error:  # the user's forward may raise anything
        reason = str(error).partition("\n")[0].rstrip(".")
        hint = ""
        if isinstance(error, TypeError) and "positional argument" in reason:
            hint = " Give the inputs of a model that takes several as a tuple or dict of tensors."
        raise ValueError(
            f"{who}: the model must accept inputs of {shown(x)}, but it "
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


def reset_weights(model: nn.Module, network: Network, seed: int) -> Tensor:
    """The weights that `reset_parameters` of each layer gives for a seed, (d,); a copy is reset.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Linear(2, 1)
        >>> network = Network.of(model, Gaussian())
        >>> torch.equal(reset_weights(model, network, 1), reset_weights(model, network, 1))
        True
    """
    model = copy.deepcopy(model).to("cpu")
    with own_stream("fit", seed):
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None) or getattr(
                module, "_reset_parameters", None
            )
            if callable(reset):
                reset()
    return network.weights_of(model.to(network.device))
