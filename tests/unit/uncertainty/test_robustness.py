"""Attacks against what they promise, on linear classifiers whose gradients are known."""

import pytest
import torch
from torch import nn

from bayesieve.assess.predict import weight_vectors
from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Samples, SparseModel
from bayesieve.data.images import PixelScale
from bayesieve.uncertainty.robustness import Attacked, curve, fgsm_curve
from problems import seeded


def posterior(n_draws=5, n_inputs=6, n_classes=3):
    torch.manual_seed(0)
    network = Network.of(nn.Sequential(nn.Flatten(), nn.Linear(n_inputs, n_classes)), Categorical())
    draws = torch.randn(n_draws, network.layout.size, generator=seeded(1))
    return Samples(network, draws)


X = 0.2 + 0.6 * torch.rand(40, 6, generator=seeded(2))


def averaged(model, x):
    """Log of the averaged probabilities, one weight vector at a time, by hand."""
    total = 0
    for w in model.draws:
        weight, bias = w[:18].view(3, 6), w[18:]
        total = total + torch.softmax(x @ weight.T + bias, -1)
    return (total / len(model.draws)).log()


def test_fgsm_is_the_papers_formula():
    model = posterior()
    attacked = Attacked(model, n_samples=5, batch_size=16)
    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(averaged(model, x).max(-1).values.sum(), x)
    expected = (X - 0.3 * grad.sign()).clamp(0, 1)
    torch.testing.assert_close(attacked.fgsm(X, 0.3), expected)
    assert (attacked.fgsm(X, 2.0).unique() == torch.tensor([0.0, 1.0])).all()


