"""ONNX files: the point model, or posterior draws baked into one graph that states uncertainty.

With K draws w_s the graph holds the network K times and returns, for a classifier with
p_s = p(y | x, w_s) and p̄ their mean,

    probability          p̄                                     (n, classes)
    entropy              H[p̄], nats                            (n,)
    mutual_information   1/K Σ KL(p_s || p̄), nats              (n,)

and for a regression the mean of the draws' outputs, aleatoric_std (observation noise) and
epistemic_std (spread of the draws), each (n, m). These are the numbers of `predict` with the same
`n_samples` and `seed`, and every export is checked against it.
"""

import contextlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve import __version__
from bayesieve.assess.predict import drawn_modules, predict
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior
from bayesieve.deliver.bundle.posterior import likelihood_to_json
from bayesieve.deliver.export_checks import (
    check_example,
    check_inputs,
    check_same,
    check_target,
    first_output,
    on_cpu,
    run_module,
    trace,
)
from bayesieve.errors import UnsupportedModelError, VerificationError
from bayesieve.files import write_atomically

_WHO = "export_onnx"
_LIMIT = 2**31 - 2**24  # bytes of one protobuf message, less room for the graph


def export_onnx(
    module: nn.Module,
    path: Path | str,
    example: Tensor,
    *,
    posterior: Posterior | None = None,
    n_samples: int = 0,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    likelihood: Likelihood | None = None,
) -> Path:
    """Write an ONNX file with a free batch axis, checked in onnxruntime against torch.

    The graph's input is called "input". A point model has one output, "output" (logits, or the
    mean of a regression); with posterior draws the outputs are those named at the top of this
    module. Metadata entries: "bayesieve_version", "n_samples", with draws "task" and "seed", and,
    as JSON, "classes", "preprocessing" and "likelihood" (its noise, for intervals). No value of the
    example and no path goes into the file.

    Args:
        module: maps one tensor, shape (n, ...), to one tensor; it is not changed.
        path: of the file; an existing one is replaced in one step.
        example: some inputs, shape (n, ...), of the kind the model will meet.
        posterior: where draws come from; each is baked into a copy of the posterior's own network,
            so `module` must take and return the same shapes.
        n_samples: draws to bake in; 0 exports `module` alone.
        seed: of the draws.
        classes: their names, in the order of the outputs; two for a network with one logit.
        preprocessing: how inputs were prepared, for whoever runs the file.
        likelihood: what the outputs mean; that of `posterior` unless given.

    Returns:
        The path.

    Raises:
        ImportError: the extra `onnx` is not installed.
        UnsupportedModelError: the module cannot be expressed in ONNX with a free batch axis.
        VerificationError: onnxruntime gives other numbers than torch; nothing was written.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp()) / "net.onnx"
        >>> export_onnx(nn.Linear(3, 2), path, torch.zeros(1, 3)).name
        'net.onnx'
    """
    _check_draws(posterior, n_samples)
    path, example = check_target(_WHO, path), check_example(_WHO, example)
    onnx, runtime = _import_extra()
    module = on_cpu(module)
    point = first_output(_WHO, module, example)
    _check_classes(classes, point)
    metadata = {"bayesieve_version": __version__, "n_samples": str(n_samples)}
    if classes is not None:
        metadata["classes"] = json.dumps(list(classes))
    if preprocessing is not None:
        metadata["preprocessing"] = json.dumps(dict(preprocessing), allow_nan=False)
    if likelihood is None and posterior is not None:
        likelihood = posterior.network.likelihood
    if likelihood is not None:
        metadata["likelihood"] = json.dumps(likelihood_to_json(likelihood, posterior))
    compute = _point_outputs(module)
    if posterior is not None and n_samples > 0:
        posterior = posterior.to("cpu")
        metadata |= {"seed": str(seed), "task": posterior.network.likelihood.task}
        _check_point(posterior, point, example)
        module = bake(posterior, n_samples, seed)
        compute = partial(_predicted, posterior, n_samples=n_samples, seed=seed)
    data = _convert(onnx, module, example, tuple(compute(example)), metadata)
    batches = check_inputs(example)
    _verify(onnx, runtime, data, batches, [compute(x) for x in batches])
    write_atomically(path, data)
    return path


