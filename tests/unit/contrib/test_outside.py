"""Networks that another loop trains: the posterior in closed form, masks, rates, two libraries."""

from itertools import combinations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesieve.assess.evaluate import evaluate
from bayesieve.contrib.outside import Sieving
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.schedule import Schedule, renewal_steps

PRUNING = GradualPruning(zeros=0.5)


def labelled(n=96):
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > x[:, 1]).long()


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def trained(sieving, net, n_steps, start=0, stop=None):
    """Batches of 24 with a learning rate of 0.1."""
    x, y = labelled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sieving.begin(n_steps, n_data=len(x), batch_size=24)
    rates = []
    for step in range(start, n_steps if stop is None else stop):
        sieving.before_step(step, optimizer)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        rows = slice(24 * (step % 4), 24 * (step % 4) + 24)
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        sieving.after_backward()
        optimizer.step()
        sieving.after_step(step + 1)
    return rates


def test_precision_is_that_of_the_formula():
    net = nn.Linear(2, 1)
    sieving = Sieving(net, Gaussian(), PRUNING, prior_std=0.5, decay=0.9)
    sieving.begin(1000, n_data=201, batch_size=51)
    gradients = [torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 0.5]])]
    for gradient in gradients:
        net.weight.grad, net.bias.grad = gradient.clone(), torch.zeros(1)
        sieving.after_backward()
    mean_square = 51 * 200 / 150 * (0.9 * gradients[0] ** 2 + gradients[1] ** 2) / 1.9
    expected = (1 / 0.5**2 + 201 * mean_square[0]) ** -0.5
    torch.testing.assert_close(sieving.posterior.std[:2], expected)
    torch.testing.assert_close(sieving.posterior.std[2], torch.tensor(0.5))


def test_all_batches_together_give_the_squares_of_single_gradients():
    """Every subset of 2 of 6 examples, at the mean: the empirical Fisher information, exactly."""
    y = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    net = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        net.weight.copy_(y.mean(0)[:, None])
    sieving = Sieving(net, Gaussian(), GradualPruning(zeros=0.3), prior_std=10.0, decay=1 - 1e-6)
    sieving.begin(1000, n_data=6, batch_size=2)
    for pair in combinations(range(6), 2):
        net.zero_grad()
        ((net(torch.ones(2, 1)) - y[[*pair]]).square().sum(1).mean() / 2).backward()
        sieving.after_backward()
    squares = (y - y.mean(0)).square().sum(0)  # gradients of single examples at the mean
    torch.testing.assert_close(sieving.posterior.std, (0.01 + squares) ** -0.5, rtol=1e-3, atol=0)


def test_zeros_stay_and_are_as_many_as_the_schedule_says():
    net = small()
    sieving = Sieving(net, Categorical(), PRUNING)
    trained(sieving, net, 60)
    sparse = sieving.sparse()
    assert sparse.zeros == pytest.approx(0.5, abs=0.5 / 74)
    zero = torch.cat([p.detach().flatten() for p in net.parameters()]) == 0
    assert int(zero.sum()) == int((~sparse.keep).sum())
    x, y = labelled()
    assert evaluate(sparse, (x, y))["error"] < 0.2
    torch.testing.assert_close(sparse.to_module()(x), net(x))


def test_rates_follow_our_schedule():
    net, schedule = small(), Schedule(lr="cosine", warmup=0.1)
    rates = trained(Sieving(net, Categorical(), PRUNING, schedule=schedule), net, 40)
    assert rates == [0.1 * schedule.lr_scale(step / 40, PRUNING.end) for step in range(40)]


def test_a_state_goes_on_where_it_stood():
    net, again = small(), small()
    whole = Sieving(net, Categorical(), PRUNING)
    trained(whole, net, 40)
    first, second = (Sieving(again, Categorical(), PRUNING) for _ in range(2))
    trained(first, again, 40, stop=20)
    second.load_state_dict(first.state_dict())
    trained(second, again, 40, start=20)
    assert torch.equal(second.keep, whole.keep)
    torch.testing.assert_close(second.posterior.std, whole.posterior.std)


def test_batches_of_all_data_are_refused():
    with pytest.raises(ValueError, match="Take smaller batches"):
        Sieving(small(), Categorical(), PRUNING).begin(10, n_data=8, batch_size=8)


def test_soft_masks_are_refused():
    with pytest.raises(ValueError, match="soft=False"):
        Sieving(small(), Categorical(), GradualPruning(zeros=0.5, soft=True))


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")
    from torch.utils.data import DataLoader, TensorDataset

    from bayesieve.contrib.lightning import SieveCallback

    class Own(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = small()

        def training_step(self, batch, _):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.02)

    x, y = labelled()

    def run(stop, resume=None):
        module = Own()
        sieve = SieveCallback(module.net, Categorical(), PRUNING, schedule=Schedule(lr="cosine"))
        assert sieve.state_dict() == {}
        trainer = lightning.Trainer(
            max_steps=120, accelerator="cpu", callbacks=[sieve, Until(stop)],
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, accumulate_grad_batches=2, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=12), ckpt_path=resume)
        return trainer, sieve

    class Until(lightning.Callback):
        def __init__(self, epoch):
            self.epoch = epoch

        def on_train_epoch_end(self, trainer, _):
            trainer.should_stop = trainer.current_epoch + 1 >= self.epoch

    _, sieve = run(30)
    assert (sieve.n_steps, sieve.n_data, sieve.batch_size) == (120, 96, 24)
    assert sieve.renewals == renewal_steps(PRUNING, 120)
    sparse = sieve.sparse()
    assert sparse.zeros == pytest.approx(0.5, abs=0.5 / 74)
    assert evaluate(sparse, (x, y))["error"] < 0.1
    trainer, half = run(12)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    _, resumed = run(30, tmp_path / "half.ckpt")
    assert half.keep.sum() > resumed.keep.sum() == sieve.keep.sum()
    assert not (resumed.keep & ~half.keep).any()  # what was gone stays gone
    assert resumed.state_dict()["rates"] == [0.02]


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from bayesieve.contrib.transformers import SieveCallback

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    ids = torch.randint(1, 20, (128, 6), generator=torch.Generator().manual_seed(0))
    labels = (ids[:, 0] > 10).long()
    data = [{"input_ids": i, "labels": y} for i, y in zip(ids, labels, strict=True)]
    batch = {"input_ids": ids[:2]}
    sieve = SieveCallback(model, Categorical(), PRUNING, example=batch)
    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=10, per_device_train_batch_size=16, learning_rate=5e-3,
        max_grad_norm=0.0, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=data, callbacks=[sieve]).train()
    assert (sieve.n_steps, sieve.n_data, sieve.batch_size) == (80, 128, 16)
    sparse = sieve.sparse()
    assert sparse.zeros == pytest.approx(0.5, abs=1e-3)
    assert evaluate(sparse, ({"input_ids": ids}, labels))["error"] < 0.1
