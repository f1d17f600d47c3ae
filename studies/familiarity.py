"""Strangers among the inputs: familiarity against the doubt of the network, by AUROC.

    python -m studies.familiarity --full --out results/familiarity.json     # 3 CPU minutes
    python -m studies.familiarity --quick                                   # digits alone

A network (sbnn; 100-50 units on digits, 300-100 on images) is trained on some examples of a set.
Each way to score strangeness then ranks test examples of that set before examples of others:

    entropy      of the predictive distribution of 64 draws
    last layer   Mahalanobis distance to the nearest class before the last layer, one covariance
    neighbour    distance to the fifth nearest training example
    familiarity  `bayesieve.Familiarity`, the one that is delivered

Digits: 600 of the classes 0 to 4 are known, 5 to 9 and noise are strangers. MNIST and
Fashion-MNIST: 10,000 training images are known; strangers are 2,000 test images of the other set,
1,040 letters and 1,000 of noise. Letters are drawn here: a to z and A to Z in the fonts of
matplotlib, turned by up to 15 degrees, of the size of MNIST's digits. Many of them (l, O, S) are
digits to everybody, so no score can rank all of them last.
"""

import argparse
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor, nn

from bayesieve import SBNN, Familiarity, Problem, evaluate, fit, load_data, predict
from bayesieve.assess.predict import ClassPrediction
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Posterior
from bayesieve.nets import mlp
from bayesieve.uncertainty.calibration import auroc
from studies.harness import Run, make_row, seeded, study_parser

SHOWN = ("5-9", "mnist", "fashion-mnist", "letters", "noise")
Score = Callable[[Tensor], Tensor]  # inputs (n, ...) to strangeness, (n,)


