"""Fine-tuning by low-rank adapters: a posterior over them against AdamW.

    python -m studies.adapters --full --seeds 2 --out results/adapters.json   # 20 minutes, one core
    python -m studies.adapters --full --held-out --rows text/flat_vi --kl 0.1,0.3 --epochs 5,10
    python -m studies.adapters --quick                                        # a minute

Two tasks, each with few examples of what is new:

- text: a character model (`nets.gpt`: 3 blocks, 96 features, 64 characters of context) learns the
  first half of tinyshakespeare, then 256 windows of 64 characters of the second half: N = 16,384
  characters. 512 windows are the test text, 512 others are held out. Adapters of rank 8 stand
  beside all linear maps of the blocks.
- images: the published ResNet-56 of CIFAR-10 (`studies.pretrained_resnet`) learns the ten classes
  of Fashion-MNIST, in three equal channels and padded to 32 x 32, from N = 500 images. 1,000
  others are held out, 1,000 of the test images are scored. Adapters of rank 4 stand beside the
  convolutions of the last two blocks, and the last layer is new. What comes before them is
  frozen, so that its outputs are computed once.

Methods: `adamw` (point estimate, decoupled weight decay), `flat_vi` (Gaussian posterior), `sbnn`
(spike and slab), and `ranks`: `sbnn` that loses half of all ranks by their evidence while it
learns. Posteriors predict by 20 draws (mc_), and by their mean, which `merged` turns into a plain
network: `merged` is the largest difference of the outputs of the two on the scored examples.

The last part of the training examples chose the settings of every method (`--held-out`), before
the test examples were read.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesieve import MAP, SBNN, FlatVI, Problem, Schedule, likelihoods, load_data, priors
from bayesieve.assess.predict import as_point
from bayesieve.data.examples import Examples
from bayesieve.data.files import data_root
from bayesieve.data.images import PixelScale
from bayesieve.engines import Engine
from bayesieve.nets import gpt
from bayesieve.nets.adapters import adapters, merged
from bayesieve.sieve.schedule import GradualUnits
from bayesieve.training.fit import Fit
from bayesieve.training.launch import fit
from studies import images
from studies.char_gpt import TEXT, Text, windows
from studies.harness import Row, Run, chosen, joined, make_row, numbers, seeded, study_parser
from studies.pretrained_resnet import PIXELS, published

TASKS = ("text", "images")
METHODS = ("adamw", "flat_vi", "sbnn", "ranks")
ROWS = tuple(f"{task}/{method}" for task in TASKS for method in METHODS)
_CONTEXT, _BATCH = 64, 32
_TUNED_BLOCKS = 2  # the last ones of ResNet-56
_NAMES = ("nll", "error", "ece")
_LISTS = ("epochs", "lr", "kl", "prior_std", "init_std", "weight_decay")


@dataclass(frozen=True)
class Setting:
    """One row."""

    task: str
    method: str
    n: int  # windows or images that are learned
    n_scored: int
    rank: int
    epochs: int
    lr: float
    kl: float = 1.0  # weight of the KL term
    prior_std: float = 0.1  # of the slab, where there is one
    init_std: float = 0.01  # of the posterior, at the start
    weight_decay: float = 0.01  # of point estimates
    first_steps: int = 0  # of the text model, on the first half

    @property
    def name(self) -> str:
        """Task and method.

        Example:
            >>> setting_of("text/sbnn").name
            'text/sbnn'
        """
        return f"{self.task}/{self.method}"


_SIZES: dict[str, dict[str, Any]] = {
    "text": {"n": 256, "n_scored": 512, "rank": 8, "epochs": 6, "lr": 3e-3, "first_steps": 800},
    "images": {"n": 500, "n_scored": 1000, "rank": 4, "epochs": 15, "lr": 5e-3},
}
# Chosen with --held-out, before the test examples were read; see docs/finetuning.md.
CHOSEN: dict[str, dict[str, Any]] = {
    "text/adamw": {"epochs": 8},
    "text/flat_vi": {"epochs": 8, "kl": 0.05},
    "text/sbnn": {"epochs": 8, "kl": 0.01},
    "images/adamw": {"epochs": 30, "lr": 0.01},
    "images/flat_vi": {"epochs": 30, "lr": 0.01, "kl": 0.01, "init_std": 0.03},
    "images/sbnn": {"epochs": 30, "lr": 0.01, "kl": 0.003},
}


def setting_of(row: str) -> Setting:
    """The chosen setting of a row."""
    task, _, method = row.partition("/")
    sizes = {**_SIZES[task], **CHOSEN.get(row, CHOSEN.get(f"{task}/sbnn", {}))}
    return Setting(task, method, **sizes)


@dataclass(frozen=True, eq=False)
class Task:
    """A trained network, where its adapters stand, and what it has to learn.

    Args:
        network: trained on other data.
        target: names of the maps that get adapters.
        whole: names of the modules that are new.
        train: what is learned.
        scored: what is scored.
    """

    network: nn.Module
    target: tuple[str, ...]
    whole: tuple[str, ...]
    train: Examples
    scored: Examples


def text_task(setting: Setting, *, held_out: bool) -> Task:
    """A character model of the first half of the text, and windows of the second."""
    text = Text.read(data_root() / TEXT)
    codes = torch.cat([text.train, text.test])
    first, second = codes.chunk(2)
    net = seeded(0, gpt, len(text.symbols), _CONTEXT, n_blocks=3, width=96, n_heads=4)
    problem = Problem(net, likelihoods.Categorical(), windows(first, _CONTEXT, _CONTEXT // 2))
    trained = fit(problem, MAP(lr=3e-3, weight_decay=0.1), steps=setting.first_steps, seed=0,
                  batch_size=_BATCH, schedule=Schedule(lr="cosine", warmup=0.05))  # fmt: skip
    new = windows(second, _CONTEXT, _CONTEXT)
    order = torch.randperm(len(new), generator=torch.Generator().manual_seed(0))
    train, scored = _parts(new, order, setting, held_out=held_out)
    return Task(trained.posterior.to_module(), ("blocks.*",), (), train, scored)


def _parts(
    data: Examples, order: Tensor, setting: Setting, *, held_out: bool
) -> tuple[Examples, Examples]:
    """Examples to learn, and others to score: the next ones, or the last ones of all."""
    begin = setting.n if held_out else len(order) - setting.n_scored
    return data.subset(order[: setting.n]), data.subset(order[begin : begin + setting.n_scored])


class Head(nn.Module):
    """The last blocks of ResNet-56 and a new last layer."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Maps, (n, 64, 8, 8), to logits, (n, 10)."""
        return self.linear(self.blocks(x).mean((2, 3)))


