"""Ten clients of MNIST: posteriors joined against averaged weights.

    python -m studies.federated --quick                    # two rounds, no claims
    python -m studies.federated --held-out                 # for choosing settings
    python -m studies.federated --full --out results/federated.json

Protocol: 10,000 training images, of which client k has 500 of class k and 500 of class k + 1, or,
in rows "even/", 1,000 of all classes. Network 784-100-10. In each of 20 rounds every client begins
with what the server has, learns one pass over its own images in batches of 50, and sends back what
it learned. The server joins

- `fedavg`: weights, by their mean (McMahan et al., 2017); clients train by gradient descent;
- `*-average`: posteriors, by the geometric mean (eq. T25);
- `*-product`: posteriors, by the product with the start of the round divided out (eq. T24).

Pixels are centred and scaled to unit average energy for all of them. Settings were chosen on 5,000
other training images (`--held-out`) and are frozen in `ROWS`; a row reads the test images once per
seed, after the last round. `detail` has the error after every round on 2,000 other training images.
The clients are simulated in one process, by the function that `flower_strategy` calls.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from bayesieve import MAP, SBNN, TDAMP, FlatVI, Problem, fit, likelihoods, load_data, priors
from bayesieve.assess.evaluate import evaluate
from bayesieve.core.posterior import Factorised, Posterior, Samples
from bayesieve.data.examples import Examples
from bayesieve.engines import Engine
from bayesieve.nets import mlp
from bayesieve.training.schedule import Schedule
from studies.clients import join_clients
from studies.harness import Run, make_row, say, seeded, splits, study_parser
from studies.images import of_unit_energy

N_CLIENTS, PER_CLIENT, WATCHED = 10, 1000, 2000
BATCH, ROUNDS = 50, 20


@dataclass(frozen=True)
class Setting:
    """One way to learn together."""

    engine: Literal["map", "flat_vi", "sbnn", "tdamp"]
    rule: Literal["mean", "average", "product"]
    lr: float = 0.1
    kl: float = 0.1
    init_std: float = 0.05
    power: float = 5.0

    def make(self) -> Engine[Any]:
        """The engine of every client."""
        if self.engine == "map":
            return MAP(optimizer="sgd", lr=self.lr, momentum=0.0)
        if self.engine == "flat_vi":
            return FlatVI(priors.Normal(0.1), lr=self.lr, init_std=self.init_std)
        if self.engine == "sbnn":
            return SBNN(lr=self.lr, init_std=self.init_std)
        prior = priors.GroupSparse(hidden_variance=0.25, output_variance=1.5)
        return TDAMP(prior, keep=1.0, power=self.power)


EVEN = "even/"  # rows whose clients have images of all classes
ROWS = {
    "fedavg": Setting("map", "mean", lr=0.5),
    "flat_vi-average": Setting("flat_vi", "average", lr=1e-3, init_std=0.02),
    "sbnn-average": Setting("sbnn", "average", lr=1e-3, init_std=0.02),
    "flat_vi-product": Setting("flat_vi", "product", lr=1e-3, init_std=0.1),
    "tdamp-average": Setting("tdamp", "average"),
    "even/fedavg": Setting("map", "mean", lr=0.5),
    "even/flat_vi-average": Setting("flat_vi", "average", lr=3e-3, init_std=0.02),
    "even/sbnn-average": Setting("sbnn", "average", lr=3e-3, init_std=0.02),
    "even/tdamp-average": Setting("tdamp", "average", power=25.0),
}


def divided(
    train: Examples, *, per_client: int = PER_CLIENT, even: bool = False
) -> tuple[list[Examples], Examples]:
    """The images of each client, of two classes or of all, and others to watch the rounds by."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    if even:
        *parts, rest = order.split([per_client] * N_CLIENTS + [len(order) - N_CLIENTS * per_client])
        return [train.subset(part) for part in parts], train.subset(rest[:WATCHED])
    half, clients = per_client // 2, []
    places = [order[train.y[order] == label] for label in range(N_CLIENTS)]
    for k in range(N_CLIENTS):
        client = torch.cat([places[k][:half], places[(k + 1) % N_CLIENTS][half : 2 * half]])
        clients.append(train.subset(client))
    rest = torch.cat([part[2 * half :] for part in places])
    spread = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(1))]
    return clients, train.subset(spread[:WATCHED])


