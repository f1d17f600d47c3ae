"""EM-TDAMP through convolutions: 8x8 digits, beside a fully connected network and Adam.

    python -m studies.tdamp_digits --seeds 5 --out results/tdamp_digits.json
    python -m studies.tdamp_digits --held-out       # scores part of the training images

Protocol: 1,433 training images, batch 50, 20 passes of which the last six cool; pixels centred by
the training mean and scaled to unit average energy, for Adam too. The convolutional network is
Conv 3x3 (16) - ReLU - Conv 3x3, stride 2 (16) - ReLU - Linear; its pruned row ends with 8 channels
of each. Prior variances and power were chosen in the MNIST study.
"""

from typing import Any

import torch
from torch import nn

from bayesieve import MAP, TDAMP, Problem, fit, likelihoods, load_data, priors
from bayesieve.data.examples import Examples
from bayesieve.engines import Engine
from bayesieve.nets import mlp
from studies.harness import Run, make_row, seeded, study_parser
from studies.images import mean_and_draws, of_unit_energy

_PASSES, _BATCH = 20, 50
Case = tuple[Engine[Any], bool]  # and whether the network is convolutional


def _tdamp(keep: float) -> TDAMP:
    prior = priors.GroupSparse(hidden_variance=0.25, output_variance=1.5)
    return TDAMP(prior, keep=keep, prune_passes=(4, 12), power=12.0, cool_passes=(15, 20))


ROWS: dict[str, Case] = {
    "tdamp-conv": (_tdamp(1.0), True),
    "tdamp-conv-half": (_tdamp(0.5), True),
    "tdamp-mlp": (_tdamp(1.0), False),
    "adam-conv": (MAP(optimizer="adam", lr=1e-3), True),
    "adam-mlp": (MAP(optimizer="adam", lr=1e-3), False),
}


def network(*, convolutional: bool) -> nn.Module:
    """The small convolutional network, or 64-100-10."""
    if not convolutional:
        return mlp((1, 8, 8), 10, widths=(100,))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(16 * 4 * 4, 10),
    )  # fmt: skip


def splits(*, held_out: bool) -> tuple[Examples, Examples]:
    """Images to learn from and to score on, both centred and scaled by the former."""
    data = load_data("digits")
    train, test = data.train, data.test
    if held_out:
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        n = len(train) // 5
        train, test = train.subset(order[n:]), train.subset(order[:n])
    train, test = of_unit_energy(train, test)
    return train, test


def run_once(case: Case, train: Examples, test: Examples, seed: int, passes: int) -> dict[str, Any]:
    """Scores of one seed, at the mean and over draws."""
    engine, convolutional = case
    model = seeded(seed, network, convolutional=convolutional)  # Adam starts from its weights
    problem = Problem(model, likelihoods.Categorical(), train)
    run = fit(problem, engine, epochs=passes, batch_size=_BATCH, seed=seed)
    names = ("accuracy", "nll", "ece", "zeros")
    drawn = names[:3] if isinstance(engine, TDAMP) else ()
    scores = mean_and_draws(run.posterior, test, names, drawn, "draws_")
    return scores | {"seconds_per_pass": run.seconds / passes}


def main(arguments: list[str] | None = None) -> int:
    """Run the table and write one record."""
    parser = study_parser(__doc__, quick="one seed, 6 passes", device=False, seeds=5)
    parser.add_argument("--passes", type=int, default=_PASSES)
    parser.add_argument("--held-out", action="store_true", help="score a fifth of the training set")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.passes = 1, 6
    train, test = splits(held_out=options.held_out)
    settings = {"n_train": len(train), "n_scored": len(test), "passes": options.passes}
    run = Run("tdamp_digits", arguments, options, data="digits", settings=settings)
    for name, case in ROWS.items():
        setting = {"engine": repr(case[0]), "convolutional": case[1]}
        if run.wants(name, setting):
            seeds = list(range(options.seeds))
            each = [run_once(case, train, test, seed, options.passes) for seed in seeds]
            run.add(make_row(name, setting, each, seeds=seeds), ("accuracy", "nll", "ece", "zeros"))
    return run.finish()


if __name__ == "__main__":
    raise SystemExit(main())
