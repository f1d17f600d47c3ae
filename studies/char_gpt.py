"""A character model of Shakespeare, sieved while it learns (nanoGPT's network and text).

    python -m studies.char_gpt --quick                        # a minute on one CPU core
    python -m studies.char_gpt --full --rows sbnn/90,sbnn/95 --seeds 3 --out results/char_gpt.json
    python -m studies.char_gpt --full --held-out --rows sbnn/95 --kl 0.02,0.03 --dropout 0.1,0.2
    python -m studies.char_gpt --draw results/char_gpt.json --figures docs/images

Protocol: tinyshakespeare, 1,115,394 characters of 65 kinds; the first 90 % train, the last 10 % are
the test text. 6 blocks, 6 heads, 384 features, 256 characters of context, 10.7 million weights
(`nets.gpt`). nanoGPT states 1.4697 nats per character for this network and text. Training windows
begin every 32 characters and count 1/8 each, so that N is the number of characters. The test text
is cut into windows that do not overlap, so that a character is predicted from 128 on average.
`--held-out` scores the last ninth of the training text instead, for choosing settings.

Rows are method/zeros in %:

- `map`: AdamW with dropout; `magnitude`: the same, cut gradually by the size of a weight.
- `sbnn`: spike-and-slab posterior, cut gradually by signal to noise; scored at the mean weights and
  averaged over draws.
- `bmr`: model reduction by evidence, topped up by signal to noise where the evidence removes less.
- `units`: the same posterior as `sbnn` loses half its heads and hidden units and is compacted.
- `post-hoc`: the weights of a `map` network with the least |mean| / std of a diagonal Laplace
  posterior, or the smallest ones, are cut without any training.

Departures from Bayes' rule: the KL weighs less than 1, and dropout stays on in training.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve import BMR, MAP, SBNN, Problem, Schedule, laplace, likelihoods, priors, prune
from bayesieve.core.execution import Precision
from bayesieve.core.inputs import one_input
from bayesieve.core.layout import Roles
from bayesieve.core.network import Network
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.data.examples import Examples
from bayesieve.data.files import data_root
from bayesieve.engines import Engine
from bayesieve.engines.bmr import Reduction
from bayesieve.errors import DataError
from bayesieve.fast.backend import CompileMode
from bayesieve.nets import gpt
from bayesieve.sieve.compact import compact, report_of
from bayesieve.sieve.groups import groups_of
from bayesieve.sieve.ranking import ScoreName
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.schedule import GradualPruning, GradualUnits
from bayesieve.sieve.unit_rules import median_ms
from bayesieve.training.fit import Fit
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Pruning
from studies import images
from studies.figures import lines
from studies.harness import (
    Row,
    Run,
    asked,
    chosen,
    make_row,
    numbers,
    only_draws,
    seeded,
    study_parser,
)

PUBLISHED = 1.4697  # nanoGPT, dense
TEXT = Path("text") / "tinyshakespeare.txt"
ROWS = ("map/0", "sbnn/0", "sbnn/90", "sbnn/95", "sbnn/98", "bmr/90", "magnitude/90",
        "magnitude/95", "post-hoc/30", "post-hoc/50", "post-hoc/70", "units/50")  # fmt: skip
_ROLES = Roles(prune=("positions.weight",))  # a matrix like the others
_STRIDE = 32
_INFORMED_BY = 512  # windows that the curvature of a trained network is measured on
_READ = 8  # windows at once, whose time is taken
_SAMPLE = 400  # characters of text in the record
_QUICK_CHARACTERS, _QUICK_STEPS, _QUICK_SAMPLE = 60_000, 60, 40
_QUICK_ROWS = ("map/0", "sbnn/90", "post-hoc/50", "units/50")
_LISTS = ("dropout", "kl", "lr", "init_std", "slab_std", "spike_std", "prune_until")


@dataclass(frozen=True)
class Sizes:
    """The network."""

    context: int = 256
    n_blocks: int = 6
    width: int = 384
    n_heads: int = 6


@dataclass(frozen=True)
class Setting:
    """One row."""

    method: str
    zeros: float  # percent of all parameters, or of the units
    steps: int = 6000
    dropout: float = 0.2
    kl: float = 0.02
    lr: float = 1e-3
    batch_size: int = 64
    spike_std: float = 0.01
    slab_std: float = 0.1
    init_std: float = 0.003
    weight_decay: float = 0.1  # of point estimates
    prune_from: float = 0.1  # of the run
    prune_until: float = 0.6
    precision: Precision = "float32"
    compile: CompileMode = "off"
    sizes: Sizes = Sizes()

    @property
    def name(self) -> str:
        """Method and zeros in percent.

        Example:
            >>> Setting("sbnn", 98.5).name
            'sbnn/98.5'
        """
        return f"{self.method}/{self.zeros:g}"


# Chosen with --held-out, before the test text was read; see docs/studies/char_gpt.md.
CHOSEN: dict[str, dict[str, Any]] = {
    "map/0": {"steps": 3000},
    "sbnn/0": {},
    "sbnn/90": {},
    "sbnn/95": {"dropout": 0.1, "kl": 0.03},
    "sbnn/98": {"dropout": 0.1, "kl": 0.03, "lr": 2e-3},
    "bmr/90": {"lr": 1e-2},
    "magnitude/90": {"steps": 4000},
    "magnitude/95": {"steps": 4000},
    "units/50": {},
}


def setting_of(row: str) -> Setting:
    """The chosen setting of a row.

    Example:
        >>> setting_of("sbnn/95").dropout
        0.1
    """
    method, _, zeros = row.partition("/")
    dense = CHOSEN["map/0"] if method == "post-hoc" else {}
    return Setting(method, float(zeros), **CHOSEN.get(row, dense))


@dataclass(frozen=True, eq=False)
class Text:
    """A text as numbers: the kinds of characters in order, and the two parts, (n,) int64 each."""

    symbols: str
    train: Tensor
    test: Tensor

    @classmethod
    def read(cls, path: Path, *, held_out: bool = False, few: int | None = None) -> "Text":
        """Split a file after 90 %; `held_out` splits the first part again, after 8/9 of it."""
        if not path.is_file():
            raise DataError(
                f"char_gpt: there is no {path}. Put karpathy/char-rnn's tinyshakespeare.txt there, "
                "or set BAYESIEVE_DATA to the folder that has text/."
            )
        characters = path.read_text(encoding="utf-8")[:few]
        symbols = "".join(sorted(set(characters)))
        number = {symbol: i for i, symbol in enumerate(symbols)}
        codes = torch.tensor([number[symbol] for symbol in characters])
        end = int(0.9 * len(codes))
        if held_out:
            codes, end = codes[:end], end * 8 // 9
        return cls(symbols, codes[:end], codes[end:])

    def written(self, codes: Tensor) -> str:
        """Numbers, (n,), as characters."""
        return "".join(self.symbols[i] for i in codes.tolist())


def windows(codes: Tensor, context: int, stride: int) -> Examples:
    """Windows of a text, (n, context), and the characters after each of their places.

    Example:
        >>> cut = windows(torch.arange(9), 4, 2)
        >>> cut.x.tolist(), cut.y[0].tolist()
        ([[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]], [1, 2, 3, 4])
    """
    cut = codes.unfold(0, context + 1, stride)
    return Examples(cut[:, :-1].contiguous(), cut[:, 1:].contiguous())


def problem_of(setting: Setting, text: Text, seed: int, device: str) -> Problem:
    """The network and the training windows; overlapping windows share the weight of a character."""
    sizes = asdict(setting.sizes)
    net = seeded(seed, gpt, len(text.symbols), dropout=setting.dropout, **sizes)
    train = windows(text.train, setting.sizes.context, _STRIDE)
    share = torch.full((len(train),), _STRIDE / setting.sizes.context)
    problem = Problem(net, likelihoods.Categorical(), train, weight=share, roles=_ROLES,
                      precision=setting.precision)  # fmt: skip
    return problem.to(device)


def engine_of(setting: Setting) -> Engine[Any]:
    """AdamW, or a variational engine; BMR's learning rate is in units of its prior's width."""
    if setting.method in ("map", "magnitude", "post-hoc"):
        return MAP(lr=setting.lr, weight_decay=setting.weight_decay)
    if setting.method == "bmr":
        reduction = Reduction(start=setting.prune_from, end=setting.prune_until, kl=1.0)
        return BMR(reduction=reduction, lr=setting.lr, init_std=setting.init_std, local=False)
    prior = priors.SpikeSlab(slab_std=setting.slab_std, spike_std=setting.spike_std, slab_prob=0.5)
    return SBNN(prior, lr=setting.lr, init_std=setting.init_std, local=False)


def pruning_of(setting: Setting, network: Network) -> Pruning | None:
    """Gradual cuts, for the methods that make them; of units, heads and hidden ones go."""
    start, end = setting.prune_from, setting.prune_until
    if setting.method == "units":
        kept = {
            name: round(len(entries) * (1 - setting.zeros / 100))
            for name, entries in groups_of(network).items()
            if name.startswith("blocks")
        }
        return GradualUnits(kept, start, end)  # fmt: skip
    if setting.method not in ("sbnn", "bmr", "magnitude") or not setting.zeros:
        return None
    score: ScoreName = "magnitude" if setting.method == "magnitude" else "snr"
    return GradualPruning(setting.zeros / 100, start, end, score)


def train(
    setting: Setting, text: Text, seed: int, device: str, dense: dict[int, Fit] | None = None
) -> Fit:
    """Train one network; `post-hoc` takes that of `map`, which `dense` keeps by seed."""
    if dense is not None and setting.method in ("map", "post-hoc"):
        if seed not in dense:
            dense[seed] = train(setting, text, seed, device)
        return dense[seed]
    problem = problem_of(setting, text, seed, device)
    schedule = Schedule(lr="cosine", warmup=0.02, kl=setting.kl, compile=setting.compile)
    pruning = pruning_of(setting, problem.network)
    return fit(problem, engine_of(setting), steps=setting.steps, batch_size=setting.batch_size,
               seed=seed, schedule=schedule, pruning=pruning)  # fmt: skip


def scores(model: Posterior | SparseModel, test: Examples, *, draws: bool) -> dict[str, float]:
    """Nats per character and calibration at the mean weights and, with draws, of their average."""
    names = ("nll", "error", "ece", "zeros", "weights")
    return images.mean_and_draws(model, test, names, ("nll", "error", "ece") if draws else ())


def cut_afterwards(run: Fit, zeros: float, test: Examples) -> dict[str, float]:
    """Cut a trained network without training: by Laplace's |mean| / std, and by size."""
    posterior, problem = run.posterior, run.problem
    some = torch.linspace(0, problem.n_data - 1, _INFORMED_BY, device=problem.device).long()
    part = Problem(posterior.to_module(), problem.likelihood, (problem.x[some], problem.y[some]),
                   roles=_ROLES)  # fmt: skip
    by_snr = scores(prune(laplace(part), keep_zeros(zeros)), test, draws=False)
    by_size = scores(prune(posterior, keep_zeros(zeros, "magnitude")), test, draws=False)
    dense = scores(posterior, test, draws=False)
    return {**by_snr, "magnitude_nll": by_size["nll"], "dense_nll": dense["nll"]}


