"""The network: forward, backward, train, evaluate, predict.

With a⁰ = x (a row per example), layers l = 1 ... L and one hidden activation g:

    forward    zˡ = aˡ⁻¹ Wˡ + bˡ,   aˡ = g(zˡ),   ŷ = O(zᴸ)
    backward   δᴸ = dL/dŷ back through O;  (ŷ - y) / B for softmax with cross-entropy
               dL/dWˡ = aˡ⁻¹ᵀ δˡ + penalty,   dL/dbˡ = Σ over rows of δˡ
               δˡ⁻¹ = (δˡ Wˡᵀ) passed back through g

Symbols: Wˡ weights[l-1], shape (n_in, n_out), the transpose of torch's; bˡ biases[l-1]; g hidden;
O output; L loss.

Departures from the source: data go to `train`, not to the constructor; `evaluate` measures, and the
outputs it returns there come from `outputs`; Wˡ and bˡ are views of one flat vector, all weights
first, so that a penalty or an optimiser is arithmetic on one vector.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bayesieve.checks import check_choice, check_counts
from bayesieve.scratch.functions import (
    Activation,
    Array,
    CrossEntropy,
    Glorot,
    Initialiser,
    Labels,
    Loss,
    Sigmoid,
    Softmax,
)
from bayesieve.scratch.training import History, Plan, train_epochs


def check_inputs(who: str, x: ArrayLike, n_inputs: int, dtype: DTypeLike) -> Array:
    """Inputs as a contiguous array of the net's dtype, shape (N, n_inputs), N >= 1, all finite.

    Example:
        >>> check_inputs("example", [[1, float("nan")]], 2, np.float32)
        Traceback (most recent call last):
        ValueError: example: x must be finite, got nan at row 0, column 1.
    """
    array = _real_array(who, "x", x)
    if array.ndim != 2 or array.shape[1] != n_inputs:
        raise ValueError(f"{who}: x must have shape (N, {n_inputs}), got {array.shape}.")
    if len(array) == 0:
        raise ValueError(f"{who}: x must hold at least one example, got none.")
    array = np.ascontiguousarray(array, dtype=dtype)
    _check_finite(who, "x", array)
    return array


def check_targets(
    who: str, y: ArrayLike, n_rows: int, n_outputs: int, loss: Loss, dtype: DTypeLike
) -> Array:
    """Targets of shape (n_rows, n_outputs); class numbers become one-hot rows.

    Example:
        >>> check_targets("example", [2, 0], 2, 3, CrossEntropy(), np.float64).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
        >>> check_targets("example", [3, 0], 2, 3, CrossEntropy(), np.float64)
        Traceback (most recent call last):
        ValueError: example: labels must be 0 to 2, got 3 at row 0.
    """
    array = _real_array(who, "y", y)
    if array.ndim == 0 or len(array) != n_rows:
        raise ValueError(
            f"{who}: y must have one row per row of x, got shape {array.shape} for {n_rows} rows."
        )
    if array.ndim == 1 and np.issubdtype(array.dtype, np.integer):
        return one_hot(array, n_outputs, dtype, who=who)
    if array.shape != (n_rows, n_outputs):
        raise ValueError(
            f"{who}: y must be whole-numbered labels of shape ({n_rows},) or targets of shape "
            f"({n_rows}, {n_outputs}), got {array.dtype} of shape {array.shape}."
        )
    array = np.ascontiguousarray(array, dtype=dtype)
    _check_finite(who, "y", array)
    if isinstance(loss, CrossEntropy):
        wrong = np.flatnonzero((array.min(axis=1) < 0) | (np.abs(array.sum(axis=1) - 1) > 1e-4))
        if len(wrong):
            raise ValueError(
                f"{who}: with CrossEntropy each row of y must be >= 0 and sum to 1, got "
                f"{array[wrong[0]].tolist()} at row {wrong[0]}."
            )
    return array


def one_hot(
    labels: Labels, n_classes: int, dtype: DTypeLike = np.float64, *, who: str = "one_hot"
) -> Array:
    """Labels of shape (N,) as rows with a single 1, shape (N, n_classes).

    Example:
        >>> one_hot(np.array([1, 0]), 2).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if len(wrong):
        raise ValueError(
            f"{who}: labels must be 0 to {n_classes - 1}, got {labels[wrong[0]]} at row {wrong[0]}."
        )
    rows: Array = np.zeros((len(labels), n_classes), dtype)
    rows[np.arange(len(labels)), labels] = 1
    return rows


def _real_array(who: str, name: str, values: ArrayLike) -> np.ndarray[Any, np.dtype[Any]]:
    array = np.asarray(values)
    if array.dtype == bool or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise TypeError(f"{who}: {name} must hold real numbers, got dtype {array.dtype}.")
    return array


