"""Tiny models of the library transformers, without any download; skipped where it is absent."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.posterior import as_point
from bayesieve.sieve.compact import compact, report_of
from bayesieve.sieve.prune import prune
from bayesieve.sieve.unit_rules import keep_units

transformers = pytest.importorskip("transformers")
SIZES = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 32,
}  # fmt: skip
MODELS = {
    "BERT": lambda t: t.BertForSequenceClassification(t.BertConfig(**SIZES, num_labels=3)),
    "GPT-2": lambda t: t.GPT2LMHeadModel(
        t.GPT2Config(
            vocab_size=32, n_embd=32, n_layer=2, n_head=4, n_positions=32,
            bos_token_id=0, eos_token_id=0,
        )
    ),
    "Llama": lambda t: t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=2)),
}  # fmt: skip


class Logits(nn.Module):
    """The logits of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, use_cache=False).logits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_half_the_units_go(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Logits(MODELS[name](transformers)).eval()
    x = torch.arange(14).view(2, 7)
    small = compact(prune(as_point(model, Gaussian()), keep_units(0.5, example=x)), x)
    before, after = report_of(small).parameters
    assert after <= 0.3 * before
    assert report_of(small).max_difference < 1e-5