def small_network(model: SparseModel, example: Tensor) -> dict[str, float]:
    """Compact a network; its size, and how much faster it reads windows, (n, context)."""
    whole, small = model.posterior.to_module().eval(), compact(model, example).eval()
    change = report_of(small)
    found = {"parameters": change.parameters[1], "difference": change.max_difference}
    for device in dict.fromkeys((example.device.type, "cpu")):
        there = example.to(device)
        before, after = (median_ms(net.to(device), there, rounds=20) for net in (whole, small))
        found[f"tokens_per_second_{device}"] = round(1000 * example.numel() / after)
        found[f"speedup_{device}"] = round(before / after, 2)
    return found


def run_setting(
    setting: Setting,
    text: Text,
    seeds: int,
    device: str,
    n_written: int = _SAMPLE,
    dense: dict[int, Fit] | None = None,
) -> Row:
    """Train and score one row, a network per seed; the last one writes some text."""
    began, each, seconds = time.perf_counter(), [], []
    test = windows(text.test, setting.sizes.context, setting.sizes.context)
    for seed in range(seeds):
        run = train(setting, text, seed, device, dense)
        model = run.sparse()
        if setting.method == "post-hoc":
            one = cut_afterwards(run, setting.zeros / 100, test)
        else:
            one = scores(model, test, draws=not isinstance(run.engine, MAP))
        if setting.method == "units":
            one |= small_network(model, one_input("char_gpt", run.problem.x)[:_READ])
        each.append(one)
        seconds.append(round(run.seconds, 2))
    beginning = text.test[None, : setting.sizes.context].to(device)
    written = continue_text(model.to_module().eval(), beginning, n_written, seed=0,
                            context=setting.sizes.context)  # fmt: skip
    return make_row(
        setting.name, asdict(setting), each, seeds=list(range(seeds)), spread=("nll",),
        seconds=round(time.perf_counter() - began, 2), fit_seconds=seconds, engine=repr(run.engine),
        text=text.written(written[0, setting.sizes.context :]),
    )  # fmt: skip


