"""Quality of a model on a split of data, and how it changes with sparsity."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bayesieve.assess.metrics import classification_report, monte_carlo_error, regression_report
from bayesieve.assess.predict import OODScore, Predictor, predict, predict_stream
from bayesieve.core.batch import Data, ExamplesLike, Streamed, pair_of, stream_of
from bayesieve.core.likelihoods.prediction import (
    IGNORED,
    ClassPrediction,
    Prediction,
    wrong_share,
)
from bayesieve.core.posterior import Posterior, SparseModel, present_entries


@dataclass(frozen=True, eq=False)
class Evaluation(Mapping[str, Any]):
    """Metrics on one split together with the size of the model, a mapping of numbers by name.

    Args:
        numbers: the metrics, then, of an average over draws, draws (their number) and nll_mc_error
            (the standard error they leave in nll), then zeros and removed (fractions), weights
            (non-zero parameters) and parameters of the model.
        prediction: what the metrics were computed from.
    """

    numbers: Mapping[str, Any]
    prediction: Prediction = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers by name, ready for JSON."""
        return dict(self.numbers)

    def __getitem__(self, name: str) -> Any:
        return self.numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __str__(self) -> str:
        width = max(len(name) for name in self)
        shown = {n: f"{v:.4f}" if isinstance(v, float) else str(v) for n, v in self.items()}
        return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())


def evaluate(
    model: Posterior | SparseModel | Predictor,
    examples: Data | Streamed,
    *,
    n_samples: int | None = 0,
    seed: int = 0,
    temperature: float = 1.0,
    familiarity: OODScore | None = None,
    abstain: float | None = None,
) -> Evaluation:
    """Score a posterior or sparse model on a split of data.

    Args:
        model: what to score; also one that predicts by itself, such as `MomentNetwork(posterior)`.
        examples: an (x, y) pair or anything with `.x` and `.y`, or a stream, as for `Problem`;
            `target_std`, if it has one, brings errors of standardised targets back to their unit.
        n_samples: posterior draws to average over; 0 predicts with the posterior mean. None draws
            until the standard error of nll is below 2 % (0.02 nats for a regression), at most 256
            times; of a sampler it takes all that were kept.
        seed: of the draws.
        temperature: T of the prediction, as `fit_temperature` finds it on held-out examples: class
            probabilities p̄^(1/T), or T times the variance, noise and spread alike.
        familiarity: of the inputs: `Familiarity.of(train.x)`.
        abstain: also score the answers without inputs that are less familiar than this fraction
            of held-out examples: `answered` (share) and `error_answered` or
            `rmse_answered`, None if nothing is answered.

    Example:
        >>> from bayesieve.core.likelihoods import Categorical
        >>> from bayesieve.core.network import Network
        >>> from bayesieve.core.posterior import Samples
        >>> network = Network.of(torch.nn.Linear(1, 2, bias=False), Categorical())
        >>> model = Samples(network, torch.tensor([[0.0, 2.0]]))
        >>> evaluate(model, (torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 1])))["error"]
        0.5
    """
    sized = model.posterior if isinstance(model, Predictor) else model
    device, likelihood = sized.network.device, sized.network.likelihood
    std = torch.as_tensor(getattr(examples, "target_std", 1.0)).to(device)
    asked: dict[str, Any] = {
        "n_samples": n_samples, "seed": seed, "familiarity": familiarity, "abstain": abstain
    }  # fmt: skip
    stream = None if isinstance(examples, ExamplesLike) else stream_of(examples)
    if stream is None:
        x, y = pair_of("evaluate", examples)  # type: ignore[arg-type]
        prediction = predict(model, x, targets=y.to(device), **asked)
    else:
        prediction, y = predict_stream(model, stream, **asked)
    targets = y.to(device)
    n_draws = prediction.n_draws
    if temperature != 1.0:
        prediction = prediction.tempered(temperature)
    targets = likelihood.labels(targets)
    scored = prediction
    if isinstance(prediction, ClassPrediction):
        scored, labels = prediction.scored(targets)
        numbers = classification_report(
            scored.sample_log_probs, labels, scored.drawn, scored.temperature
        )
        if prediction.positions:
            numbers |= _by_example(prediction, targets) | {"n_positions": len(labels)}
        targets = labels
    else:
        shape = prediction.sample_means.shape[1:]
        if targets.numel() != shape.numel():
            raise ValueError(
                f"evaluate: predictions have shape {tuple(shape)}, targets {tuple(targets.shape)}."
            )
        numbers = regression_report(
            prediction.sample_means,
            prediction.noise_std,
            targets.reshape(shape),
            target_std=std,
            likelihood=prediction.likelihood,
        )
    if n_draws > 1:
        numbers["draws"] = n_draws
    if prediction.drawn != "all":
        numbers["nll_mc_error"] = monte_carlo_error(scored, targets)
    if prediction.abstained is not None:
        numbers |= _answered(prediction, likelihood.labels(y.to(device)), std)
    return Evaluation({**numbers, **model_size(sized)}, prediction)