def joined(
    start: Posterior | None, learned: Sequence[Posterior], counts: list[int], setting: Setting
) -> Posterior:
    """Join the posteriors of a round, as the server does."""
    if setting.rule == "mean":
        weights = torch.stack([client.mean for client in learned])
        share = torch.tensor(counts, dtype=weights.dtype) / sum(counts)
        return Samples(learned[0].network, (share @ weights)[None])
    posteriors = [client for client in learned if isinstance(client, Factorised)]
    begun = start if isinstance(start, Factorised) else posteriors[0]
    return join_clients(begun, posteriors, counts, setting.rule)


def trained(
    setting: Setting, clients: Sequence[Examples], watched: Examples, seed: int, rounds: int
) -> tuple[Posterior, list[float]]:
    """The server's posterior after the last round, and the error after every round."""
    engine, curve = setting.make(), []
    model = seeded(seed, mlp, (1, 28, 28), 10, widths=(100,))
    problems = [Problem(model, likelihoods.Categorical(), client) for client in clients]
    server: Posterior | None = None
    if setting.rule == "product":  # all begin with one posterior, which the product divides by
        state = engine.init(problems[0], torch.Generator().manual_seed(seed))
        server = engine.posterior(problems[0], state)
    schedule = Schedule(kl=setting.kl) if setting.engine in ("flat_vi", "sbnn") else Schedule()
    for number in range(rounds):
        learned = [
            fit(
                problem, engine, epochs=1, batch_size=BATCH, seed=1000 * seed + number,
                schedule=schedule, start_from=server,
            ).posterior
            for problem in problems
        ]  # fmt: skip
        counts = [problem.n_data for problem in problems]
        server = joined(server, learned, counts, setting)
        curve.append(evaluate(server, watched).to_dict()["error"])
    assert server is not None
    return server, curve


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study."""
    parser = study_parser(__doc__, "--held-out", quick="two rounds, small clients", seeds=3,
                          device=False)  # fmt: skip
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE",
                        help="with --held-out: other settings than the frozen ones")  # fmt: skip
    options = parser.parse_args(arguments)
    pairs = (text.partition("=") for text in options.set)
    changes: dict[str, Any] = {name: float(value) for name, _, value in pairs}
    if changes and not options.held_out:
        parser.error("--set is for choosing settings, with --held-out.")
    data = splits(load_data("mnist"), held_out=options.held_out)
    train, test = of_unit_energy(data.train, data.test)
    rounds, per_client = (2, 100) if options.quick else (ROUNDS, PER_CLIENT)
    run = Run("federated", arguments, options, data="mnist", test_reads="once per row and seed",
              settings={"rounds": rounds, "per_client": per_client, "clients": N_CLIENTS,
                        "batch": BATCH, "local_epochs": 1})  # fmt: skip
    for name in options.rows:
        setting = replace(ROWS[name], **changes)
        if not run.wants(name, asdict(setting)):
            continue
        began, each, curves = time.perf_counter(), [], []
        clients, watched = divided(train, per_client=per_client, even=name.startswith(EVEN))
        for seed in range(options.seeds):
            server, curve = trained(setting, clients, watched, seed, rounds)
            scores = evaluate(server, test).to_dict()
            each.append({key: scores[key] for key in ("error", "nll", "ece")})
            curves.append(curve)
            say(f"{name} seed {seed}: error {scores['error']:.4f}")
        run.add(
            make_row(name, asdict(setting), each, seeds=options.seeds, spread=("error",),
                     seconds=time.perf_counter() - began, curves=curves),
            ("error", "nll"),
        )  # fmt: skip
    return run.finish(("error", "error_standard_error", "nll", "ece"))


if __name__ == "__main__":
    raise SystemExit(main())
