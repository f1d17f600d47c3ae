"""Many models as one: seeds, an ensemble, and a sweep over numbers, each in a single training run.

python examples/population.py       # some seconds on a CPU; on a GPU the models are nearly free
"""

import statistics

import torch

import bayesieve as bs
from bayesieve.nets import mlp


def main() -> None:
    """Run the example."""
    torch.manual_seed(0)
    data = bs.load_data("digits")
    train, held_out = data.train.split(0.2, seed=0)
    problem = bs.Problem(
        mlp(data.input_shape, 10, widths=(50,)), bs.likelihoods.Categorical(), train
    )
    schedule = bs.Schedule(lr="cosine", kl=0.1, kl_warmup_epochs=5)

    # Four seeds: what changes is the initial weights and the noise.
    engine = bs.SBNN(lr=1e-2, start="he", local=True)
    run = bs.fit(problem, [engine] * 4, epochs=20, schedule=schedule)
    errors = [bs.evaluate(q, held_out)["error"] for q in run.posteriors]
    print("seeds       ", "  ".join(f"{error:.3f}" for error in errors))
    print(f"mean         {statistics.fmean(errors):.3f}")

    # Their average prediction is a deep ensemble.
    probs = torch.stack([bs.predict(q, held_out.x).probs for q in run.posteriors]).mean(0)
    wrong = (probs.argmax(-1) != held_out.y).double().mean()
    print(f"ensemble     {wrong:.3f}")

    # A sweep: one engine per model, of one class; numbers may differ, also inside the prior.
    spikes = (0.02, 0.05, 0.1)
    engines = [
        bs.SBNN(prior=bs.priors.SpikeSlab(spike_std=spike), lr=1e-2, start="he", local=True)
        for spike in spikes
    ]
    sweep = bs.fit(problem, engines, epochs=20, schedule=schedule)
    for spike, posterior in zip(spikes, sweep.posteriors, strict=True):
        sparse = bs.prune(posterior, bs.rules.keep_zeros(0.8))
        print(f"spike {spike:<5}  dense {bs.evaluate(posterior, held_out)['error']:.3f}  "
              f"80 % zeros {bs.evaluate(sparse, held_out)['error']:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