@dataclass(frozen=True)
class Case:
    """Known examples, and strangers by name."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    strangers: dict[str, Tensor]
    widths: tuple[int, int]
    epochs: int


def digits_case(seed: int) -> Case:
    """Digits 0 to 4 against 5 to 9 and noise."""
    data, source = load_data("digits"), Generator().manual_seed(seed)
    x, y = torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y])
    known = (y < 5).nonzero()[:, 0]
    known = known[torch.randperm(len(known), generator=source)]
    noise = torch.rand(500, *x.shape[1:], generator=source)
    few, rest = known[:600], known[600:]
    strangers = {"5-9": x[y >= 5], "noise": noise}
    return Case("digits 0-4", (x[few], y[few]), (x[rest], y[rest]), strangers, (100, 50), 60)


def image_case(name: str, seed: int) -> Case:
    """MNIST or Fashion-MNIST against the other one, letters and noise, all with pixels 0 to 1."""
    other = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}[name]
    data, source = load_data(name), Generator().manual_seed(seed)
    top, foreign = data.train.x.max(), load_data(other).test.x[:2000]
    some = torch.randperm(len(data.train), generator=source)[:10_000]
    strangers = {
        other: foreign / foreign.max(),
        "letters": letters(1040, seed),
        "noise": torch.rand(1000, 1, 28, 28, generator=source),
    }
    train = data.train.x[some] / top, data.train.y[some]
    test = data.test.x[:2000] / top, data.test.y[:2000]
    return Case(name, train, test, strangers, (300, 100), 40)


def letters(n: int, seed: int = 0) -> Tensor:
    """Letters as MNIST draws digits: 20 pixels long, centred by mass, (n, 1, 28, 28)."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = sorted(path for path in folder.glob("DejaVu*.ttf") if "Display" not in path.name)
    source, pictures = np.random.default_rng(seed), []
    for i in range(n):
        font = ImageFont.truetype(str(fonts[source.integers(len(fonts))]), 64)
        image = Image.new("L", (128, 128))
        letter = string.ascii_letters[i % 52]
        ImageDraw.Draw(image).text((64, 64), letter, fill=255, font=font, anchor="mm")
        turn = float(source.uniform(-15, 15))
        image = image.rotate(turn, resample=Image.Resampling.BILINEAR)
        image = image.crop(image.getbbox())
        size = [max(1, round(side * 20 / max(image.size))) for side in image.size]
        ink = np.asarray(image.resize((size[0], size[1]), Image.Resampling.BILINEAR)) / 255
        picture = np.zeros((28, 28))
        corner = []
        for axis in (0, 1):
            middle = ink.sum(1 - axis) @ np.arange(ink.shape[axis]) / ink.sum()
            corner.append(int(np.clip(round(13.5 - middle), 0, 28 - ink.shape[axis])))
        top, left = corner
        picture[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
        pictures.append(picture)
    return torch.tensor(np.stack(pictures), dtype=torch.float32)[:, None]


def trained(case: Case, seed: int) -> Posterior:
    """The posterior of a network on the known examples."""
    x, y = case.train
    net = seeded(seed, mlp, tuple(x.shape[1:]), int(y.max()) + 1, case.widths)
    problem = Problem(net, Categorical(), (x, y))
    return fit(problem, SBNN(), epochs=case.epochs, batch_size=128, seed=seed).posterior


def entropy(posterior: Posterior, seed: int, x: Tensor) -> Tensor:
    """Entropy of the average of 64 draws, (n,)."""
    prediction = predict(posterior, x, n_samples=64, seed=seed)
    assert isinstance(prediction, ClassPrediction)
    return prediction.entropy


def last_layer(posterior: Posterior, x: Tensor, y: Tensor) -> Score:
    """Squared Mahalanobis distance to the nearest class before the last layer."""
    *layers, _ = [m for m in posterior.to_module().modules() if isinstance(m, nn.Linear)]

    def features(x: Tensor) -> Tensor:
        x = x.flatten(1)
        with torch.no_grad():
            for layer in layers:
                x = layer(x).relu()
        return x.double()

    known = features(x)
    centres = torch.stack([known[y == c].mean(0) for c in range(int(y.max()) + 1)])
    shared = torch.cov((known - centres[y]).T)
    ridge = 0.05 * shared.diagonal().mean() * torch.eye(len(shared), dtype=torch.float64)
    precision = torch.linalg.inv(shared + ridge)

    def score(x: Tensor) -> Tensor:
        gaps = features(x)[:, None] - centres
        return torch.einsum("ncf,fg,ncg->nc", gaps, precision, gaps).amin(1)

    return score


def neighbour(x: Tensor) -> Score:
    """Distance to the fifth nearest training example."""
    known = x.flatten(1)
    return lambda new: torch.cat(
        [torch.cdist(part, known).kthvalue(5).values for part in new.flatten(1).split(500)]
    )


def measured(case: Case, seed: int) -> dict[str, dict[str, float]]:
    """The AUROC of each way against each stranger, and numbers of the known test examples."""
    posterior, known = trained(case, seed), Familiarity.of(case.train[0], seed=seed)
    ways: dict[str, Score] = {
        "entropy": partial(entropy, posterior, seed),
        "last layer": last_layer(posterior, *case.train),
        "neighbour": neighbour(case.train[0]),
        "familiarity": known.distance,
    }
    numbers = {
        way: {name: auroc(score(case.test[0]), score(x)) for name, x in case.strangers.items()}
        for way, score in ways.items()
    }
    scored = evaluate(posterior, case.test, n_samples=64, familiarity=known, abstain=0.95)
    numbers["familiarity"] |= {
        "error": scored["error"],
        "error_answered": scored["error_answered"],
        "abstained_known": 1 - scored["answered"],
        "bytes": len(known.to_bytes()),
        **{
            f"abstained_{name}": float((known.score(x) < 0.05).double().mean())
            for name, x in case.strangers.items()
        },
    }
    return numbers


def main(arguments: list[str] | None = None) -> int:
    """Run the study from the command line."""
    parser = study_parser(__doc__, quick="digits alone, one seed", full="all sets",
                          required=True, seeds=3, device=False)  # fmt: skip
    options: argparse.Namespace = parser.parse_args(arguments)
    seeds = list(range(1 if options.quick else options.seeds))
    run = Run("familiarity", arguments, options, settings={"abstain": 0.95})
    for name in ("digits",) if options.quick else ("digits", "mnist", "fashion-mnist"):
        if not run.wants(f"{name}, familiarity", {}, data=name):
            continue
        began = time.perf_counter()
        cases = [digits_case(s) if name == "digits" else image_case(name, s) for s in seeds]
        each = [measured(case, seed) for case, seed in zip(cases, seeds, strict=True)]
        for way in each[0]:
            row = make_row(f"{name}, {way}", {}, [one[way] for one in each], seeds=seeds,
                           seconds=time.perf_counter() - began)  # fmt: skip
            run.add({**row, "data": name}, [key for key in SHOWN if key in each[0][way]])
    return run.finish((*SHOWN, "error", "error_answered", "abstained_known"))


if __name__ == "__main__":
    raise SystemExit(main())
