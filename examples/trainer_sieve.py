"""The Trainer of transformers trains, our schedule sieves: half of a small BERT goes on the way.

python examples/trainer_sieve.py       # some seconds on a CPU; pip install transformers accelerate
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import bayesieve as bs
from bayesieve.contrib.transformers import SieveCallback
from bayesieve.sieve.prune import kept_per_layer


def main() -> None:
    """Run the example: does a sentence of numbers begin with a larger one than it ends with?"""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    ids = torch.randint(0, 20, (1200, 6), generator=torch.Generator().manual_seed(0))
    labels = (ids[:, 0] > ids[:, -1]).long()
    rows = [{"input_ids": x, "labels": y} for x, y in zip(ids, labels, strict=True)]

    sieve = SieveCallback(
        model,
        bs.likelihoods.Categorical(),
        bs.GradualPruning(zeros=0.5),
        example={"input_ids": ids[:2]},
    )
    arguments = TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=15, per_device_train_batch_size=32,
        learning_rate=3e-3, max_grad_norm=0.0, report_to=[], save_strategy="no",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=rows[:1000], callbacks=[sieve]).train()
    sparse = sieve.sparse()
    for row in kept_per_layer(sparse)[:4]:
        print(f"{row.name:<60} {row.kept:>5} of {row.total}")
    result = bs.evaluate(sparse, ({"input_ids": ids[1000:]}, labels[1000:]))
    print(f"error {result['error']:.3f}  zeros {sparse.zeros:.2f}  weights {result['weights']:,}")


if __name__ == "__main__":
    main()