def image_task(setting: Setting, *, held_out: bool) -> Task:
    """Fashion-MNIST for the end of ResNet-56, as the maps that its beginning makes of it."""
    data = load_data("fashion-mnist")
    net = published(56, data_root()).eval()
    source = torch.Generator().manual_seed(0)
    order = torch.randperm(len(data.train), generator=source)
    train, scored = _parts(data.train, order, setting, held_out=held_out)
    if not held_out:
        few = torch.randperm(len(data.test), generator=source)[: setting.n_scored]
        scored = data.test.subset(few)
    blocks = list(net.layer3)
    rest = nn.Sequential(
        net.conv1, net.bn1, nn.ReLU(), net.layer1, net.layer2, *blocks[:-_TUNED_BLOCKS]
    )
    made = partial(maps, rest, data.preprocessing)
    head = seeded(0, Head, blocks[-_TUNED_BLOCKS:])
    return Task(head, ("blocks.*",), ("linear",), made(train), made(scored))


def maps(net: nn.Module, recipe: dict[str, Any], part: Examples) -> Examples:
    """Features that the frozen beginning of a network makes of grey images, (n, 1, 28, 28)."""
    scale, outputs = PixelScale.of(recipe), []
    mean, std = (torch.tensor(values)[:, None, None] for values in (PIXELS.mean, PIXELS.std))
    with torch.no_grad():
        for x in part.x.split(250):
            colour = F.pad(scale.pixels(x), (2, 2, 2, 2)).expand(-1, 3, -1, -1)
            outputs.append(net((colour - mean) / std))
    return Examples(torch.cat(outputs), part.y)


def engine_of(setting: Setting) -> Engine[Any]:
    """AdamW, or a variational engine."""
    if setting.method == "adamw":
        return MAP(lr=setting.lr, weight_decay=setting.weight_decay)
    if setting.method == "flat_vi":
        normal = priors.Normal(setting.prior_std)
        return FlatVI(normal, lr=setting.lr, init_std=setting.init_std, local=False)
    prior = priors.SpikeSlab(slab_std=setting.prior_std, spike_std=0.01, slab_prob=0.5)
    return SBNN(prior, lr=setting.lr, init_std=setting.init_std, local=False)


