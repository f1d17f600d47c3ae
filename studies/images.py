"""Common parts of the image studies: the problem, scores of draws, pruning of a dense network."""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor, nn

from bayesieve import Problem, evaluate, likelihoods
from bayesieve.assess.metrics import classification_report
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.core.execution import Precision
from bayesieve.core.layout import RoleRule, default_role
from bayesieve.core.posterior import Posterior, Samples, SparseModel
from bayesieve.data.augment import Augment
from bayesieve.data.examples import DataSet, Examples
from bayesieve.data.images import PixelScale
from bayesieve.engines.sampling import Chain
from bayesieve.sieve.prune import reestimate_batchnorm
from bayesieve.training.fit import Fit
from studies.harness import Row, Run, numbers, seeded, study_parser

N_DRAWS = 20  # of a prediction that is averaged over the posterior
_RENEW = 10_000  # training images that renew BatchNorm


def moved(data: DataSet) -> Augment:
    """Shifts by up to 4 pixels, filled with black, and reflections: the usual ones of CIFAR-10."""
    return Augment(shift=4, flip=True, fill=PixelScale.of(data.preprocessing).black)


def image_problem(
    build: Callable[[tuple[int, ...]], nn.Module], data: DataSet, seed: int, *,
    precision: Precision, augment: Augment | None, roles: RoleRule = default_role,
) -> Problem:  # fmt: skip
    """Ten classes of the training images; `build` makes the network for images of a shape."""
    model = seeded(seed, build, tuple(data.train.x.shape[1:]))
    return Problem(model, likelihoods.Categorical(), data.train, roles=roles,
                   precision=precision, augment=augment)  # fmt: skip


def of_unit_energy(train: Examples, *others: Examples) -> list[Examples]:
    """Images centred by the mean of the training images and scaled to their average energy."""
    mean = train.x.mean(0)
    scale = (train.x - mean).square().mean().sqrt()
    return [Examples((images.x - mean) / scale, images.y) for images in (train, *others)]


def mean_and_draws(
    model: Posterior | SparseModel, test: Examples, names: Sequence[str], drawn: Sequence[str],
    prefix: str = "mc_",
) -> dict[str, float]:  # fmt: skip
    """Scores at the mean weights, and with a prefix those of the average over 20 draws."""
    at_mean = evaluate(model, test).to_dict()
    scores = {name: at_mean[name] for name in names}
    if drawn:
        sampled = evaluate(model, test, n_samples=N_DRAWS).to_dict()
        scores |= {f"{prefix}{name}": sampled[name] for name in drawn}
    return scores


def renewed(sparse: SparseModel, train: Examples) -> SparseModel:
    """The network after BatchNorm has seen training images with the weights that are left."""
    return reestimate_batchnorm(sparse, train.x[:: -(-len(train) // _RENEW)])


def chain_of(
    n_steps: int, n_kept: int, burn_in: float, *, cycles: int = 0, first_cycle: int = 1,
    last_temperature: float = 1.0,
) -> Chain:  # fmt: skip
    """Draws that a chain keeps: evenly spaced after `burn_in`, or at the end of every cycle.

    Example:
        >>> chain = chain_of(1000, 30, 0.5, cycles=8, first_cycle=4)
        >>> chain.burn_in, chain.thin, chain.cycle, chain.n_kept
        (500, 125, 125, 4)
    """
    chain = Chain.over(n_steps, n_kept=n_kept, burn_in=burn_in, last_temperature=last_temperature)
    if not cycles:
        return chain
    cycle = math.ceil(n_steps / cycles)
    return replace(chain, burn_in=first_cycle * cycle, thin=cycle, n_kept=cycles - first_cycle,
                   cycle=cycle)  # fmt: skip


def draw_log_probs(posterior: Samples, test: Examples) -> Tensor:
    """Log-probabilities of the classes of every draw, (S, N, C)."""
    prediction = predict(posterior, test.x, n_samples=len(posterior.draws))
    assert isinstance(prediction, ClassPrediction)
    return prediction.sample_log_probs


def draw_scores(log_probs: Tensor, test: Examples) -> dict[str, float]:
    """Scores of the averaged probabilities; "single" is the accuracy of the last draw. In %."""
    labels = test.y.to(log_probs.device)
    average = classification_report(log_probs, labels)
    single = classification_report(log_probs[-1:], labels)
    return {"accuracy": round(100 * average["accuracy"], 3),
            "single": round(100 * single["accuracy"], 3),
            "nll": average["nll"], "ece": average["ece"]}  # fmt: skip


def fit_times(*runs: Fit) -> dict[str, float]:
    """Seconds of a training, which may have several runs, and of its fastest epoch."""
    epochs = [line["seconds"] for run in runs for line in run.history]
    return {"fit_seconds": round(sum(run.seconds for run in runs), 2),
            "epoch_seconds": min(epochs)}  # fmt: skip


def pruning_parser(
    doc: str | None, *flags: str, quick: str, figures: str, lr: float, epochs: int,
    dense_lr: float, dense_epochs: int, batch_size: int,
) -> argparse.ArgumentParser:  # fmt: skip
    """The command line of a study that prunes a dense network; numbers are defaults of flags."""
    parser = study_parser(doc, "--held-out", "--budget", "--precision", *flags, quick=quick,
                          figures=figures, precision="bf16")  # fmt: skip
    parser.add_argument("--dense-epochs", type=int, default=dense_epochs)
    parser.add_argument("--epochs", type=int, default=epochs, help="of a sparse run")
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--dense-lr", type=float, default=dense_lr)
    parser.add_argument("--lr", type=numbers, default=(lr,), help="of sparse runs; comma list")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def prune_dense(
    run: Run, dense: Any, sparse: Sequence[Any], measure: Callable[[Any, Any], tuple[Row, Any]],
    show: Sequence[str],
) -> None:  # fmt: skip
    """Add the rows that are missing: of the dense network, and of every pruning that begins there.

    Args:
        run: the study.
        dense: setting of the dense network, a dataclass with a name.
        sparse: settings of the others.
        measure: trains a setting from a posterior, None for the dense network; returns its row and
            its posterior.
        show: metrics to print of each row.
    """
    missing = [one for one in sparse if run.find(one.name, asdict(one)) is None]
    is_known = run.find(dense.name, asdict(dense)) is not None
    start = None
    if missing or not is_known:
        row, start = measure(dense, None)
        if not is_known:
            run.add(row, show)
    for setting in missing:
        if run.wants(setting.name, asdict(setting), "sparse"):
            row, _ = measure(setting, start)
            run.add(row, show, "sparse")
