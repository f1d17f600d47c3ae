"""Quality of a run on its test split: metrics, calibration, risk against coverage, examples."""

import hashlib
import math

import torch
from torch import Tensor

from bayesieve.assess.evaluate import Evaluation, evaluate
from bayesieve.assess.metrics import confusion_matrix, interval_coverage, reliability_bins
from bayesieve.assess.paired import ClassLosses, groups_of, losses_of, plausible, z_of
from bayesieve.assess.predict import ClassPrediction, RealPrediction, draws_of, has_spread
from bayesieve.data import DataSet
from bayesieve.report.inputs import shown
from bayesieve.report.packing import Json, pack, rounded, short, spread_out
from bayesieve.report.source import Limits, Source
from bayesieve.uncertainty.calibration import rank_histogram, risk_coverage
from bayesieve.uncertainty.familiarity import Familiarity

_MOST_POINTS = 200  # of a risk-coverage curve
_SHARES = torch.linspace(0, 1, 101, dtype=torch.float64)
_MOST_LOSSES = 5000
_MOST_LINEAR = 200  # columns of a table that a linear model is fitted to
_MOST_FITTED = 5000  # rows of a logistic regression
_RANKS, _RANK_BINS = 99, 10  # draws behind the histogram of ranks
_MOST_MAPPED = 2000  # dots in the map of doubt
_MAP_BYTES = 60_000  # of pictures behind them
_MOST_DOTS = 400  # of the picture of a regression
_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def evaluations(source: Source, limits: Limits) -> dict[str, Evaluation]:
    """The test split under each way to predict: "before", "after", "sampled" where they exist."""
    test = source.data.test
    results = {}
    n: int | None
    if source.before is not None:  # predicted as the headline is
        drawn = source.sampler and has_spread(source.before)
        n = limits.draws and draws_of(source.before, limits.draws) if drawn else 0
        results["before"] = evaluate(source.before, test, n_samples=n)
    results["after"] = evaluate(source.model, test)
    if has_spread(source.averaged):
        n = limits.draws and draws_of(source.averaged, limits.draws)
        results["sampled"] = evaluate(source.averaged, test, n_samples=n)
    return results


def numbers(evaluation: Evaluation) -> Json:
    """Metrics and sizes with six digits; None where not finite."""
    rows = evaluation.to_dict().items()
    return {k: short(v) if isinstance(v, float) else v for k, v in rows}


def baselines(data: DataSet) -> list[Json]:
    """The quality of answers that need no network: one for all inputs and, of a table, linear ones.

    Returns:
        Rows with `name` and the metrics of the headline that they have.

    Example:
        >>> from bayesieve.data import load_data
        >>> baselines(load_data("digits"))[0]["error"]
        0.898352
    """
    train, test = data.train.y.cpu(), data.test.y.cpu()
    table = len(data.input_shape) == 1 and data.input_shape[0] <= _MOST_LINEAR
    if data.task == "regression":
        y, targets = (part.double().reshape(len(part), -1) for part in (train, test))
        rows = [_normal("predict the mean", y.mean(0).expand_as(targets), y - y.mean(0), data)]
        if table:
            x, inputs = (_with_ones(part.x) for part in (data.train, data.test))
            weights = torch.linalg.lstsq(x, y, driver="gelsd").solution
            rows.append(_normal("linear model", inputs @ weights, x @ weights - y, data))
        return rows
    if train.is_floating_point() or train.dim() > 1 or int(train.min()) < 0:
        return []
    share = torch.bincount(train, minlength=int(max(train.max(), test.max())) + 1) + 1.0
    rows = [
        _guessed("most frequent class", (share / share.sum()).log().expand(len(test), -1), test)
    ]
    if table:
        rows.append(_guessed("linear model", _logistic(data, len(share)), test))
    return rows


