"""How many hidden units EM-TDAMP keeps by itself, where the number that is needed is known.

    python -m studies.tdamp_support --full --out results/tdamp_support.json
    python -m studies.tdamp_support --quick          # one task, one share, under a minute

A teacher has 20 orthogonal projections of 20 inputs, rectified; a student of 100 units learns what
it says, with noise of 0.2 of the target's standard deviation. `TDAMP(keep=None)` removes units by
their joint evidence, read at a share τ of the data (`judged_at`). Rows, three seeds each:

    tasks       20 outputs, or 10, that mix the projections at random; 2,000 examples, or 6,000
    few         3 such outputs, and one that adds or subtracts every projection; τ is then at least
                1/3 and 1 with 2,000 examples. "forced" keeps 20 units by `keep`
    mnist       784-128-10 with default settings on 10,000 training images, scored on 10,000 other
                training images; how many units it needs is not known

"units" are those with a weight that is not 0, "error" is the root mean squared error against the
teacher without noise in standard deviations of the target. The share was chosen by these rows; no
test image is read.
"""

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from bayesieve import TDAMP, Problem, likelihoods, priors
from bayesieve.core.batch import Batch
from bayesieve.core.posterior import Posterior
from bayesieve.data import data_info
from bayesieve.nets import mlp
from studies.harness import Run, make_row, seeded, study_parser
from studies.tdamp_mnist import Splits, cases, n_units, run_once, splits

SHARES = (0.1, 0.2, 0.3, 0.5)
N_UNITS, N_NEEDED, NOISE = 100, 20, 0.2
_PASSES, _PRUNE = 26, (8, 22)


@dataclass(frozen=True)
class Task:
    """What the teacher says, and how the student removes units."""

    outputs: int
    n: int  # examples
    judged_at: float = 0.2
    keep: float | None = None  # fraction of the units to end with
    batch_size: int = 100

    @property
    def name(self) -> str:
        """Outputs, examples and rule.

        Example:
            >>> Task(20, 2000, 0.3).name, Task(1, 2000, keep=0.2).name
            ('20/2000/0.3', '1/2000/forced')
        """
        return f"{self.outputs}/{self.n}/{'forced' if self.keep else f'{self.judged_at:g}'}"

    def draw(self, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs, (n, 20), and what the teacher says without noise, (n, outputs).

        Standardised over the examples; a single output takes every projection with weight 1 or -1.
        """

        def normal(*shape: int, offset: int) -> Tensor:
            return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + offset))

        x = normal(self.n, N_NEEDED, offset=0)
        basis = torch.linalg.qr(normal(N_NEEDED, N_NEEDED, offset=1))[0]
        mixing = normal(N_NEEDED, self.outputs, offset=2)
        y = torch.relu(x @ basis) @ (mixing.sign() if self.outputs == 1 else mixing)
        return x, (y - y.mean(0)) / y.std(0)


def learned(task: Task, seed: int) -> tuple[Posterior, Tensor, Tensor]:
    """The student's posterior, the inputs and the targets without noise."""
    x, clean = task.draw(seed)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed + 3))
    y = clean + NOISE * noise
    model = seeded(seed, mlp, (N_NEEDED,), task.outputs, widths=(N_UNITS,))
    problem = Problem(model, likelihoods.Gaussian(NOISE), (x, y))
    variance = 3.0
    prior = priors.GroupSparse(hidden_variance=variance, output_variance=variance)
    if task.outputs == 1:
        prior = priors.GroupSparse(hidden_variance=variance)
    engine = TDAMP(prior, keep=task.keep, prune_passes=_PRUNE, judged_at=task.judged_at, power=1.0,
                   memory=1.0)  # fmt: skip
    state = engine.init(problem, torch.Generator().manual_seed(seed))
    for i in range(_PASSES):
        order = torch.randperm(task.n, generator=torch.Generator().manual_seed(i))
        for index in order.split(task.batch_size):
            engine.step(problem, state, Batch(x[index], y[index]))
    return engine.posterior(problem, state), x, clean


def scores(task: Task, seed: int) -> dict[str, float]:
    """Units kept, and the error against the teacher."""
    posterior, x, clean = learned(task, seed)
    outputs = posterior.network.outputs(posterior.mean[None], x, {})[0]
    return {"units": n_units(posterior), "error": float((outputs - clean).square().mean().sqrt())}


def digits(judged_at: float, data: Splits) -> dict[str, float]:
    """Units, accuracy and NLL on training images that were not trained on, seed 0."""
    engine, widths = cases(10)["tdamp-learned"]
    assert isinstance(engine, TDAMP)
    run, history = run_once((replace(engine, judged_at=judged_at), widths), data, 0, 10)
    last = history[-1]
    return {"units": n_units(run.posterior), "accuracy": last["accuracy"], "nll": last["nll"]}


def tasks(*, quick: bool) -> list[Task]:
    """Every task, at every share where it has a say."""
    if quick:
        return [Task(20, 500)]
    several = [Task(outputs, n, share)
               for share in SHARES for n in (2000, 6000) for outputs in (20, 10)]  # fmt: skip
    few = [Task(3, 2000), Task(1, 2000, batch_size=50), Task(1, 2000, keep=0.2, batch_size=50),
           Task(1, 6000, 0.3, batch_size=50), Task(1, 6000, keep=0.2, batch_size=50)]  # fmt: skip
    return several + few


def main(arguments: list[str] | None = None) -> int:
    """Count units task by task and write one record."""
    parser = study_parser(__doc__, quick="one task of 500 examples, one seed", seeds=3,
                          device=False)  # fmt: skip
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds = 1
    run = Run("tdamp_support", arguments, options, test_reads="never")
    seeds = [10 * i for i in range(options.seeds)]
    for task in tasks(quick=options.quick):
        if run.wants(task.name, asdict(task)):
            each = [scores(task, seed) for seed in seeds]
            run.add(make_row(task.name, asdict(task), each, seeds=seeds), ("units", "error"))
    if not options.quick and data_info("mnist").found:
        data = splits(10_000)
        for share in SHARES:
            name, setting = f"mnist/{share:g}", {"judged_at": share}
            if run.wants(name, setting):
                row = make_row(name, setting, [digits(share, data)], seeds=[0])
                run.add({**row, "data": "MNIST", "scored_on": "held-out"},
                        ("units", "accuracy", "nll"))  # fmt: skip
    return run.finish()


if __name__ == "__main__":
    raise SystemExit(main())
