"""Familiarity: closed forms on Gaussians, calibrated shares, strangers found, files bit for bit."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from torch import nn

import bayesieve as bs
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Samples
from bayesieve.data import load_data
from bayesieve.deliver.bundle import read_bundle, save_bundle
from bayesieve.deliver.onnx import export_onnx, read_onnx
from bayesieve.deliver.serving import bundle_columns, onnx_columns, predict_bundle
from bayesieve.errors import DamagedFileError
from bayesieve.uncertainty.calibration import auroc
from bayesieve.uncertainty.familiarity import FILE, Familiarity, unavailable
from commands import as_json, ok
from problems import normal32, seeded
from zoo import built

COVARIANCE = torch.tensor([[4.0, 1.0, 0.0], [1.0, 1.0, 0.3], [0.0, 0.3, 0.5]])
FACTOR = torch.linalg.cholesky(COVARIANCE)
X = normal32(4000, 3, seed=1) @ FACTOR.T + 7.0
KNOWN = Familiarity.of(X, kinds=1)
LINE = torch.tensor([[t, -t, t] for t in (0.0, 0.2, 0.4, 0.6)]) + 7.0


def point(likelihood, n_outputs=3):
    module = built(lambda: nn.Linear(3, n_outputs))
    network = Network.of(module, likelihood)
    return module, Samples(network, network.weights_of(module)[None])


def digits():
    """Digits 0 to 4: training and other rows; digits 5 to 9; noise."""
    data = load_data("digits")
    x, y = torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y])
    low = x[y < 5][torch.randperm(int((y < 5).sum()), generator=seeded(0))]
    return low[:600], low[600:], x[y >= 5], torch.rand(300, 1, 8, 8, generator=seeded(1))


# --- exact


def test_the_distance_to_one_gaussian_is_mahalanobis():
    gap = LINE - X.mean(0)
    exact = (gap @ torch.linalg.inv(COVARIANCE) * gap).sum(1).sqrt()
    # sampling error of a covariance from 4,000 rows is about 2 %; the ridge takes .1 % and half
    # precision .1 % more
    torch.testing.assert_close(KNOWN.distance(LINE), exact, rtol=0.06, atol=0.02)


def test_familiarity_under_one_gaussian_is_the_tail_of_chi_squared():
    gap = LINE - 7.0
    exact = stats.chi2.sf((gap @ torch.linalg.inv(COVARIANCE) * gap).sum(1).numpy(), 3)
    # the empirical tail of 4,000 distances has a standard deviation of at most .008
    np.testing.assert_allclose(KNOWN.score(LINE).numpy(), exact, atol=0.04)


@pytest.mark.parametrize("n", [60, 1000])
def test_of_rows_like_the_training_rows_a_share_alpha_has_less_than_alpha(n):
    """Mean over 20 sets of 200 new rows each, from two clusters and heavy tails."""
    below = {0.05: [], 0.2: [], 0.5: []}
    for seed in range(20):
        rows = normal32(n + 200, 6, seed=seed)
        rows[::2] += 4.0
        rows[:, 5] = rows[:, 5].sign() * rows[:, 5].abs() ** 3
        rows = rows[torch.randperm(len(rows), generator=seeded(seed))]
        score = Familiarity.of(rows[:n]).score(rows[n:])
        for alpha, shares in below.items():
            shares.append(float((score < alpha).double().mean()))
    for alpha, shares in below.items():
        # each share has the variance of a quantile of n rows and of a share of 200
        error = math.sqrt(alpha * (1 - alpha) * (1 / n + 1 / 200) / 20)
        assert abs(np.mean(shares) - alpha) < 4 * error + 0.1 * alpha, (alpha, np.mean(shares))


def test_familiarity_falls_with_the_distance_to_the_smallest_share_a_set_can_show():
    away = torch.arange(0.0, 40.0, 0.5)[:, None] + X.mean(0)
    score = KNOWN.score(away)
    assert bool((score.diff() <= 1e-7).all())
    assert score[0] > 0.9
    assert score[-1] == pytest.approx(1 / 4001, rel=1e-3)


def test_huge_inputs_are_unfamiliar_and_finite():
    far = torch.tensor([[1e30, -1e30, 1e30], [3e38, 0.0, 0.0]])
    assert bool(KNOWN.distance(far).isfinite().all())
    assert bool((KNOWN.score(far) < 0.001).all())


def test_a_column_that_never_varied_makes_a_stranger():
    rows = torch.cat([X, torch.full((len(X), 1), 2.0)], 1)
    known = Familiarity.of(rows)
    changed = rows[:50].clone()
    changed[:, 3] += 0.5
    assert known.score(rows[:50]).median() > 0.2
    assert float(known.score(changed).max()) < 0.001


def test_the_same_rows_and_seed_give_the_same_score():
    again = Familiarity.of(X, kinds=1)
    assert torch.equal(again.score(LINE), KNOWN.score(LINE))


# --- strangers


def test_unseen_digits_and_noise_are_strangers_to_digits_0_to_4():
    train, test, others, noise = digits()
    known = Familiarity.of(train)
    inside = known.distance(test)
    assert auroc(inside, known.distance(others)) > 0.98
    assert auroc(inside, known.distance(noise)) > 0.999
    # 301 rows: a share of .05 has a standard deviation of .013
    assert float((known.score(test) < 0.05).double().mean()) < 0.09
    assert float((known.score(others) < 0.05).double().mean()) > 0.9
    assert len(known.to_bytes()) < 20_000


def test_a_dot_a_cross_and_a_scribble_are_no_digits():
    data = load_data("digits")
    known = Familiarity.of(data.train.x)
    drawn = torch.zeros(4, 1, 8, 8)
    drawn[0, 0, 3:5, 3:5] = 1.0  # a dot
    drawn[1, 0, range(8), range(8)] = drawn[1, 0, range(8), range(7, -1, -1)] = 1.0  # X
    drawn[2, 0, ::2] = drawn[2, 0, :, ::3] = 1.0  # a scribble
    assert float(known.score(drawn).max()) < 0.01


# --- what cannot have one


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(50, 4, dtype=torch.int64), "not tokens of torch.int64"),
        (torch.zeros(50, 4, 3), "flat or images"),
        (torch.zeros(19, 4), "at least 20 training examples, got 19"),
    ],
)
def test_tokens_sequences_and_a_few_rows_are_refused(x, words):
    assert words in unavailable(x)
    with pytest.raises(ValueError, match=words):
        Familiarity.of(x)


def test_inputs_of_another_shape_and_missing_numbers_are_refused():
    with pytest.raises(ValueError, match=r"shape \(N, 3\), got \(2, 4\)"):
        KNOWN.score(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="NaN or infinity"):
        Familiarity.of(torch.full((30, 2), math.nan))


# --- files


@pytest.mark.parametrize("shape", [(3,), (40,), (1, 8, 8), (3, 12, 9)])
def test_a_file_reads_back_bit_for_bit(shape, tmp_path):
    x = normal32(200, *shape, seed=2)
    known = Familiarity.of(x)
    path = tmp_path / FILE
    path.write_bytes(known.to_bytes())
    again = Familiarity.read(path)
    assert again.shape == shape
    for name, value in known.named_buffers():
        assert torch.equal(getattr(again, name), value), name
    assert torch.equal(again.score(x), known.score(x))
    assert again.to_bytes() == known.to_bytes()


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / FILE
    path.write_bytes(KNOWN.to_bytes()[:300])
    with pytest.raises(DamagedFileError, match=FILE):
        Familiarity.read(path)
    save_file({"mean": torch.zeros(3)}, path)
    with pytest.raises(DamagedFileError, match=FILE):
        Familiarity.read(path)
    path.write_bytes(KNOWN.to_bytes())
    tensors = load_file(path)
    for name, value in (("spread", torch.zeros(3)), ("axes", torch.zeros(2, 9).half()),
                        ("roots", torch.full((1, 6), math.inf).half())):  # fmt: skip
        meta = {"bayesieve-familiarity": '{"format": 1, "shape": [3]}'}
        save_file(tensors | {name: value}, path, meta)
        with pytest.raises(DamagedFileError, match="do not fit together"):
            Familiarity.read(path)


def test_in_units_gives_the_score_of_rows_before_standardising():
    mean, std = torch.tensor([1e6, 0.0, -3.0]).double(), torch.tensor([1e4, 1e-3, 2.0]).double()
    standard = (X.double() - 7.0) / 2.0
    known = Familiarity.of(standard.float())
    raw = known.in_units(mean, std)
    torch.testing.assert_close(
        raw.score(standard * std + mean), known.score(standard), atol=2e-3, rtol=0
    )


# --- predictions


def test_predict_states_familiarity_and_marks_what_is_too_strange():
    _, model = point(Categorical())
    x = torch.cat([LINE[:1], LINE[:1] + 50])
    plain = bs.predict(model, x)
    assert plain.familiarity is None
    assert plain.abstained is None
    told = bs.predict(model, x, familiarity=KNOWN, abstain=0.95)
    assert torch.equal(told.probs, plain.probs)
    assert torch.equal(told.familiarity, KNOWN.score(x))
    assert told.abstained.tolist() == [False, True]


def test_abstain_needs_a_familiarity_and_a_share():
    _, model = point(Categorical())
    with pytest.raises(ValueError, match=r"abstain needs familiarity=, such as Familiarity.of"):
        bs.predict(model, LINE, abstain=0.95)
    with pytest.raises(ValueError, match="abstain"):
        bs.predict(model, LINE, familiarity=KNOWN, abstain=1.0)


@pytest.mark.parametrize(
    ("likelihood", "name"), [(Categorical(), "error_answered"), (Gaussian(), "rmse_answered")]
)
def test_evaluate_scores_the_answers_that_are_left(likelihood, name):
    _, model = point(likelihood)
    x = torch.cat([LINE, LINE + 50])
    known = bs.predict(model, x)
    if name == "error_answered":
        y = known.label.clone()
        y[0] = (y[0] + 1) % 3  # one wrong of the four that are answered
        y[4:] = (y[4:] + 1) % 3
        expected, whole = 0.25, 5 / 8
    else:
        y = known.mean.float().clone()
        y[0] += 1.0
        y[4:] += 3.0
        expected, whole = 0.5, math.sqrt((1 + 36) / 8)
    result = bs.evaluate(model, (x, y), familiarity=KNOWN, abstain=0.99)
    assert result["answered"] == 0.5
    assert result[name] == pytest.approx(expected, abs=1e-5)
    assert result[name.removesuffix("_answered")] == pytest.approx(whole, abs=1e-5)
    nothing = bs.evaluate(model, (x[4:], y[4:]), familiarity=KNOWN, abstain=0.99)
    assert (nothing["answered"], nothing[name]) == (0.0, None)
    assert "answered" not in bs.evaluate(model, (x, y))


# --- delivered


@pytest.mark.slow
def test_a_bundle_and_its_onnx_file_state_the_same_familiarity(tmp_path):
    module, _ = point(Categorical())
    x = torch.cat([LINE, LINE + 50, X[:50]])
    save_bundle(module, tmp_path / "b", familiarity=KNOWN, likelihood=Categorical())
    bundle = read_bundle(tmp_path / "b")
    told = predict_bundle(bundle, x, abstain=0.95)
    assert torch.equal(told.familiarity, KNOWN.score(x))
    columns = bundle_columns(told, None, None)
    assert list(columns)[-2:] == ["familiarity", "abstained"]
    assert columns["abstained"][:8] == [0] * 4 + [1] * 4
    export_onnx(module, tmp_path / "m.onnx", X[:9], likelihood=Categorical(), familiarity=KNOWN)
    model = read_onnx(tmp_path / "m.onnx")
    outputs = model.run(x)
    assert list(outputs) == ["output", "familiarity"]
    torch.testing.assert_close(outputs["familiarity"], KNOWN.score(x), atol=1e-4, rtol=0)
    other = onnx_columns(model, x, 0.95)
    assert list(other) == list(columns)
    assert other["abstained"] == columns["abstained"]


def test_a_bundle_without_it_predicts_and_refuses_to_abstain(tmp_path):
    module, _ = point(Categorical())
    save_bundle(module, tmp_path / "b", likelihood=Categorical())
    bundle = read_bundle(tmp_path / "b")
    assert bundle.familiarity is None
    assert predict_bundle(bundle, LINE).familiarity is None
    with pytest.raises(ValueError, match="does not hold the familiarity"):
        predict_bundle(bundle, LINE, abstain=0.95)


def test_a_bundle_refuses_the_familiarity_of_other_inputs(tmp_path):
    with pytest.raises(ValueError, match=r"inputs of shape \(3,\), the module's are \(4,\)"):
        save_bundle(nn.Linear(4, 1), tmp_path / "b", familiarity=KNOWN)


def test_a_run_and_its_bundle_know_their_training_inputs(tmp_path):
    run = tmp_path / "run"
    ok("train", "--data", "digits", "--net", "mlp:8", "--epochs", "2", "--no-figures", "--out", run)
    opened = bs.runs.load(run, device="cpu")
    assert torch.equal(
        opened.familiarity.score(LINE.new_zeros(1, 1, 8, 8)),
        Familiarity.of(opened.data.train.x).score(LINE.new_zeros(1, 1, 8, 8)),
    )
    told = as_json("evaluate", run, "--abstain", "0.9")
    # 364 test digits: a share of .1 has a standard deviation of .016
    assert 0.83 < told["answered"] < 0.97
    assert 0 <= told["error_answered"] <= 1
    bundle = tmp_path / "bundle"
    ok("export", run, "--to", "bundle", "--masked-ok", "--out", bundle)
    assert torch.equal(read_bundle(bundle).familiarity.knots, opened.familiarity.knots)
    assert as_json("verify", bundle)["ok"]
    (run / FILE).unlink()  # as older versions wrote it
    assert bs.runs.load(run, device="cpu").familiarity is None
    assert "answered" not in as_json("evaluate", run)


# --- estimators


def test_estimators_know_their_rows_and_deliver_it(tmp_path):
    rows = X[:200].double().numpy() * 100
    model = bs.SieveRegressor(hidden=(4,), epochs=2, folds=0, random_state=0)
    model.fit(rows, rows[:, 0])
    score = model.familiarity(rows)
    assert score.shape == (200,)
    assert np.median(score) > 0.2
    assert model.familiarity(rows[:3] + 5000).max() < 0.01
    bundle = read_bundle(model.export(tmp_path / "b"))
    told = predict_bundle(bundle, torch.as_tensor(rows).float())
    np.testing.assert_allclose(told.familiarity.numpy(), score, atol=1e-3)


def test_an_estimator_of_few_rows_says_what_it_needs():
    rows = X[:15].double().numpy()
    model = bs.SieveClassifier(hidden=(4,), epochs=1, folds=0, random_state=0)
    model.fit(rows, np.arange(15) % 2)
    with pytest.raises(ValueError, match="at least 20 rows"):
        model.familiarity(rows)