def _check_finite(who: str, name: str, array: Array) -> None:
    # the extremes are NaN or infinite if anything is, and need no copy of the array
    if np.isfinite(array.min()) and np.isfinite(array.max()):
        return
    row, column = np.argwhere(~np.isfinite(array))[0]
    raise ValueError(
        f"{who}: {name} must be finite, got {array[row, column]} at row {row}, column {column}."
    )


_ROWS = 1000  # examples that `outputs` takes at a time


@dataclass(frozen=True)
class Evaluation:
    """Quality on given data.

    Args:
        loss: mean loss without the penalty.
        penalty: the penalty of the weights; 0 without one.
        accuracy: share of rows whose largest output is at their largest target.
    """

    loss: float
    penalty: float
    accuracy: float


class FeedForwardNet:
    """A fully connected network with one activation for all hidden layers.

    Args:
        n_inputs: columns of x.
        hidden_units: units of each hidden layer; () gives a linear model.
        n_outputs: classes, or target columns.
        hidden: activation of the hidden layers.
        output: activation of the last layer.
        loss: `CrossEntropy(...)` or `SquaredError(...)`; it carries the penalty.
        initialiser: of weights and biases.
        dtype: "float32" or "float64", of everything.
        seed: of the initialiser.

    Example:
        >>> net = FeedForwardNet(784, (500, 250, 100), 10)
        >>> print(net.sizes, net.hidden, net.output, net.dtype)
        (784, 500, 250, 100, 10) Sigmoid() Softmax() float32
        >>> net.params.size
        543860
    """

    def __init__(
        self,
        n_inputs: int,
        hidden_units: Sequence[int],
        n_outputs: int,
        *,
        hidden: Activation | None = None,
        output: Activation | None = None,
        loss: Loss | None = None,
        initialiser: Initialiser | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        seed: int = 0,
    ) -> None:
        hidden_counts = {f"hidden_units[{index}]": n for index, n in enumerate(hidden_units)}
        check_counts("FeedForwardNet", n_inputs=n_inputs, n_outputs=n_outputs, **hidden_counts)
        check_choice("FeedForwardNet", "dtype", dtype, ("float32", "float64"))
        self.sizes = (n_inputs, *hidden_units, n_outputs)
        self.hidden: Activation = Sigmoid() if hidden is None else hidden
        self.output: Activation = Softmax() if output is None else output
        self.loss: Loss = CrossEntropy() if loss is None else loss
        if isinstance(self.loss, CrossEntropy) and not isinstance(self.output, Softmax):
            raise ValueError(
                "FeedForwardNet: CrossEntropy needs outputs that sum to 1, got "
                f"output={self.output}. Use output=Softmax(), or loss=SquaredError()."
            )
        self.dtype = np.dtype(dtype)
        n_params = sum((n_in + 1) * n_out for n_in, n_out in self._shapes())
        self.params: Array = np.empty(n_params, self.dtype)
        self.gradient: Array = np.empty(n_params, self.dtype)
        self.weights, self.biases = self._views(self.params)
        self.weight_gradients, self.bias_gradients = self._views(self.gradient)
        self._n_weights = sum(weight.size for weight in self.weights)
        rng = np.random.default_rng(seed)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            (Glorot() if initialiser is None else initialiser).fill(weight, bias, rng)

    def __repr__(self) -> str:
        sizes = "-".join(map(str, self.sizes))
        return f"FeedForwardNet({sizes}, {self.hidden}, {self.output}, {self.loss}, {self.dtype})"

    def forward(self, x: Array) -> list[Array]:
        """Outputs of every layer, shape (B, units) each; the last one is the output of the net."""
        layers: list[Array] = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            z = (layers[-1] if layers else x) @ weight + bias
            last = len(layers) == len(self.weights) - 1
            layers.append((self.output if last else self.hidden)(z))
        return layers

    def backward(self, x: Array, target: Array, layers: list[Array]) -> None:
        """Write the gradient of loss and penalty into `self.gradient`; `forward` made `layers`."""
        predicted = layers[-1]
        if isinstance(self.loss, CrossEntropy):  # its output is a softmax: see __init__
            delta = self.loss.gradient_before_softmax(predicted, target)
        else:
            delta = self.output.backward(predicted, self.loss.gradient(predicted, target))
        for layer in reversed(range(len(self.weights))):
            below = layers[layer - 1] if layer else x
            np.matmul(below.T, delta, out=self.weight_gradients[layer])
            np.sum(delta, axis=0, out=self.bias_gradients[layer])
            if layer:
                delta = self.hidden.backward(below, delta @ self.weights[layer].T)
        if self.loss.penalty is not None:
            weights, gradient = self.params[: self._n_weights], self.gradient[: self._n_weights]
            gradient += self.loss.penalty.gradient(weights)

    def value_and_grad(self, x: ArrayLike, y: ArrayLike) -> tuple[float, Array]:
        """Loss plus penalty of all rows as one batch, and a copy of its flat gradient.

        Example:
            >>> net = FeedForwardNet(1, (), 2, dtype="float64")
            >>> net.params[:] = 0
            >>> value, gradient = net.value_and_grad([[1.0]], [0])
            >>> round(value, 4), gradient.tolist()
            (0.6931, [-0.5, 0.5, -0.5, 0.5])
        """
        x, target = self._checked("value_and_grad", x, y)
        layers = self.forward(x)
        loss = self.loss(layers[-1], target)
        self.backward(x, target, layers)
        return loss + self._penalty(), self.gradient.copy()

    def train(
        self,
        x: ArrayLike,
        y: ArrayLike,
        plan: Plan | None = None,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> History:
        """Train from the present weights with a fresh optimiser.

        Args:
            x: inputs, shape (N, n_inputs); converted to the net's dtype.
            y: labels 0 to n_outputs - 1, shape (N,), or targets, shape (N, n_outputs).
            plan: optimiser, epochs, batch size, seed, schedule, records.
            validation: inputs and targets whose loss is recorded too.

        Example:
            >>> x = np.linspace(-1, 1, 40)[:, None]
            >>> net = FeedForwardNet(1, (8,), 2, seed=1)
            >>> net.train(x, (x[:, 0] > 0).astype(int), Plan(epochs=3)).epoch
            [1.0, 2.0, 3.0]
        """
        return list(self.epochs(x, y, plan, validation))[-1]

    def epochs(
        self,
        x: ArrayLike,
        y: ArrayLike,
        plan: Plan | None = None,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Iterator[History]:
        """`train` with a pause after each epoch, for callers who want to look in between."""
        x, target = self._checked("train", x, y)
        held_out = None if validation is None else self._checked("train, validation", *validation)
        return train_epochs(self, x, target, Plan() if plan is None else plan, held_out)

    def evaluate(self, x: ArrayLike, y: ArrayLike) -> Evaluation:
        """Loss and accuracy on data.

        Example:
            >>> net = FeedForwardNet(1, (), 2)
            >>> net.params[:] = 0
            >>> net.evaluate([[1.0], [2.0]], [0, 1]).accuracy
            0.5
        """
        x, target = self._checked("evaluate", x, y)
        predicted = self._outputs(x)
        right = predicted.argmax(axis=1) == target.argmax(axis=1)
        loss = self.loss(predicted, target)
        return Evaluation(loss, self._penalty(), float(right.mean()))

    def outputs(self, x: ArrayLike) -> Array:
        """Outputs of all rows, shape (N, n_outputs): probabilities after a softmax.

        Example:
            >>> net = FeedForwardNet(1, (), 2)
            >>> net.params[:] = 0
            >>> net.outputs([[3.0]]).tolist()
            [[0.5, 0.5]]
        """
        return self._outputs(check_inputs("outputs", x, self.sizes[0], self.dtype))

    def predict(self, x: ArrayLike) -> Labels:
        """The class with the largest output, shape (N,).

        Example:
            >>> net = FeedForwardNet(1, (), 2)
            >>> net.params[:] = [-1, 1, 0, 0]
            >>> net.predict([[-2.0], [3.0]]).tolist()
            [0, 1]
        """
        return self._outputs(check_inputs("predict", x, self.sizes[0], self.dtype)).argmax(axis=1)

    def _outputs(self, x: Array) -> Array:
        starts = range(0, len(x), _ROWS)
        return np.concatenate([self.forward(x[start : start + _ROWS])[-1] for start in starts])

    def _penalty(self) -> float:
        penalty = self.loss.penalty
        return 0.0 if penalty is None else penalty.value(self.params[: self._n_weights])

    def _checked(self, who: str, x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        inputs = check_inputs(who, x, self.sizes[0], self.dtype)
        return inputs, check_targets(who, y, len(inputs), self.sizes[-1], self.loss, self.dtype)

    def _shapes(self) -> list[tuple[int, int]]:
        return list(zip(self.sizes[:-1], self.sizes[1:], strict=True))

    def _views(self, flat: Array) -> tuple[list[Array], list[Array]]:
        weights, biases, start = list[Array](), list[Array](), 0
        for n_in, n_out in self._shapes():
            weights.append(flat[start : start + n_in * n_out].reshape(n_in, n_out))
            start += n_in * n_out
        for n_out in self.sizes[1:]:
            biases.append(flat[start : start + n_out])
            start += n_out
        return weights, biases