@torch.no_grad()
def continue_text(
    net: nn.Module, symbols: Tensor, n_new: int, *, context: int, seed: int = 0
) -> Tensor:
    """Append symbols, each drawn from what the network predicts after the last.

    Args:
        net: from symbols (n, positions) to logits (n, positions, symbols), in evaluation mode.
        symbols: (n, m), the beginnings, int64.
        n_new: symbols to append.
        context: positions that the network takes at most; the last ones are given.
        seed: of the draws.

    Returns:
        (n, m + n_new).
    """
    generator = torch.Generator(symbols.device).manual_seed(seed)
    for _ in range(n_new):
        logits = net(symbols[:, -context:])[:, -1]
        new = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        symbols = torch.cat([symbols, new], 1)
    return symbols


def settings(options: argparse.Namespace) -> list[Setting]:
    """The rows asked for, each with every combination of the flags that are lists."""
    every: list[Setting] = []
    lists = asked(options, *_LISTS)
    for row in options.rows:
        plain = replace(setting_of(row), precision=options.precision, compile=options.compile)
        if not options.full:
            tiny = Sizes(context=64, n_blocks=2, width=64, n_heads=4)
            plain = replace(plain, steps=_QUICK_STEPS, batch_size=16, sizes=tiny)
        if options.steps is not None:
            plain = replace(plain, steps=options.steps)
        for values in product(*lists.values()):
            every.append(replace(plain, **dict(zip(lists, values, strict=True))))
    return every