def tuned(setting: Setting, task: Task, seed: int) -> Fit:
    """The adapters of one seed."""
    net = seeded(seed, adapters, task.network, setting.rank, task.target, whole=task.whole)
    problem = Problem(net, likelihoods.Categorical(), task.train)
    pruning = GradualUnits(0.5, start=0.2, end=0.7) if setting.method == "ranks" else None
    return fit(problem, engine_of(setting), epochs=setting.epochs, batch_size=_BATCH, seed=seed,
               schedule=Schedule(lr="cosine", warmup=0.05, kl=setting.kl),
               pruning=pruning)  # fmt: skip


def scores(run: Fit, task: Task) -> dict[str, float]:
    """Scores at the mean and of draws, ranks left, and how far the merged network is from it."""
    model = run.sparse()
    drawn = () if isinstance(run.engine, MAP) else _NAMES
    result = images.mean_and_draws(model, task.scored, _NAMES, drawn)
    adapted = model.to_module()
    plain, few = merged(adapted), task.scored.x[:100]
    ups = [p for name, p in adapted.named_parameters() if name.endswith("up.weight")]
    with torch.no_grad():
        difference = (plain(few) - adapted(few)).abs().max() / adapted(few).abs().max()
    result["ranks"] = sum(int(up.flatten(2).any(2).any(0).sum()) if up.dim() > 2
                          else int(up.any(0).sum()) for up in ups)  # fmt: skip
    return {**result, "merged": float(difference), "accuracy": 100 * (1 - result["error"])}


def run_setting(setting: Setting, task: Task, seeds: int) -> Row:
    """Tune and score one row."""
    began, each = time.perf_counter(), []
    for seed in range(seeds):
        run = tuned(setting, task, seed)
        each.append({**scores(run, task), "fit_seconds": round(run.seconds, 1)})
    return make_row(setting.name, asdict(setting), each, seeds=list(range(seeds)),
                    spread=("nll",), engine=repr(run.engine),
                    seconds=round(time.perf_counter() - began, 1))  # fmt: skip


def settings(options: argparse.Namespace) -> list[Setting]:
    """The rows asked for, each with every combination of the flags that are lists."""
    every = []
    given = {name: getattr(options, name) for name in _LISTS if getattr(options, name) is not None}
    for row in options.rows:
        plain = setting_of(row)
        if not options.full:
            few = 20 if plain.task == "text" else 0
            plain = replace(plain, n=40, n_scored=20, epochs=1, first_steps=few)
        for values in product(*given.values()):
            new = dict(zip(given, values, strict=True))
            new |= {"epochs": int(new["epochs"])} if "epochs" in new else {}
            every.append(replace(plain, **new))
    return every


def main(arguments: list[str] | None = None) -> int:
    """Tune and score the rows, writing the record after each."""
    parser = study_parser(__doc__, "--held-out", "--budget", "--join", seeds=1, device=False,
                          quick="40 examples, one pass")  # fmt: skip
    parser.add_argument("--rows", type=lambda text: chosen("adapters", "row", text, ROWS),
                        default=list(ROWS), help=f"comma list of {', '.join(ROWS)}")  # fmt: skip
    for name in _LISTS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=numbers, help="comma list instead of the chosen value")
    options = parser.parse_args(arguments)
    if options.join:
        joined(options.join, "adapters", options.out, ("--rows", "--out"))
        return 0
    run = Run("adapters", arguments, options, data="tinyshakespeare and Fashion-MNIST",
              settings={"batch_size": _BATCH})  # fmt: skip
    tasks: dict[str, Task] = {}
    make = {"text": text_task, "images": image_task}
    for setting in settings(options):
        if run.wants(setting.name, asdict(setting)):
            if setting.task not in tasks:
                tasks[setting.task] = make[setting.task](setting, held_out=options.held_out)
                if not tasks[setting.task].whole:
                    network = as_point(tasks[setting.task].network, likelihoods.Categorical())
                    scored = images.mean_and_draws(network, tasks[setting.task].scored, _NAMES, ())
                    run.notes[f"{setting.task} before"] = scored
            run.add(run_setting(setting, tasks[setting.task], options.seeds),
                    ("accuracy", "nll", "ece", "mc_nll", "mc_ece", "ranks"))  # fmt: skip
    return run.finish(("accuracy", "nll", "ece", "mc_error", "mc_nll", "mc_ece", "ranks", "merged"))


if __name__ == "__main__":
    raise SystemExit(main())
