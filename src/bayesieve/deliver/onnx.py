"""ONNX files: the point model, or posterior draws baked into one graph that states uncertainty.

With K draws w_s the graph holds the network K times and returns, for a classifier with
p_s = p(y | x, w_s) and p̄ their mean,

    probability          p̄                                     (n, classes)
    entropy              H[p̄], nats                            (n,)
    mutual_information   1/K Σ KL(p_s || p̄), nats              (n,)

(both with the jackknife's correction for few draws)
and for a regression the mean of the draws' outputs, aleatoric_std (observation noise) and
epistemic_std (spread of the draws), each (n, m). These are the numbers of `predict` with the same
`n_samples` and `seed`, and every export is checked against it. A file exported with the familiarity
of inputs returns it as "familiarity", (n,).

The input is called "input". A model of several has theirs by name (input_0, input_1, ... where they
have none). With `raw` the graph prepares images itself: its input is "pixels", whole numbers of 8
bits, (n, height, width, channels), as cameras and files have them.

`read_onnx` runs files from anywhere. A file may point to data outside itself, by any path. Such a
file is refused before the runtime sees it, and the runtime gets the checked bytes, not the path.
"""

import contextlib
import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesieve import __version__
from bayesieve.assess.predict import how_drawn, predict
from bayesieve.checks import check_not_negative
from bayesieve.core.inputs import Input, as_inputs, call, one_input
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.likelihoods.prediction import Drawn
from bayesieve.core.posterior import Posterior
from bayesieve.deliver.bundle.posterior import likelihood_to_json
from bayesieve.deliver.export import (
    Outputs,
    check_arguments,
    check_same,
    delivered,
    drawn_modules,
    first_output,
    on_cpu,
    outputs_of,
    trace,
)
from bayesieve.errors import DamagedFileError, UnsupportedModelError, VerificationError, damaged
from bayesieve.files import check_growth, parse_json, write_atomically
from bayesieve.uncertainty.familiarity import Familiarity

_WHO = "export_onnx"
_LIMIT = 2**31 - 2**24  # bytes of one protobuf message, less room for the graph
MAX_FILE_BYTES = 2 << 30  # the limit of the format itself
_MAX_TEXT = 16 << 20
_JSON_ENTRIES = {"classes": list, "preprocessing": dict, "likelihood": dict}
_INPUT_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(int64)": torch.int64,
    "tensor(uint8)": torch.uint8,
}


