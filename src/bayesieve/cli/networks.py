"""Networks by name."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from bayesieve.checks import did_you_mean
from bayesieve.cli.config_files import UsageError

if TYPE_CHECKING:
    from torch import nn

    from bayesieve.data import DataSet

NETS = (
    "lenet-300-100",
    "lenet5",
    "lenet5-wide",
    "lenet5-caffe",
    "mixer",
    "vit",
    "conv2-fc2",
    "conv2-bn-fc3",
    "resnet20",
    "resnet32",
    "vgg",
)


def default_net(data: "DataSet") -> str:
    """The network for data that come without one: tables have few rows and need few units."""
    return "mlp:400,400" if len(data.input_shape) > 1 else "mlp:50"


def build_net(name: str | None, data: "DataSet", n_outputs: int) -> "nn.Module":
    """The network of a name, sized for a data set."""
    from bayesieve import nets

    name = name or default_net(data)
    shape = data.input_shape
    kind, _, rest = name.partition(":")
    if kind == "module":
        return nets.from_path(name, shape, n_outputs)
    if kind == "mlp":
        return _mlp(name, rest, shape, n_outputs)
    if name not in NETS:
        raise UsageError(
            f"--net must be one of {', '.join(NETS)}, mlp:WIDTHS or module:package.file.factory; "
            f"got {name!r}.{did_you_mean(name, NETS)}"
        )
    factory: Callable[[tuple[int, ...], int], nn.Module]
    factory = getattr(nets, name.replace("-", "_"))
    return factory(shape, n_outputs)


def _mlp(name: str, rest: str, shape: tuple[int, ...], n_outputs: int) -> "nn.Module":
    from bayesieve.nets import Activation, mlp

    widths, _, activation = rest.partition(":")
    parts = [part.strip() for part in widths.split(",")] if widths else []
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--net mlp must read mlp:400,400 or mlp:50:tanh, got {name!r}.")
    chosen: Activation = activation or "relu"  # type: ignore[assignment]
    return mlp(shape, n_outputs, widths=[int(part) for part in parts], activation=chosen)
