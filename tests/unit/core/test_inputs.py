"""Models of several inputs: whatever holds for one tensor holds for the same numbers in two."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.predict import predict
from bayesieve.core.inputs import Inputs, as_inputs
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines.laplace import laplace, laplace_units
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.tdamp import TDAMP
from bayesieve.errors import UnsupportedModelError
from bayesieve.sieve.compact import compact, report_of
from bayesieve.sieve.prune import prune
from bayesieve.sieve.trained import sieve_trained
from bayesieve.sieve.unit_rules import keep_macs, keep_units, median_ms
from bayesieve.training.launch import fit
from bayesieve.training.validation import Validation

SOURCE = torch.Generator().manual_seed(3)
A, B = torch.randn(24, 3, generator=SOURCE), torch.randn(24, 2, generator=SOURCE)
Y = (A[:, 0] > 0).long() + (B[:, 0] > 0).long()


@dataclass
class Output:
    """What models of transformers return, in short."""

    logits: Tensor
    loss: Tensor | None = None


class One(nn.Module):
    """The network, given all columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Two(One):
    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        assert b is not None
        return super().forward(torch.cat([a, b], 1))


class Lookup(One):
    def forward(self, batch: dict[str, Tensor]) -> Output:
        return Output(super().forward(torch.cat([batch["a"], batch["b"]], 1)))


CASES = {
    "by position": (Two, (A, B)),
    "by name": (Two, {"b": B, "a": A}),
    "one dict": (Lookup, {"a": A, "b": B}),
}


def problems(case: str) -> tuple[Problem, Problem]:
    """The same problem with one tensor and with two."""
    build, x = CASES[case]
    whole, parts = One(), build()
    parts.load_state_dict(whole.state_dict())
    data = torch.cat([A, B], 1), Y
    return Problem(whole, Categorical(), data), Problem(parts, Categorical(), (x, Y))


@pytest.mark.parametrize("case", CASES)
def test_several_inputs_give_the_bits_of_one(case):
    one, two = problems(case)
    fits = [
        fit(p, SBNN(), epochs=2, batch_size=7, validation=Validation((p.x, p.y)))
        for p in (one, two)
    ]
    assert torch.equal(fits[0].posterior.mean, fits[1].posterior.mean)
    assert fits[0].history[-1]["val_nll"] == fits[1].history[-1]["val_nll"]
    outcomes = [
        evaluate(f.posterior, (p.x, Y), n_samples=4).to_dict()
        for f, p in zip(fits, (one, two), strict=True)
    ]
    assert outcomes[0] == outcomes[1]
    for rule in (laplace, laplace_units):
        known = [rule(p) for p in (one, two)]
        known = [getattr(q, "posterior", q) for q in known]
        assert torch.equal(known[0].std, known[1].std)
    assert sieve_trained(two, (two.x, Y)).model.zeros > 0  # links of layers need one input


@pytest.mark.parametrize("case", CASES)
def test_a_population_takes_several_inputs(case):
    one, two = problems(case)
    fits = [fit(p, [SBNN(), SBNN()], epochs=1, batch_size=8) for p in (one, two)]
    for a, b in zip(fits[0].posteriors, fits[1].posteriors, strict=True):
        torch.testing.assert_close(a.mean, b.mean)


@pytest.mark.parametrize("case", CASES)
def test_compaction_keeps_the_way_inputs_are_given(case):
    _, two = problems(case)
    _, x = CASES[case]
    posterior = fit(two, SBNN(), epochs=1, batch_size=8).posterior
    sparse = prune(posterior, keep_units(0.5))
    small = compact(sparse, x)
    assert report_of(small).parameters[1] < 0.6 * report_of(small).parameters[0]
    logits = small(*x) if isinstance(x, tuple) else small(**x)
    wanted = predict(sparse, x)
    torch.testing.assert_close(logits.double().log_softmax(1), wanted.log_probs)


def test_units_go_by_work_and_time_of_several_inputs():
    _, two = problems("by name")
    _, x = CASES["by name"]
    posterior = laplace(two)
    keep = keep_macs(0.5, x)(posterior)
    assert 0 < int(keep.sum()) < two.layout.size
    assert median_ms(compact(posterior.to_module(), x), x, rounds=1) > 0


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ((A, B[:5]), ValueError, "must have one length, got 5 and 24 examples"),
        ({"a": A, "n": 3}, TypeError, "got a dict with a int in it"),
        ((), TypeError, "got a tuple with nothing in it"),
        ({1: A}, TypeError, r"named as arguments are, got \(1,\)"),
    ],
)
def test_inputs_that_do_not_belong_together(x, error, message):
    with pytest.raises(error, match=f"^Problem: .*{message}"):
        Problem(Two(), Categorical(), (x, Y))


def test_a_number_that_is_not_finite_is_found_in_any_input():
    bad = B.clone()
    bad[4, 1] = torch.nan
    with pytest.raises(ValueError, match="example 4 holds NaN"):
        Problem(Two(), Categorical(), ((A, bad), Y))
    with pytest.raises(TypeError, match=r"inputs are torch.float64 but the model is torch.float32"):
        Problem(Two(), Categorical(), ((A, B.double()), Y))


def test_what_needs_one_tensor_says_so():
    _, two = problems("by name")
    with pytest.raises(UnsupportedModelError, match=r"TDAMP"):
        fit(two, TDAMP(), epochs=1, batch_size=8)


def test_a_cache_for_writing_is_turned_off():
    class Writer(One):
        def forward(self, a: Tensor, b: Tensor, use_cache: bool = True) -> Tensor:
            assert not use_cache
            return super().forward(torch.cat([a, b], 1))

    posterior = fit(Problem(Writer(), Categorical(), ((A, B), Y)), SBNN(), epochs=1).posterior
    assert len(predict(posterior, (A, B)).label) == len(Y)


def test_inputs_are_cut_as_tensors_are():
    x = as_inputs("test", {"a": A, "b": B})
    assert isinstance(x, Inputs)
    assert [len(part) for part in x.split(10)] == [10, 10, 4]
    assert torch.equal(x[torch.tensor([3, 1])].named["b"], B[[3, 1]])
    assert x.nbytes == A.nbytes + B.nbytes