def export_onnx(
    module: nn.Module,
    path: Path | str,
    example: Any,
    *,
    posterior: Posterior | None = None,
    n_samples: int = 0,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    likelihood: Likelihood | None = None,
    familiarity: Familiarity | None = None,
    raw: bool = False,
) -> Path:
    """Write an ONNX file with a free batch axis, checked in onnxruntime against torch.

    A point model has one output, "output" (logits, or the mean of a regression); with posterior
    draws the outputs are those named at the top of this module, as the inputs are. Metadata
    entries: "bayesieve_version", "n_samples", "takes" ("raw" or "prepared"), with draws "task" and
    "seed", and, as JSON, "classes", "preprocessing" and "likelihood" (its noise, for intervals). No
    value of the example and no path goes into the file.

    Args:
        module: maps inputs, shape (n, ...), to one tensor or an object with `logits`; it is not
            changed.
        path: of the file; an existing one is replaced in one step.
        example: some inputs, shape (n, ...), of the kind the model will meet, prepared; a tuple or
            dict of tensors for several. The file is checked on them and on changed copies.
        posterior: where draws come from; each is baked into a copy of the posterior's own network,
            so `module` must take and return the same shapes.
        n_samples: draws to bake in; 0 exports `module` alone.
        seed: of the draws.
        classes: their names, in the order of the outputs; two for a network with one logit.
        preprocessing: how inputs were prepared, for whoever runs the file.
        likelihood: what the outputs mean; that of `posterior` unless given.
        familiarity: of inputs, for the output "familiarity".
        raw: let the file take raw pixels; `preprocessing` must be that of images.

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
    check_not_negative(_WHO, n_samples=n_samples)
    if n_samples > 0 and posterior is None:
        raise ValueError(f"{_WHO}: n_samples = {n_samples} needs a posterior to draw from.")
    path, example = check_arguments(_WHO, path, example)
    onnx, _, _ = _import_extra(_WHO, "onnx", "onnxruntime", "onnxscript")  # torch needs the last
    module = on_cpu(module)
    point = first_output(_WHO, module, example)
    if classes is not None:
        n_outputs = point.shape[-1]
        if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
            raise TypeError(f"{_WHO}: classes must be a sequence of names, got {classes!r}.")
        if len(classes) != (2 if n_outputs == 1 else n_outputs):
            raise ValueError(
                f"{_WHO}: classes must name every output: the module returns {n_outputs} outputs, "
                f"got {len(classes)} names."
            )
    metadata = {"bayesieve_version": __version__, "n_samples": str(n_samples), "takes": "prepared"}
    if classes is not None:
        metadata["classes"] = json.dumps(list(classes))
    if preprocessing is not None:
        metadata["preprocessing"] = json.dumps(dict(preprocessing), allow_nan=False)
    if likelihood is not None or posterior is not None:
        metadata["likelihood"] = json.dumps(likelihood_to_json(likelihood, posterior))
    compute = outputs_of(module)
    if posterior is not None and n_samples > 0:
        posterior = posterior.to("cpu")
        network = posterior.network
        metadata |= {"seed": str(seed), "task": network.likelihood.task}
        shape = network.outputs(posterior.mean[None], example, posterior.buffers).shape[1:]
        if shape != point.shape:
            raise ValueError(
                f"{_WHO}: the posterior's network returns {tuple(shape[1:])} per input where the "
                f"module returns {tuple(point.shape[1:])}; they must be the same model."
            )
        module, whole = bake(posterior, n_samples, seed), posterior

        def predicted(x: Input) -> Outputs:  # what the mixture must equal
            return delivered(predict(whole, x, n_samples=n_samples, seed=seed))

        compute = predicted
    if familiarity is not None:
        one_input("Familiarity", example)
        module, compute = (
            WithFamiliarity(module, familiarity),
            _and_familiarity(compute, familiarity),
        )
    if raw:
        images = one_input(_WHO, example)
        prepare = Prepared(_image_recipe(preprocessing, images))
        module, compute = nn.Sequential(prepare, module).eval(), _after(prepare, compute)
        example, metadata["takes"] = prepare.pixels(images), "raw"
    data = _convert(onnx, module, example, list(compute(example)), metadata)
    _verify(onnx, data, compute, example)
    return write_atomically(path, data)


class Mixture(nn.Module):
    """The predictive distribution of K networks, in the tensors that `likelihood.delivered` names.

    Args:
        draws: networks that return (n, ...).
        likelihood: says how their outputs become a distribution.
        numbers: its learned numbers under each draw, (K,) each.
        drawn: how the draws were chosen.
    """

    def __init__(
        self,
        draws: Sequence[nn.Module],
        likelihood: Likelihood,
        numbers: Mapping[str, Tensor],
        drawn: Drawn = "all",
    ) -> None:
        super().__init__()
        self.draws = nn.ModuleList(draws)
        self.likelihood, self.drawn = likelihood, drawn
        self.names = tuple(numbers)
        for name, values in numbers.items():
            self.register_buffer(f"number_{name}", values.detach().clone())

    def forward(self, x: Any) -> tuple[Tensor, ...]:
        """Inputs (n, ...) to one tensor (n, ...) for each name."""
        inputs = as_inputs("Mixture", x)
        output = torch.stack([call(draw, inputs) for draw in self.draws])
        numbers = {name: getattr(self, f"number_{name}") for name in self.names}
        return self.likelihood.summary(output, numbers, self.drawn)


class WithFamiliarity(nn.Module):
    """A network whose last output is the familiarity of its inputs."""

    def __init__(self, module: nn.Module, familiarity: Familiarity) -> None:
        super().__init__()
        self.module, self.familiarity = module, familiarity

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Inputs (n, ...) to the module's outputs and the familiarity, (n,)."""
        outputs = self.module(x)
        whole = outputs if isinstance(outputs, tuple) else (outputs,)
        return (*whole, self.familiarity(x.float()))


