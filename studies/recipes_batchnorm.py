"""Recipes for networks with BatchNorm: settings chosen on held-out images of CIFAR-10.

    python -m studies.recipes_batchnorm --full --out results/held_out/recipes_batchnorm.json
    python -m studies.recipes_batchnorm --full --net conv2-bn-fc3 --candidates recipe --out X.json
    python -m studies.recipes_batchnorm --quick                  # minutes on one CPU core

BatchNorm divides the size of weights out again. What the data then say about a weight is how large
it is against its neighbours, and a prior that pulls all of them to 0 widens the noise instead.
Numbers chosen on MNIST for networks without BatchNorm leave ResNet-20 far behind plain training.

Protocol: ResNet-20 learns for ten passes, on images that are shifted and mirrored, in batches of
256 and bfloat16, as in `bayesieve compare`; 5,000 training images are set aside and score each
candidate by eight draws. Test images are not read. "cut" is the error after 90 % of the weights go
at once by signal to noise and one more pass with that mask. `--candidates recipe` compares only the
recipe for networks without BatchNorm, {}, and the chosen one, on a network that chose nothing:
2-Conv-BN-3-FC on Fashion-MNIST.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bayesieve import Schedule, evaluate, fit, load_data, prune
from bayesieve.data.examples import DataSet
from bayesieve.engines.recipes import (
    ENGINES,
    EngineName,
    RunSize,
    build,
    recommended_schedule,
    settings_of,
)
from bayesieve.errors import DivergedError
from bayesieve.nets import conv2_bn_fc3, resnet20
from bayesieve.sieve.rules import keep_zeros
from studies import images
from studies.harness import (
    Row,
    Run,
    chosen,
    make_row,
    say,
    splits,
    study_parser,
)

NETS = {"resnet20": (resnet20, "cifar10"), "conv2-bn-fc3": (conv2_bn_fc3, "fashion-mnist")}
EPOCHS, BATCH_SIZE, DRAWS, ZEROS = 10, 256, 8, 0.9
SHOWN = ("error", "nll", "ece", "zeros", "cut")
GUESSING = {"error": 0.9, "nll": 2.303, "ece": 0.0, "cut": 0.9}  # what a diverged run is worth
Setting = dict[str, Any]


def _grid(lrs: Sequence[float], kls: Sequence[float], **others: Any) -> list[Setting]:
    return [{"lr": lr, "kl": kl, **others} for lr in lrs for kl in kls]


# The first of each engine is the recipe for networks without BatchNorm.
CANDIDATES: dict[EngineName, list[Setting]] = {
    "sbnn": [
        {}, *_grid((1e-3, 3e-3, 1e-2), (0.03, 0.1)), *_grid((3e-3, 1e-2), (0.01,)),
        *_grid((3e-3,), (0.03,), init_std=0.005), *_grid((3e-3,), (0.03,), local=False),
    ],
    "flat-vi": [
        {}, *_grid((3e-3, 1e-2), (0.01, 0.03)), *_grid((3e-3,), (0.03,), prior_std=0.3),
        *_grid((3e-3,), (0.01,), init_std=0.005),
    ],
    "bmr": [
        {}, *_grid((3e-3, 1e-2), (0.03, 0.1)), *_grid((3e-3, 1e-2), (0.03,), init_std=0.05),
        *_grid((3e-3,), (0.01,), init_std=0.05), *_grid((1e-2, 3e-2), (0.01,), init_std=0.05),
        *_grid((1e-2, 3e-2), (0.01,), init_std=0.02), *_grid((1e-2,), (0.003,), init_std=0.05),
    ],
    "horseshoe": [{}, *_grid((5e-3, 1e-2), (0.03, 0.1)), *_grid((1e-2, 3e-2), (0.01,))],
}  # fmt: skip


def trained(
    name: EngineName, setting: Setting, data: DataSet, seed: int, options: argparse.Namespace
) -> dict[str, float]:
    """Scores of one network on the held-out images, whole and cut."""
    net, _ = NETS[options.net]
    augment = images.moved(data) if options.net == "resnet20" else None
    problem = images.image_problem(
        partial(net, n_outputs=10), data, seed, precision=options.precision, augment=augment,
    ).to(options.device)  # fmt: skip
    size, after = (RunSize.of(name, problem.n_data, epochs, None, BATCH_SIZE)
                   for epochs in (options.epochs, 1))  # fmt: skip
    # those of a network without BatchNorm, but for what the candidate changes
    numbers = {key: value for key, value in setting.items() if key != "kl"}
    settings = settings_of(name, size, numbers)
    course = recommended_schedule(name, size)
    course |= {"kl": setting["kl"]} if "kl" in setting else {}
    run = fit(problem, build(name, size, settings), epochs=options.epochs, batch_size=BATCH_SIZE,
              seed=seed, schedule=Schedule(**course))  # fmt: skip
    dense = run.sparse()
    scores = evaluate(dense, data.test, n_samples=DRAWS).to_dict()
    cut = dense
    if dense.zeros < ZEROS:
        cut = prune(dense.posterior, keep_zeros(ZEROS, score="snr"))
    run = fit(problem, build(name, replace(after, may_prune=False), settings), epochs=1,
              batch_size=BATCH_SIZE, seed=seed, schedule=Schedule("cosine", kl=course["kl"]),
              start_from=cut)  # fmt: skip
    return {
        **{key: scores[key] for key in ("error", "nll", "ece", "zeros")},
        "cut": evaluate(run.sparse(), data.test, n_samples=DRAWS)["error"],
    }


def row_of(name: EngineName, setting: Setting, data: DataSet, options: argparse.Namespace) -> Row:
    """A candidate over its seeds."""
    began, each = time.perf_counter(), []
    for seed in range(options.seed, options.seed + options.seeds):
        try:
            each.append(trained(name, setting, data, seed, options))
        except DivergedError:
            each.append(GUESSING)
    return make_row(name, setting, each, seeds=options.seeds,
                    seconds=round(time.perf_counter() - began, 2))  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Score every candidate on held-out images, writing the record after each."""
    parser = study_parser(__doc__, "--budget", "--precision", precision="bf16", seeds=1,
                          quick="one pass over 500 images, two candidates each")  # fmt: skip
    parser.add_argument("--engines", default=",".join(CANDIDATES), help="comma list of engines")
    parser.add_argument("--net", choices=NETS, default="resnet20")
    parser.add_argument("--candidates", choices=("all", "recipe"), default="all")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    options = parser.parse_args(arguments)
    options.held_out = True
    few, few_test = (None, None) if options.full else (500, 200)
    if not options.full:
        options.epochs, options.candidates = 1, "recipe"
    data = splits(load_data(NETS[options.net][1]), held_out=True, few=few, few_test=few_test)
    run = Run("recipes_batchnorm", arguments, options, data=data.name,
              settings={"n_train": len(data.train), "epochs": options.epochs,
                        "net": options.net})  # fmt: skip
    asked = chosen("recipes_batchnorm", "engine", options.engines, CANDIDATES)
    for name in (name for name in CANDIDATES if name in asked):
        both = [{}, dict(ENGINES[name].normalised)]
        for setting in CANDIDATES[name] if options.candidates == "all" else both:
            if run.wants(name, setting):
                run.add(row_of(name, setting, data, options), SHOWN)
                say(f"    {setting}")
    return run.finish(SHOWN)


if __name__ == "__main__":
    raise SystemExit(main())