def sure(factor, dtype):
    """A classifier of two layers whose outputs are large."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    network = Network.of(model, Categorical())
    w = torch.randn(network.layout.size, generator=seeded(1), dtype=torch.float64)
    w[network.layout.slices["2.weight"]] *= factor
    return Samples(network, w[None].to(dtype))


@pytest.mark.parametrize("true_label", [False, True])
def test_a_network_that_is_sure_is_attacked_along_its_gradient_all_the_same(true_label):
    # In float64 the gradient of log p is still above rounding where p has become 1 in float32.
    rough, exact = (Attacked(sure(20.0, dtype)) for dtype in (torch.float32, torch.float64))
    x = X.double().requires_grad_()
    log_probs = exact._log_probs(x)
    if true_label:  # the least probable one: there the odds, not 1 - p, have the gradient
        labels = log_probs.argmin(-1)
        chosen = log_probs.min(-1).values
    else:
        labels, chosen = None, log_probs.max(-1).values
        assert (log_probs.max(-1).values.float().exp() == 1).double().mean() > 0.1
    (grad,) = torch.autograd.grad(chosen.sum(), x)
    assert torch.equal(rough._slope(X, labels).sign(), grad.sign().float())


def test_strength_zero_is_the_identity():
    attacked = Attacked(posterior())
    labels = torch.zeros(40, dtype=torch.long)
    assert torch.equal(attacked.fgsm(X, 0.0), X)
    assert torch.equal(attacked.pgd(X, labels, 0.0), X)


def test_pgd_stays_in_its_box_and_beats_one_step_on_the_true_label():
    attacked = Attacked(posterior(), n_samples=5)
    labels = attacked.predict(X).label
    moved = attacked.pgd(X, labels, 0.1)
    assert ((moved - X).abs() <= 0.1 + 1e-6).all()
    assert ((moved >= 0) & (moved <= 1)).all()
    one_step = attacked.predict(attacked.fgsm(X, 0.1)).log_probs.gather(1, labels[:, None])
    many = attacked.predict(moved).log_probs.gather(1, labels[:, None])
    assert many.mean() <= one_step.mean() + 1e-6


def test_inputs_keep_no_gradient_and_weights_stay():
    model = posterior()
    before = model.draws.clone()
    moved = Attacked(model, n_samples=5).fgsm(X, 0.1)
    assert not moved.requires_grad
    assert torch.equal(model.draws, before)


def test_sparse_models_and_two_class_models_can_be_attacked():
    model = posterior()
    keep = torch.ones(21, dtype=torch.bool)
    sparse = Attacked(SparseModel(model, keep), n_samples=5).fgsm(X, 0.1)
    assert torch.equal(sparse, Attacked(model, n_samples=5).fgsm(X, 0.1))
    network = Network.of(nn.Linear(2, 1), Bernoulli())
    coin = Samples(network, torch.tensor([[2.0, -1.0, 0.0]]))
    x = torch.tensor([[0.8, 0.2]])  # class 1, more so to the right and down
    torch.testing.assert_close(Attacked(coin).fgsm(x, 0.1), torch.tensor([[0.7, 0.3]]))


def test_curves_fall_with_strength():
    attacked = Attacked(posterior(), n_samples=5)
    labels = attacked.predict(X).label

    def pgd(inputs, strength):
        return attacked.pgd(inputs, labels, strength)

    for points in (
        fgsm_curve(attacked, X, labels, (0.0, 0.1, 0.5)),
        curve(attacked, X, labels, (0.0, 0.1, 0.5), pgd),
        curve(attacked, X, labels, (0.0, 0.3, 1.0), attacked.noisy),
    ):
        assert points[0]["accuracy"] == 1
        assert points[0]["accuracy"] >= points[1]["accuracy"] >= points[2]["accuracy"]
        assert points[2]["accuracy"] < 1
        assert points[2]["nll"] > points[0]["nll"]
        assert all(point["entropy"] >= 0 and 0 <= point["ece"] <= 1 for point in points)


def test_strengths_and_bounds_are_in_pixels_whatever_the_scaling():
    # Two channels of one pixel; network and images seen through (pixel - mean) / std.
    scale = PixelScale((0.5, 0.2), (0.25, 2.0))
    pixels = 0.1 + 0.8 * torch.rand(30, 2, 1, 1, generator=seeded(5))
    x = scale.inputs(pixels)
    network = Network.of(nn.Sequential(nn.Flatten(), nn.Linear(2, 3)), Categorical())
    model = Samples(network, torch.randn(4, network.layout.size, generator=seeded(6)))
    attacked = Attacked(model, n_samples=4, scale=scale)
    labels = attacked.predict(x).label
    for moved in (attacked.fgsm(x, 0.3), attacked.pgd(x, labels, 0.3)):
        now = scale.pixels(moved)
        assert now.min() >= 0
        assert now.max() <= 1
        assert ((now - pixels).abs() <= 0.3 + 1e-6).all()
    inside = (pixels > 0.3) & (pixels < 0.7)
    change = (scale.pixels(attacked.fgsm(x, 0.3)) - pixels).abs()
    torch.testing.assert_close(change[inside], torch.full_like(change[inside], 0.3))
    before, after = (p["nll"] for p in curve(attacked, x, labels, (0.0, 0.5), attacked.noisy))
    assert after > before


def test_a_variational_posterior_is_attacked_with_the_draws_it_predicts_with():
    network = posterior().network
    mean = torch.randn(network.layout.size, generator=seeded(7))
    model = Factorised(network, mean, torch.full_like(mean, 0.5))
    attacked = Attacked(model, n_samples=3, seed=2)
    torch_probs = attacked.predict(X).log_probs
    x = X.clone().requires_grad_()
    draws = Samples(network, torch.cat([w for w, _ in weight_vectors(model, 3, 2)]))
    torch.testing.assert_close(averaged(draws, X).double(), torch_probs.double())
    (grad,) = torch.autograd.grad(averaged(draws, x).max(-1).values.sum(), x)
    torch.testing.assert_close(attacked.fgsm(X, 0.1), (X - 0.1 * grad.sign()).clamp(0, 1))


def test_a_curve_of_fgsm_has_the_points_of_single_attacks():
    attacked = Attacked(posterior(), n_samples=5)
    labels = attacked.predict(X).label
    points = fgsm_curve(attacked, X, labels, (0.1, 0.3))
    for point in points:
        probs = attacked.predict(attacked.fgsm(X, point["strength"])).probs
        assert point["accuracy"] == (probs.argmax(-1) == labels).double().mean().item()


def test_rotations_keep_the_upright_image():
    x = torch.rand(8, 1, 2, 3, generator=seeded(3))
    attacked = Attacked(posterior())
    labels = attacked.predict(x).label
    angles = (0.0, 90.0, 360.0)
    upright, turned, round_trip = curve(attacked, x, labels, angles, attacked.rotated)
    assert upright["accuracy"] == 1
    assert turned["nll"] > upright["nll"]
    assert round_trip["nll"] == pytest.approx(upright["nll"], abs=1e-4)


def test_noise_has_the_stated_std_and_bounds():
    x = torch.full((1, 20_000), 0.5)
    noisy = Attacked(posterior()).noisy(x, 0.1)
    assert noisy.std().item() == pytest.approx(0.1, rel=0.03)
    clipped = Attacked(posterior()).noisy(x, 2.0)
    assert clipped.min() == 0
    assert clipped.max() == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Attacked(posterior(), n_samples=-1), "n_samples must be >= 0"),
        (lambda: Attacked(posterior()).fgsm(X, -1.0), "fgsm: strength must be >= 0"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_regressions_are_refused():
    network = Network.of(nn.Linear(2, 1), Gaussian())
    with pytest.raises(ValueError, match="attacks need class labels"):
        Attacked(Samples(network, torch.zeros(1, 3)))
