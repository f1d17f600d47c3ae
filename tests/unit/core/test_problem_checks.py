"""Checks of a problem: inputs it refuses at once, and inputs it takes apart first."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune, weight_norm

from bayesieve.core.batch import first_not_finite
from bayesieve.core.layout import layout_of
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.problem import Problem
from bayesieve.errors import UnsupportedModelError

X, Y = torch.ones(4, 2), torch.ones(4, 1)


def pruned_by_torch():
    layer = nn.Linear(2, 1)
    prune.l1_unstructured(layer, "weight", amount=1)
    return layer


def quantised():
    from torch.ao.nn.quantized import Linear

    return Linear(2, 1)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Linear(2, 1).half(), r"'weight' is torch\.float16, .* Use model\.float\(\)"),
        (lambda: nn.Linear(2, 1).bfloat16(), r"'weight' is torch\.bfloat16, .*precision='bf16'"),
        (lambda: weight_norm(nn.Linear(2, 1)), "tensor 'weight' is computed .*parametrizations"),
        (lambda: nn.Sequential(pruned_by_torch()), r"tensor '0\.weight' .* Call prune\.remove"),
        (lambda: torch.jit.script(nn.Linear(2, 1)), r"the model is compiled by torch\.jit"),
        (lambda: nn.Sequential(quantised()), "layer '0' is quantised: .* the float module"),
    ],
)
def test_models_that_cannot_be_trained_are_named_with_the_fix(build, message):
    with pytest.raises(UnsupportedModelError, match=f"^Problem: .*{message}"):
        Problem(build(), Gaussian(), (X, Y))


def test_a_frozen_half_precision_part_is_carried_along():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen, self.head = nn.Linear(2, 2).half().requires_grad_(False), nn.Linear(2, 1)

        def forward(self, x):
            return self.head(self.frozen(x.half()).float())

    assert Problem(Mixed(), Gaussian(), (X, Y)).layout.size == 3


def test_numbers_that_are_not_finite_are_found_in_the_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    nn.init.constant_(model[1].bias, torch.inf)
    with pytest.raises(
        ValueError, match=r"^Problem: parameter '1\.bias' of the model holds NaN or"
    ):
        Problem(model, Gaussian(), (X, Y))
    hidden = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    hidden[0].running_mean[0] = torch.nan
    with pytest.raises(ValueError, match=r"^Problem: the model returns NaN for the first examples"):
        Problem(hidden, Gaussian(), (X, Y))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, left, right):
        return self.layer(left + right)


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x["image"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (TwoInputs, "missing 1 required positional argument: 'right'. Give the inputs of a model"),
        (Lookup, "but it failed: "),
    ],
)
def test_whatever_a_forward_raises_becomes_one_kind_of_error(build, message):
    with pytest.raises(ValueError, match=rf"^Problem: the model must accept inputs .*{message}"):
        Problem(build(), Gaussian(), (X, Y))


def test_data_must_be_dense():
    with pytest.raises(TypeError, match=r"^Problem: .* dense tensors\. Use \.to_dense\(\)"):
        Problem(nn.Linear(2, 1), Gaussian(), (X.to_sparse(), Y))


def test_a_compiled_model_is_taken_apart():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    problem = Problem(torch.compile(model, backend="eager"), Gaussian(), (X, Y))
    assert problem.layout == layout_of(model)
    assert torch.equal(problem.initial, Problem(model, Gaussian(), (X, Y)).initial)


@pytest.mark.parametrize(
    "rows", [[[0.5, 0.5], [1.2, -0.2]], [[0.5, 0.5], [0.5, 0.4]], [[1.0, 0.0], [2.0, 2.0]]]
)
def test_softened_labels_are_distributions(rows):
    with pytest.raises(ValueError, match=r"^Categorical: .* sum 1; those of example 1 are not"):
        Problem(nn.Linear(2, 2), Categorical(), (X[:2], torch.tensor(rows)))
    good = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    assert Problem(nn.Linear(2, 2), Categorical(), (X[:2], good)).n_data == 2


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell])
def test_recurrent_weights_are_pruned_and_their_biases_kept(kind):
    layout = layout_of(kind(2, 3))
    for name, role in zip(layout.names, layout.roles, strict=True):
        assert role.name == ("PRUNE" if name.startswith("weight") else "KEEP")


def test_the_first_example_that_is_not_finite_is_found_though_sums_overflow():
    x = torch.full((5, 3), 3e38)  # finite, its sum is not
    assert first_not_finite(x) is None
    for wrong in (torch.nan, torch.inf, -torch.inf):
        x[3, 1], x[4, 2] = wrong, torch.inf
        assert first_not_finite(x) == 3