def main(arguments: list[str] | None = None) -> int:
    """Train and score the rows, writing the record after each."""
    parser = study_parser(__doc__, "--held-out", "--budget", "--precision", seeds=1,
                          quick="two small blocks, 60 steps, a part of the text",
                          figures="char_gpt.png", precision="bf16")  # fmt: skip
    parser.add_argument("--rows", type=lambda text: chosen("char_gpt", "row", text, ROWS),
                        default=None, help=f"comma list of {', '.join(ROWS)}")  # fmt: skip
    parser.add_argument("--steps", type=int, help="instead of the chosen number")
    for name in _LISTS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=numbers, help="comma list instead of the chosen value")
    options = parser.parse_args(arguments)
    if only_draws(options, "char_gpt", draw):
        return 0
    if options.rows is None:
        options.rows = list(ROWS if options.full else _QUICK_ROWS)
    few, n_written = (None, _SAMPLE) if options.full else (_QUICK_CHARACTERS, _QUICK_SAMPLE)
    text = Text.read(data_root() / TEXT, held_out=options.held_out, few=few)
    run = Run("char_gpt", arguments, options, data="tinyshakespeare",
              settings={"n_characters": len(text.train)})  # fmt: skip
    dense: dict[tuple[float, ...], dict[int, Fit]] = {}
    for setting in settings(options):
        if run.wants(setting.name, asdict(setting)):
            alike = dense.setdefault((setting.steps, setting.dropout, setting.lr), {})
            row = run_setting(setting, text, options.seeds, options.device, n_written, alike)
            run.add(row, ("nll", "mc_nll", "ece", "zeros"))
    return run.finish(("nll", "nll_standard_error", "mc_nll", "ece", "mc_ece", "weights"), draw)


_SHOWN = {
    "sbnn": "SBNN", "units": "SBNN, units", "bmr": "BMR", "magnitude": "AdamW, smallest go",
    "post-hoc": "AdamW, cut afterwards",
}  # fmt: skip
_HIGHEST = 1.6  # nats of the picture; beyond it a network is ruined


def draw(rows: Sequence[Row], folder: Path) -> Path:
    """Nats per character, with their standard error, against the weights left in %, by method."""
    series: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for row in sorted(rows, key=lambda row: -row["setting"]["zeros"]):
        method, numbers = row["setting"]["method"], row["metrics"]
        if method in _SHOWN:
            shares, values, errors = series.setdefault(_SHOWN[method], ([], [], []))
            shares.append(100 - row["setting"]["zeros"])
            values.append(numbers["nll"])
            errors.append(numbers.get("nll_standard_error") or 0.0)
    if not series:
        raise ValueError("char_gpt: no row of sbnn, bmr, units, magnitude or post-hoc to draw.")
    return lines(series, folder / "char_gpt.png", title="Characters of Shakespeare",
                 xlabel="parameters left in %, log scale", ylabel="nats per character",
                 level=PUBLISHED, level_name=f"nanoGPT, dense ({PUBLISHED:.3f})", log_x=True,
                 top=_HIGHEST)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
