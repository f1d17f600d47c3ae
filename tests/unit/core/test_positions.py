"""Several labels for each input (sequences, pixels, multi-label outputs), from fit to delivery."""

import pytest
import torch
from torch import nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Bernoulli, Categorical, ClassPrediction, from_dict
from bayesieve.core.posterior import Samples
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.deliver.bundle import read_bundle, save_bundle
from bayesieve.deliver.onnx import export_onnx, read_onnx
from bayesieve.deliver.serving import onnx_columns, predict_bundle
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.laplace import laplace, laplace_units
from bayesieve.training.launch import fit
from bayesieve.uncertainty.calibration import fit_temperature
from problems import normal, seeded
from zoo import built


class Tagger(nn.Module):
    """Three classes at each of five positions; classes last, or first as of pixels."""

    def __init__(self, first=False):
        super().__init__()
        self.token, self.out, self.first = nn.Embedding(7, 8), nn.Linear(8, 3), first

    def forward(self, x):
        output = self.out(torch.tanh(self.token(x)))
        return output.movedim(-1, 1) if self.first else output


def tagged(first=False, ignore=-100):
    """A problem whose last position never counts, and the likelihood's twin that counts all."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x = Tagger(first), torch.randint(7, (12, 5))
    y = x % 3
    if ignore is not None:
        y[:, -1] = ignore
    likelihood = Categorical(class_axis=1 if first else -1, ignore=ignore)
    return Problem(model, likelihood, (x, y))


def questions():
    model = built(lambda: nn.Linear(4, 3))
    x = normal(12, 4, seed=0).float()
    y = (x[:, :3] > 0).float()
    y[0, 0] = -1
    return Problem(model, Bernoulli(ignore=-1), (x, y))


CASES = pytest.mark.parametrize(
    "problem", [tagged(), tagged(first=True), questions()], ids=["sequence", "pixels", "questions"]
)


def point(problem):
    return Samples(problem.network, problem.initial[None])


def by_hand(problem):
    """Log probabilities (n, positions, C) and labels (n, positions), by plain loops."""
    output = problem.network.outputs(problem.initial[None], problem.x, {})[0]
    if isinstance(problem.likelihood, Bernoulli):
        p = output.sigmoid()
        return torch.stack([1 - p, p], -1).log(), problem.y.long()
    axis = problem.likelihood.class_axis
    return output.movedim(axis, -1).log_softmax(-1), problem.y


@CASES
def test_positions_are_summed_where_they_count(problem):
    log_probs, labels = by_hand(problem)
    expected = torch.zeros(len(labels))
    for i, row in enumerate(labels.tolist()):
        for t, label in enumerate(row):
            expected[i] += log_probs[i, t, label] if label >= 0 else 0
    output = problem.network.outputs(problem.initial[None], problem.x, {})[0]
    found = problem.likelihood.log_prob(output, problem.y, {})
    torch.testing.assert_close(found, expected)


@CASES
def test_evaluation_is_by_position_and_by_example(problem):
    log_probs, labels = by_hand(problem)
    counted = labels >= 0
    wrong = (log_probs.argmax(-1) != labels) & counted
    nll = -log_probs.gather(-1, labels.clamp_min(0)[..., None])[..., 0] * counted
    found = evaluate(point(problem), (problem.x, problem.y))
    assert found["n_examples"] == 12
    assert found["n_positions"] == int(counted.sum())
    assert found["error"] == pytest.approx((wrong.sum() / counted.sum()).item())
    assert found["error_examples"] == pytest.approx(wrong.any(1).double().mean().item())
    assert found["nll"] == pytest.approx((nll.sum() / counted.sum()).item(), rel=1e-5)
    assert found["nll_examples"] == pytest.approx(nll.sum(1).mean().item(), rel=1e-5)


@CASES
def test_mistakes_are_a_share_of_what_counts(problem):
    log_probs, labels = by_hand(problem)
    counted = labels >= 0
    wrong = (log_probs.argmax(-1) != labels) & counted
    output = problem.network.outputs(problem.initial[None], problem.x, {})[0]
    found = problem.likelihood.mistakes(output, problem.y, {})
    torch.testing.assert_close(found, wrong.sum(1).double() / counted.sum(1))


@CASES
def test_predictions_have_the_positions(problem):
    done = fit(problem, FlatVI(lr=0.01), epochs=2, batch_size=6)
    found = predict(done.posterior, problem.x, n_samples=4)
    log_probs, labels = by_hand(problem)
    assert found.probs.shape == log_probs.shape
    assert found.entropy.shape == found.epistemic.shape == labels.shape
    assert found.sample(2, seeded(0)).shape == (2, *labels.shape)
    adaptive = evaluate(done.posterior, (problem.x, problem.y), n_samples=None)
    assert adaptive["draws"] >= 32
    assert fit_temperature(found, problem.likelihood.labels(problem.y)) > 0


def test_labels_that_do_not_count_bring_no_information():
    """Laplace of sequences whose last position is ignored is that of sequences without it."""
    whole = tagged()
    y = whole.y[:, :-1]

    class Shorter(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)[:, :-1]

    cut = Problem(Shorter(Tagger()), Categorical(), (whole.x, y))
    assert cut.layout.shapes == whole.layout.shapes
    cut.initial.copy_(whole.initial)
    for way in (laplace, laplace_units):
        found, expected = (way(p, prior=Normal(1.0), labels="exact") for p in (whole, cut))
        pair = (found, expected) if way is laplace else (found.posterior, expected.posterior)
        torch.testing.assert_close(pair[0].std, pair[1].std)


def test_pixels_are_sequences_with_another_axis():
    first, last = tagged(first=True), tagged()
    assert torch.equal(first.initial, last.initial)
    for labels in ("exact", "sampled"):
        found, expected = (laplace(p, labels=labels).std for p in (first, last))
        torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("problem", [tagged(first=True), questions()], ids=["pixels", "questions"])
def test_delivery_gives_every_position(problem, tmp_path):
    posterior = fit(problem, FlatVI(lr=0.01), epochs=1, batch_size=6).posterior
    module, x = posterior.to_module(), problem.x[:6]
    exact = predict(posterior, x)
    n = exact.positions.numel()
    path = export_onnx(module, tmp_path / "m.onnx", x[:2], likelihood=problem.likelihood)
    columns = onnx_columns(read_onnx(path), x)
    assert [columns[f"class_{j + 1}"] for j in range(n)] == exact.label.reshape(6, -1).T.tolist()
    save_bundle(module, tmp_path / "b", example=x[:2], posterior=posterior)
    again = predict_bundle(read_bundle(tmp_path / "b"), x)
    torch.testing.assert_close(again.probs, exact.probs)
    if not problem.network.skeleton._modules:  # the same graph of draws: one export is enough
        return
    drawn = export_onnx(module, tmp_path / "d.onnx", x[:2], posterior=posterior, n_samples=4)
    expected = predict(posterior, x, n_samples=4)
    found = read_onnx(drawn).run(x)["probability"]
    torch.testing.assert_close(found.double(), expected.probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "likelihood",
    [
        Categorical(class_axis=1, ignore=255),
        Categorical((1.0, 2.0), ignore=-100),
        Bernoulli(2.0, -1),
    ],
)
def test_settings_survive_a_file(likelihood):
    assert from_dict(likelihood.to_dict()) == likelihood


def test_a_number_beyond_the_classes_may_be_ignored():
    problem = tagged(ignore=255)
    assert evaluate(point(problem), (problem.x, problem.y))["n_positions"] == 48


def test_a_label_below_0_is_an_error_unless_it_is_named():
    """It must not leave the average in silence."""
    problem = tagged(ignore=None)
    y = problem.y.clone()
    y[0, 0] = -1
    with pytest.raises(ValueError, match="labels must"):
        evaluate(point(problem), (problem.x, y))
    with pytest.raises(ValueError, match="labels must"):
        fit_temperature(predict(point(problem), problem.x), y)


def test_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"predictions have shape \(2, 3\), labels \(2, 2\)"):
        ClassPrediction(torch.zeros(1, 2, 3, 2)).scored(torch.zeros(2, 2))


def check(likelihood, output, target, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check(output, target)


def test_wrong_settings_and_targets_are_refused():
    with pytest.raises(ValueError, match="class_axis must be -1 or 1, got 2"):
        Categorical(class_axis=2)
    with pytest.raises(ValueError, match="ignore must not be an answer, got 1"):
        Bernoulli(ignore=1)
    output, labels = torch.zeros(2, 5, 3), torch.zeros(2, 5, dtype=torch.long)
    check(Categorical(class_axis=1), output, labels, r"Then class_axis=-1\.$")
    check(Categorical(), output, labels - 100, r"got -100\.\.-100\. Name the number to leave out")
    check(Categorical(ignore=-100), output, labels - 100, "every target is -100")
    check(Bernoulli(ignore=-1), torch.zeros(2, 3), torch.full((2, 3), -1), "every target is -1")
    check(Bernoulli(), torch.zeros(2, 3), torch.full((2, 3), -1.0), "must be 0 or 1.$")