def _by_example(prediction: ClassPrediction, labels: Tensor) -> dict[str, Any]:
    """Numbers of whole examples, whose positions that count stand or fall together.

    Returns:
        error_examples, the share with a mistake anywhere; nll_examples, of all its labels under the
        averaged probabilities of each; n_examples.
    """
    n, counted = len(labels), labels != IGNORED
    wrong = ((prediction.label != labels) & counted).reshape(n, -1).any(1)
    logs = prediction.log_probs.gather(-1, labels.clamp_min(0)[..., None])[..., 0]
    nll = -torch.where(counted, logs, 0).reshape(n, -1).sum(1)
    return {
        "error_examples": float(wrong.double().mean()),
        "nll_examples": float(nll.mean()),
        "n_examples": n,
    }


def _answered(prediction: Prediction, targets: Tensor, std: Tensor) -> dict[str, Any]:
    """The share of inputs that are answered, and the error (or RMSE, in units of `std`) there."""
    assert prediction.abstained is not None
    kept = ~prediction.abstained.to(targets.device)
    if isinstance(prediction, ClassPrediction):
        name, loss = "error_answered", wrong_share(prediction.label, targets)
    else:
        gap = (prediction.mean - targets.reshape(prediction.mean.shape)) * std
        name, loss = "rmse_answered", gap.square().mean(-1)
    risk = float(loss[kept].mean()) if bool(kept.any()) else None
    if risk is not None and name == "rmse_answered":
        risk = risk**0.5
    return {"answered": float(kept.double().mean()), name: risk}


def model_size(model: Posterior | SparseModel) -> dict[str, float]:
    """Zeros over all trainable parameters, removed prunable weights, and the counts behind them."""
    layout = model.layout
    kept = model.keep if isinstance(model, SparseModel) else present_entries(model)
    prunable = kept[layout.sparse]
    return {
        "zeros": 1 - int(kept.sum()) / layout.size,
        "removed": 1 - int(prunable.sum()) / max(layout.n_sparse, 1),
        "weights": int(kept.sum()),
        "parameters": layout.size,
    }


def error_curve(posterior: Posterior, masks: Tensor, examples: Data) -> list[dict[str, float]]:
    """Error (or RMSE) and negative log-likelihood of the posterior mean under each mask.

    Args:
        posterior: before pruning.
        masks: (n, d) bool, as `sparsity_curve` returns them.
        examples: the split to score on.

    Returns:
        One row per mask: zeros, removed, weights and error or rmse, nll.
    """
    rows = []
    for keep in masks:
        result = evaluate(SparseModel(posterior.masked(keep), keep), examples).to_dict()
        name = "error" if "error" in result else "rmse"
        rows.append({key: result[key] for key in ("zeros", "removed", "weights", name, "nll")})
    return rows