def _and_familiarity(
    compute: Callable[[Input], Outputs], familiarity: Familiarity
) -> Callable[[Input], Outputs]:
    def both(x: Input) -> Outputs:
        return {**compute(x), "familiarity": familiarity.score(one_input("Familiarity", x))}

    return both


class Prepared(nn.Module):
    """Raw pixels, (n, height, width, channels) uint8, to inputs, (n, channels, height, width).

    Args:
        recipe: of images, see `data.images`.

    Example:
        >>> from bayesieve.data.images import image_recipe
        >>> layer = Prepared(image_recipe((1, 1, 2), [0.0], [126 / 255]))
        >>> layer(torch.tensor([[[[0], [252]]]], dtype=torch.uint8)).tolist()
        [[[[0.0, 2.0]]]]
    """

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        super().__init__()
        for name in ("mean", "std"):
            scaled = [value * recipe["scale"] for value in recipe[name]]
            self.register_buffer(name, torch.tensor(scaled, dtype=torch.float32)[:, None, None])
        self.mean: Tensor
        self.std: Tensor

    def forward(self, pixels: Tensor) -> Tensor:
        """Prepare images as `prepare_images` does."""
        return (pixels.to(torch.float32).permute(0, 3, 1, 2) - self.mean) / self.std

    def pixels(self, x: Tensor) -> Tensor:
        """The pixels nearest to prepared images."""
        values = (x.float() * self.std + self.mean).round().clamp(0, 255)
        return values.to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _after(prepare: Prepared, compute: Callable[[Input], Outputs]) -> Callable[[Input], Outputs]:
    return lambda pixels: compute(prepare(pixels))


def takes_pixels(recipe: Mapping[str, Any] | None, example: Tensor) -> bool:
    """Return whether a recipe makes such inputs, (n, ...), of images whose pixels have 8 bits."""
    if recipe is None or recipe.get("kind") != "image" or example.dtype != torch.float32:
        return False
    return tuple(recipe["shape"]) == example.shape[1:] and recipe["scale"] <= 255


def _image_recipe(recipe: Mapping[str, Any] | None, example: Tensor) -> Mapping[str, Any]:
    """The recipe, if it makes such inputs of pixels; raises otherwise."""
    if recipe is None or not takes_pixels(recipe, example):
        raise ValueError(
            f"{_WHO}: raw needs the preprocessing of float32 images {tuple(example.shape[1:])}, "
            f"got that of {(recipe or {}).get('kind')}. Tables are prepared by `predict`."
        )
    return recipe


def bake(posterior: Posterior, n_samples: int, seed: int) -> Mixture:
    """The posterior's network with `n_samples` draws, those that `predict` makes of this seed."""
    w, draws = drawn_modules(posterior, n_samples, seed)
    network, drawn = posterior.network, how_drawn(posterior, n_samples)
    return Mixture(draws, network.likelihood, network.numbers(w), drawn).eval()


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
    onnx: Any, module: nn.Module, example: Input, names: Sequence[str], metadata: dict[str, str]
) -> bytes:
    """The bytes of an ONNX file."""
    n_bytes = sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
    if n_bytes > _LIMIT:
        raise UnsupportedModelError(
            f"{_WHO}: weights must fit in one file of 2 GiB, got {n_bytes / 2**30:.1f} GiB. "
            "Compact the model, or bake in fewer draws."
        )
    with _quiet(), sdpa_kernel(SDPBackend.MATH):  # the kind of attention that ONNX writes out
        program = trace(_WHO, module, example)
        try:
            inputs = ["pixels" if metadata["takes"] == "raw" else "input"]
            if not isinstance(example, Tensor):
                inputs = list(example.named)
            converted = torch.onnx.export(
                program, dynamo=True, input_names=inputs, output_names=names, verbose=False
            )
        except torch.onnx.OnnxExporterError as error:
            raise UnsupportedModelError(
                f"{_WHO}: torch.onnx cannot convert {_culprit(error)}. Write that part with other "
                "calls, or use export_pt2."
            ) from error
    if converted is None:  # only the older exporter writes straight to a file
        raise UnsupportedModelError(f"{_WHO}: torch.onnx returned no graph.")
    proto = converted.model_proto
    graph = proto.graph  # name the free axis, and drop what only the exporter's authors read
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param == symbol:
                size.dim_param = "batch"
    del graph.value_info[:]  # intermediate shapes, which any runtime infers
    for message in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del message.metadata_props[:]
        message.doc_string = ""
    onnx.helper.set_model_props(proto, metadata)
    return bytes(proto.SerializeToString(deterministic=True))