def _with_ones(x: Tensor) -> Tensor:
    """Inputs, (n, d), with a column of ones, in float64."""
    return torch.cat([x.cpu().double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)


def _normal(name: str, mean: Tensor, residual: Tensor, data: DataSet) -> Json:
    """Metrics of normal predictions with the standard deviation of the training residuals."""
    scale, y = data.test.target_std.cpu().double(), data.test.y.cpu().double().reshape(mean.shape)
    std, gap = residual.square().mean(0).sqrt().clamp_min(1e-9), mean - y
    nll = 0.5 * (gap / std).square() + (std * scale).log() + 0.5 * math.log(2 * math.pi)
    return {
        "name": name,
        "rmse": short(float((gap * scale).square().mean().sqrt())),
        "nll": short(float(nll.mean())),
        "coverage_90": short(float((gap.abs() <= z_of(0.9) * std).double().mean())),
    }


def _guessed(name: str, log_probs: Tensor, labels: Tensor) -> Json:
    """Metrics of class probabilities, (n, C)."""
    return {
        "name": name,
        "error": short(float((log_probs.argmax(1) != labels).double().mean())),
        "nll": short(float(-log_probs.gather(1, labels[:, None]).mean())),
        "ece": short(reliability_bins(log_probs.exp(), labels).ece),
    }


def _logistic(data: DataSet, n_classes: int) -> Tensor:
    """Log probabilities of the test rows under logistic regression with a weak ridge, (n, C)."""
    some = spread_out(len(data.train), _MOST_FITTED)
    x, labels = _with_ones(data.train.x[some]), data.train.y.cpu()[some]
    weights = torch.zeros(x.shape[1], n_classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ weights, labels)
        value = value + weights.square().sum() / len(x)
        torch.autograd.backward(value)
        return value

    optimiser.step(loss)
    return (_with_ones(data.test.x) @ weights.detach()).log_softmax(1)


def calibration(results: dict[str, Evaluation], data: DataSet) -> Json:
    """Reliability, or coverage of intervals, and risk against coverage, by way to predict."""
    rows: Json = {}
    for name, evaluation in results.items():
        prediction = evaluation.prediction
        if isinstance(prediction, ClassPrediction):
            rows[name] = _of_classes(*prediction.scored(data.test.y))
        else:
            rows[name] = _of_numbers(prediction, data)
    return rows


def losses(evaluation: Evaluation, data: DataSet) -> Json:
    """Losses of single test examples, to compare runs in pairs.

    Returns:
        test: a digest of the targets; runs with equal ones are tested on the same examples.
        error: of a classification, 1 for a mistake; of a regression the squared error in the unit
            of the target. nll: of each example. Both packed, of at most 5,000 examples.
    """
    y, std = data.test.y, data.test.target_std
    rows, y = losses_of(evaluation.prediction, y, std), y.cpu()
    error = (~rows.right).double() if isinstance(rows, ClassLosses) else rows.square
    some = spread_out(len(error), _MOST_LOSSES)
    digest = hashlib.sha256(y.double().contiguous().numpy().tobytes()).hexdigest()[:16]
    return {"test": digest, "error": pack(error[some], "f4"), "nll": pack(rows.nll[some], "f4")}


def _of_classes(prediction: ClassPrediction, labels: Tensor) -> Json:
    probs, labels = prediction.probs.cpu(), labels.cpu()
    bins = reliability_bins(probs, labels)
    wrong = (probs.argmax(-1) != labels).double()
    return {
        "reliability": {
            "confidence": rounded(torch.tensor(bins.confidence), 5),
            "accuracy": rounded(torch.tensor(bins.accuracy), 5),
            "count": list(bins.count),
            "ece": short(bins.ece, 5),
            "groups": [rounded(torch.tensor(group), 5) for group in groups_of(bins)],
        },
        "risk_coverage": _risk_coverage(prediction.entropy.cpu(), wrong),
    }


def _of_numbers(prediction: RealPrediction, data: DataSet) -> Json:
    mean, std = prediction.mean.cpu(), prediction.std.cpu()
    targets = data.test.y.reshape(mean.shape)
    ends = [prediction.interval(level) for level in _LEVELS]
    coverages = [interval_coverage(low.cpu(), high.cpu(), targets) for low, high in ends]
    generator = torch.Generator(prediction.mean.device).manual_seed(0)
    samples = prediction.sample(_RANKS, generator)
    at = targets.to(samples.device, samples.dtype)
    ranks = rank_histogram(samples, at, _RANK_BINS, generator).tolist()
    gap = (mean - targets).abs().mean(-1) * float(data.test.target_std.double().mean())
    dots, columns = spread_out(len(mean), _MOST_DOTS), target_columns(prediction, data)
    return {
        "intervals": {"level": list(_LEVELS), "coverage": rounded(torch.tensor(coverages), 5)},
        "risk_coverage": _risk_coverage(std.mean(-1), gap),
        "ranks": ranks,
        "ranks_plausible": [short(end, 5) for end in plausible(1 / _RANK_BINS, sum(ranks))],
        "fit": {
            "target": rounded(columns["target"][dots], 5),
            "mean": rounded(columns["mean"][dots], 5),
            "std": rounded(columns["std"][dots], 4),
            "factor_90": round(prediction.likelihood.half_width(0.9), 5),
        },
    }


def _risk_coverage(doubt: Tensor, loss: Tensor) -> Json:
    """Mean loss of the least uncertain examples, by their fraction, thinned out."""
    coverage, risk = risk_coverage(doubt, loss)
    some = spread_out(len(coverage), _MOST_POINTS)
    return {"coverage": rounded(coverage[some], 5), "risk": rounded(risk[some], 5)}


def confusion(evaluation: Evaluation, data: DataSet) -> list[list[int]] | None:
    """Counts on the test set, rows true and columns predicted; None for a regression."""
    prediction = evaluation.prediction
    if not isinstance(prediction, ClassPrediction):
        return None
    rows, labels = prediction.scored(data.test.y)
    return confusion_matrix(rows.probs, labels).tolist()


def examples(evaluation: Evaluation, data: DataSet, limits: Limits) -> Json:
    """Most certain, least certain and worst test examples with their predictive distribution.

    The worst are confident mistakes, or targets furthest from the mean in standard deviations.
    """
    prediction, n = evaluation.prediction, limits.examples
    rows: Json = {}
    if isinstance(prediction, ClassPrediction):
        labels, digits = prediction.scored(data.test.y)[1].cpu(), 4
        order = prediction.entropy.cpu().argsort(stable=True)
        worst = order[(prediction.label.cpu() != labels)[order]]  # the most confident first
        rows["n_wrong"] = len(worst)
        rows["quantiles"] = {
            name: rounded(getattr(prediction, name).cpu().double().quantile(_SHARES), 4)
            for name in ("entropy", "epistemic")
        }
        columns = {"label": labels, "probs": prediction.probs, "entropy": prediction.entropy,
                   "epistemic": prediction.epistemic}  # fmt: skip
    else:
        digits, columns = 5, target_columns(prediction, data)
        order = columns["std"].argsort(stable=True)
        worst = columns["surprise"].argsort(descending=True, stable=True)
    for name, index in {"most": order[:n], "least": order.flip(0)[:n], "wrong": worst[:n]}.items():
        row = rows[name] = {"index": index.tolist(), "inputs": shown(data.test.x[index], data)}
        for key, values in columns.items():
            some = values.cpu()[index]
            row[key] = rounded(some, digits) if some.is_floating_point() else some.tolist()
    return rows


def doubt_map(evaluation: Evaluation, known: Familiarity | None, data: DataSet) -> Json | None:
    """Map test examples by confidence and uncertainty; None for a regression or positions.

    Returns:
        sure, `doubt` (entropy, nats), familiarity (or None), right, label and said of at most 2,000
        examples; those with `inputs`, to put into the network, come first: mistakes, the most
        uncertain ones and some of the rest.
    """
    prediction = evaluation.prediction
    if not isinstance(prediction, ClassPrediction) or prediction.positions:
        return None
    labels, said = data.test.y.cpu(), prediction.label.cpu()
    sure, doubt = prediction.probs.cpu().amax(-1), prediction.entropy.cpu()
    wrong, n = said != labels, len(labels)
    most = max(3, _MAP_BYTES // data.test.x[0].numel())
    ranked = doubt.argsort(descending=True, stable=True)
    first = [ranked[wrong[ranked]][: most // 3], ranked[: most // 3], spread_out(n, most // 3)]
    shown_first = torch.cat(first).unique()
    rest = spread_out(n, _MOST_MAPPED)
    order = torch.cat([shown_first, rest[~torch.isin(rest, shown_first)]])
    return {
        "index": order.tolist(),
        "sure": rounded(sure[order], 4),
        "doubt": rounded(doubt[order], 4),
        "familiarity": None if known is None else rounded(known.score(data.test.x[order]), 3),
        "label": labels[order].tolist(),
        "said": said[order].tolist(),
        "inputs": shown(data.test.x[shown_first], data),
    }


def target_columns(prediction: RealPrediction, data: DataSet) -> dict[str, Tensor]:
    """The first target, its mean and standard deviations, in its own unit, (n,) each."""
    scale, shift = (
        unit.double().reshape(-1)[0] for unit in (data.test.target_std, data.test.target_mean)
    )
    mean, std, doubt = (
        values.cpu().double()[:, 0]
        for values in (prediction.mean, prediction.std, prediction.epistemic_std)
    )
    target = data.test.y.reshape(len(mean), -1)[:, 0].cpu().double()
    return {"target": target * scale + shift, "mean": mean * scale + shift, "std": std * scale,
            "epistemic": doubt * scale, "surprise": ((target - mean) / std).abs()}  # fmt: skip