class Mixture(nn.Module):
    """The predictive distribution of K networks, in the tensors that `likelihood.delivered` names.

    Args:
        draws: networks that return (n, ...).
        likelihood: says how their outputs become a distribution.
        numbers: its learned numbers under each draw, (K,) each.
    """

    def __init__(
        self, draws: Sequence[nn.Module], likelihood: Likelihood, numbers: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.draws = nn.ModuleList(draws)
        self.likelihood = likelihood
        self.names = tuple(numbers)
        for name, values in numbers.items():
            self.register_buffer(f"number_{name}", values.detach().clone())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Inputs (n, ...) to one tensor (n, ...) for each name."""
        output = torch.stack([draw(x) for draw in self.draws])
        numbers = {name: getattr(self, f"number_{name}") for name in self.names}
        return self.likelihood.summary(output, numbers)


def bake(posterior: Posterior, n_samples: int, seed: int) -> Mixture:
    """The posterior's network with `n_samples` draws, those that `predict` makes of this seed."""
    w, draws = drawn_modules(posterior, n_samples, seed)
    network = posterior.network
    return Mixture(draws, network.likelihood, network.numbers(w)).eval()


def _predicted(posterior: Posterior, x: Tensor, n_samples: int, seed: int) -> dict[str, Tensor]:
    """The outputs that the mixture must have, by `predict`."""
    return predict(posterior, x, n_samples=n_samples, seed=seed).delivered


def _point_outputs(module: nn.Module) -> Callable[[Tensor], dict[str, Tensor]]:
    return lambda x: {"output": run_module(module, x)}


def _culprit(error: BaseException) -> str:
    """The call that has no ONNX form and the innermost reason, from a chain of torch's errors."""
    node = ""
    while True:
        call = re.search(r"target=torch\.ops\.(\S+?)\]", str(error))
        node = node or (f"{call[1]}: " if call else "")
        if error.__cause__ is None:
            return node + str(error).strip().split("\n")[0].rstrip(".")[:300]
        error = error.__cause__


def _convert(
    onnx: Any, module: nn.Module, example: Tensor, names: Sequence[str], metadata: dict[str, str]
) -> bytes:
    """The bytes of an ONNX file."""
    n_bytes = sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
    if n_bytes > _LIMIT:
        raise UnsupportedModelError(
            f"{_WHO}: weights must fit in one file of 2 GiB, got {n_bytes / 2**30:.1f} GiB. "
            "Compact the model, or bake in fewer draws."
        )
    with _quiet():
        program = trace(_WHO, module, example)
        try:
            converted = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["input"],
                output_names=list(names),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise UnsupportedModelError(
                f"{_WHO}: torch.onnx cannot convert {_culprit(error)}. Write that part with other "
                "calls, or use export_pt2."
            ) from error
    if converted is None:  # only the older exporter writes straight to a file
        raise UnsupportedModelError(f"{_WHO}: torch.onnx returned no graph.")
    proto = converted.model_proto
    _tidy(proto)
    onnx.helper.set_model_props(proto, metadata)
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def _tidy(proto: Any) -> None:
    """Name the free axis and drop what only the exporter's authors read."""
    symbol = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*proto.graph.input, *proto.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param == symbol:
                size.dim_param = "batch"
    del proto.graph.value_info[:]  # intermediate shapes, which any runtime infers
    for message in (proto.graph, *proto.graph.node, *proto.graph.input, *proto.graph.output):
        del message.metadata_props[:]
        message.doc_string = ""
    for tensor in proto.graph.initializer:
        del tensor.metadata_props[:]
        tensor.doc_string = ""


def _verify(
    onnx: Any,
    runtime: Any,
    data: bytes,
    batches: Sequence[Tensor],
    outputs: Sequence[Mapping[str, Tensor]],
) -> None:
    """Raise unless the file is well-formed and computes `outputs` from `batches`."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        onnx.checker.check_model(data, full_check=True)
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        results = [session.run(list(outputs[0]), {"input": x.numpy()}) for x in batches]
    except Exception as error:  # the errors of onnx and onnxruntime share no base
        reason = str(error).strip().split("\n")[0][:500]
        raise VerificationError(
            f"{_WHO}: the exported graph does not run: {reason} Nothing was written."
        ) from error
    for expected, arrays in zip(outputs, results, strict=True):
        scale = _scale(expected)
        for (name, value), other in zip(expected.items(), arrays, strict=True):
            check_same(_WHO, name, value, torch.from_numpy(other), scale)


def _scale(outputs: Mapping[str, Tensor]) -> float:
    """The size of an error of 1: probabilities and nats as they are, else the largest mean."""
    if "probability" in outputs:
        return 1.0
    return max(float(value.abs().max()) for value in outputs.values())


def _check_draws(posterior: Posterior | None, n_samples: int) -> None:
    if n_samples < 0:
        raise ValueError(f"{_WHO}: n_samples must be >= 0, got {n_samples}.")
    if n_samples > 0 and posterior is None:
        raise ValueError(f"{_WHO}: n_samples = {n_samples} needs a posterior to draw from.")


def _check_point(posterior: Posterior, output: Tensor, x: Tensor) -> None:
    """The posterior's network must return what the module returns."""
    network = posterior.network
    shape = network.outputs(posterior.mean[None], x, posterior.buffers).shape[1:]
    if shape != output.shape:
        raise ValueError(
            f"{_WHO}: the posterior's network returns {tuple(shape[1:])} per input where the "
            f"module returns {tuple(output.shape[1:])}; they must be the same model."
        )


def _check_classes(classes: Sequence[str] | None, output: Tensor) -> None:
    if classes is None:
        return
    n_outputs = output.shape[-1]
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise TypeError(f"{_WHO}: classes must be a sequence of names, got {classes!r}.")
    if len(classes) != (2 if n_outputs == 1 else n_outputs):
        raise ValueError(
            f"{_WHO}: classes must name every output: the module returns {n_outputs} outputs, "
            f"got {len(classes)} names."
        )


def _import_extra() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise ImportError(
            f"{_WHO}: needs onnx, onnxruntime and onnxscript ({error}). "
            "Run `pip install 'bayesieve[onnx]'`."
        ) from error
    return onnx, onnxruntime


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what torch's exporter says about itself, and nothing else."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)  # "torchvision is not installed"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")
            yield
    finally:
        registration.setLevel(level)