def _verify(onnx: Any, data: bytes, compute: Callable[[Input], Outputs], example: Input) -> None:
    """Raise unless the file is well-formed and computes what `compute` does."""
    try:
        onnx.checker.check_model(data, full_check=True)
        session = _open(data, threads=1)
        check_same(_WHO, compute, lambda x: _run(session, x), example)
    except VerificationError:
        raise
    except Exception as error:  # the errors of onnx and onnxruntime share no base
        reason = str(error).strip().split("\n")[0][:500]
        raise VerificationError(
            f"{_WHO}: the exported graph does not run: {reason} Nothing was written."
        ) from error


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


# -------------------------------------------------------------------------------- running files


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file that passed every check.

    Args:
        path: the file.
        session: of onnxruntime.
        input_shape: of one example.
        dtype: of inputs.
        metadata: what the exporter wrote: classes, preprocessing, likelihood, task, n_samples,
            takes.
    """

    path: Path
    session: Any
    input_shape: tuple[int, ...]
    dtype: torch.dtype
    metadata: dict[str, Any]

    def run(self, x: Tensor, batch_size: int = 2048) -> dict[str, Tensor]:
        """Outputs by name for inputs of shape (N, ...)."""
        batches = [_run(self.session, batch) for batch in x.split(batch_size)]
        return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def read_onnx(path: Path | str) -> OnnxModel:
    """Read an ONNX file with one input and a free batch axis.

    Raises:
        ImportError: the extra `onnx` is not installed.
        DamagedFileError: the file is damaged, or points to data outside itself.
    """
    path = Path(path)
    onnx, _ = _import_extra("predict", "onnx", "onnxruntime")
    if not path.is_file():
        raise ValueError(f"predict: there is no file {path}.")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise damaged(path, f"it has {size} bytes, more than {MAX_FILE_BYTES}", "predict")
    data = path.read_bytes()
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise damaged(path, "it is no ONNX file", "predict") from error
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.external_data):
            where = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
            raise DamagedFileError(
                f"predict: {path} keeps tensor {tensor.name[:80]!r} in another file "
                f"({where[:80]!r}). External data are refused: export the model to one file."
            )
    _check_work(path, onnx, model)
    try:
        session = _open(data)
    except Exception as error:  # onnxruntime has a class of error for each of its codes
        reason = " ".join(str(error).split())[:160]
        raise damaged(path, f"onnxruntime refuses it ({reason})", "predict") from error
    shape, dtype = _input_of(path, session)
    return OnnxModel(path, session, shape, dtype, _metadata(path, model))


def _check_work(path: Path, onnx: Any, model: Any) -> None:
    """Raise for what could run for ever, or make results of a size that the file chooses."""
    for node in model.graph.node:
        inner = any(entry.HasField("g") or len(entry.graphs) for entry in node.attribute)
        if inner or node.op_type == "Range":  # whose length onnx does not infer
            what = f"it holds a {node.op_type[:40]}, which could take unbounded time or memory"
            raise damaged(path, what, "predict")
    if len(model.functions):
        raise damaged(path, "it holds functions of its own; export it without", "predict")
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception as error:  # onnx's own class, or protobuf's
        reason = " ".join(str(error).split())[:160]
        raise damaged(path, f"its shapes do not fit ({reason})", "predict") from error
    for value in (*inferred.value_info, *inferred.output):
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        check_growth(path, 4 * math.prod(max(size, 1) for size in sizes))


def _tensors(message: Any) -> Iterator[Any]:
    """Every TensorProto anywhere in a message."""
    waiting = [message]
    while waiting:
        message = waiting.pop()
        if message.DESCRIPTOR.name == "TensorProto":
            yield message
            continue
        for field, value in message.ListFields():
            if field.message_type is None:
                continue
            repeated = hasattr(value, "__len__") and not hasattr(value, "DESCRIPTOR")
            waiting.extend(value if repeated else [value])


def _input_of(path: Path, session: Any) -> tuple[tuple[int, ...], torch.dtype]:
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in _INPUT_TYPES or not inputs[0].shape:
        raise DamagedFileError(
            f"predict: {path} must have one input of numbers, got {len(inputs)}."
        )
    batch, *shape = inputs[0].shape
    if isinstance(batch, int) or not all(isinstance(size, int) for size in shape):
        raise DamagedFileError(
            f"predict: {path} must have a free batch axis and fixed others, got {inputs[0].shape}."
        )
    return tuple(shape), _INPUT_TYPES[inputs[0].type]


def _metadata(path: Path, model: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for entry in model.metadata_props:
        text = entry.value
        if len(text) > _MAX_TEXT:
            raise damaged(path, f"metadata {entry.key[:80]!r} is too long", "predict")
        if entry.key not in _JSON_ENTRIES:
            metadata[entry.key] = text
            continue
        words = f"metadata {entry.key!r}"
        wrapped = parse_json(path, f'{{"it": {text}}}'.encode(), words, constants=True)
        metadata[entry.key] = wrapped["it"]
    if not all(isinstance(metadata.get(name), kind | None) for name, kind in _JSON_ENTRIES.items()):
        raise damaged(path, "its metadata are not those of an export", "predict")
    return metadata


class OnnxSession:
    """A module as an ONNX file in onnxruntime on the CPU: tensor in, tensor out.

    Args:
        module: with one output.
        path: the file to write.
        example: some inputs, (n, ...).
        threads: how many onnxruntime may use.
    """

    def __init__(self, module: nn.Module, path: Path, example: Tensor, *, threads: int = 1) -> None:
        self.module, self.path = module, export_onnx(module, path, example)
        self._session = _open(path.read_bytes(), threads)

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs, (n, ...), of inputs, (n, ...)."""
        return torch.from_numpy(self.run(x.numpy()))

    def run(self, x: NDArray[Any]) -> NDArray[Any]:
        """The same on arrays, with no other call around onnxruntime's own."""
        return self._session.run(None, {"input": x})[0]


def _import_extra(who: str, *names: str) -> list[Any]:
    try:
        return [import_module(name) for name in names]
    except ImportError as error:
        raise ImportError(
            f"{who}: ONNX files need {', '.join(names)} ({error}). "
            "Run `pip install 'bayesieve[onnx]'`."
        ) from error


def _open(data: bytes, threads: int = 0) -> Any:
    """A session of onnxruntime on the CPU; 0 threads leaves their number to it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised, not printed
    # Without fallback: it would try the same provider again, and print that it does.
    return onnxruntime.InferenceSession(
        data, options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def _run(session: Any, x: Input) -> dict[str, Tensor]:
    """Outputs of a session by name; an input that the network does not read is left out."""
    names = [output.name for output in session.get_outputs()]
    inputs = [one.name for one in session.get_inputs()]
    given = {inputs[0]: x} if isinstance(x, Tensor) else {n: x.named[n] for n in inputs}
    arrays = session.run(names, {name: tensor.numpy() for name, tensor in given.items()})
    return dict(zip(names, map(torch.from_numpy, arrays), strict=True))
