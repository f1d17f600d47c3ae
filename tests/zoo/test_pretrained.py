"""Narrowed models of transformers: of their class, exact, and back from a folder in one line."""

import importlib.util
import json

import pytest
import torch

import bayesieve as bs
from bayesieve.assess.predict import as_point
from bayesieve.core.likelihoods import Categorical
from bayesieve.deliver.huggingface import narrowed
from bayesieve.errors import DamagedFileError
from bayesieve.sieve.prune import prune
from bayesieve.sieve.unit_rules import keep_units
from zoo import built

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
    "ViT": lambda t: t.ViTForImageClassification(
        t.ViTConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            image_size=16, patch_size=4, num_labels=3,
        )
    ),
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")


def inputs(name):
    source = torch.Generator().manual_seed(1)
    if name == "ViT":
        return {"pixel_values": torch.randn(3, 3, 16, 16, generator=source)}
    mask = torch.ones(4, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    return {"input_ids": torch.randint(32, (4, 7), generator=source), "attention_mask": mask}


def half(name):
    """A model of which half the units are zeros, and the narrowed one."""
    model = built(lambda: MODELS[name](transformers).eval())
    x = inputs(name)
    sparse = prune(as_point(model, Categorical()), keep_units(0.5, example=x))
    return sparse.to_module(), narrowed(sparse, x), x


@pytest.mark.parametrize("name", MODELS)
def test_a_narrowed_model_is_of_its_class_and_comes_back(name, tmp_path):
    masked, small, x = half(name)
    assert type(small) is type(masked)
    assert isinstance(small, transformers.PreTrainedModel)
    assert small.num_parameters() < 0.35 * masked.num_parameters()
    torch.testing.assert_close(small(**x).logits, masked(**x).logits, rtol=0, atol=1e-5)
    folder = bs.save(small, tmp_path / "small")
    again = bs.load(folder)
    assert type(again) is type(masked)
    assert torch.equal(again(**x).logits, small(**x).logits)
    found = importlib.util.spec_from_file_location("written", folder / "modeling_bayesieve.py")
    written = importlib.util.module_from_spec(found)
    found.loader.exec_module(written)
    assert torch.equal(written.load_model()(**x).logits, small(**x).logits)


def test_it_trains_on_and_generates():
    _, small, x = half("GPT-2")
    small.train()
    small(**x, labels=x["input_ids"]).loss.backward()
    assert all(p.grad is not None for p in small.parameters())
    small.eval()
    longer = small.generate(**x, max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert longer.shape == (4, 9)


HOSTILE = {
    "other class": lambda c: c.update(architectures=["Trainer"]),
    "other module": lambda c: c.update(architectures=["os.system"]),
    "other type": lambda c: c.update(model_type="gpt2"),
    "unknown layer": lambda c: c["bayesieve"]["layers"].append(["classifier", "Module", {}]),
    "no such place": lambda c: c["bayesieve"]["layers"].append(["a.b", "Linear", {}]),
    "no such size": lambda c: c["bayesieve"]["numbers"].update({"bert": {"num_heads": 2}}),
    "attribute": lambda c: c["bayesieve"]["numbers"].update({"bert": {"forward": 2}}),
    "huge": lambda c: c.update(num_hidden_layers=10**9),
    "no entry": lambda c: c.update(bayesieve=3),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_configs_are_refused(change, written, tmp_path):
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes((written / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFileError, match=r"config\.json"):
        bs.load(tmp_path)


def test_code_that_a_config_names_is_not_run(written, tmp_path):
    (tmp_path / "model.safetensors").write_bytes((written / "model.safetensors").read_bytes())
    config = json.loads((written / "config.json").read_text())
    config |= {"auto_map": {"AutoModel": "evil.Model"}, "_attn_implementation": "evil/kernel"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = bs.load(tmp_path)
    assert getattr(model.config, "auto_map", None) is None
    assert model.config._attn_implementation != "evil/kernel"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of a narrowed BERT."""
    return bs.save(half("BERT")[1], tmp_path_factory.mktemp("hf") / "bert")
