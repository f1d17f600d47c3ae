"""The character study on a short text: every method, the splits, and a network that leaves."""

import json

import pytest
import torch

from bayesieve.assess.predict import as_point
from bayesieve.core.likelihoods import Categorical
from bayesieve.deliver.onnx import OnnxSession
from bayesieve.errors import DataError
from bayesieve.nets import gpt
from bayesieve.sieve.compact import compact
from bayesieve.sieve.prune import prune
from bayesieve.sieve.unit_rules import keep_units
from studies import char_gpt
from zoo import built


@pytest.fixture
def text(tmp_path, monkeypatch):
    path = tmp_path / char_gpt.TEXT
    path.parent.mkdir()
    path.write_text("To be, or not to be, that is the question.\n" * 25, encoding="utf-8")
    monkeypatch.setattr(char_gpt, "data_root", lambda: tmp_path)
    return path


def test_every_method_leaves_a_row(text, tmp_path):
    out = tmp_path / "x.json"
    rows = "map/0,sbnn/90,magnitude/90,post-hoc/50,units/50,bmr/90"
    arguments = ["--quick", "--steps", "3", "--held-out", "--rows", rows, "--out", str(out)]
    assert char_gpt.main([*arguments, "--figures", str(tmp_path)]) == 0
    record = json.loads(out.read_text())
    assert [row["name"] for row in record["rows"]] == rows.split(",")
    assert record["test_reads"] == "never"
    sieved, small = record["rows"][1], record["rows"][4]
    assert sieved["metrics"]["zeros"] == pytest.approx(0.9, abs=1e-3)
    assert small["metrics"]["difference"] < 1e-5
    assert len(sieved["detail"]["text"]) == 40
    assert (tmp_path / "char_gpt.png").is_file()


def test_held_out_text_ends_where_the_test_text_begins(text):
    whole, held = char_gpt.Text.read(text), char_gpt.Text.read(text, held_out=True)
    assert torch.equal(torch.cat([held.train, held.test]), whole.train)
    assert whole.written(torch.cat([whole.train, whole.test])) == text.read_text()


def test_a_missing_text_is_named(tmp_path):
    with pytest.raises(DataError, match=r"tinyshakespeare\.txt"):
        char_gpt.Text.read(tmp_path / "tinyshakespeare.txt")


def test_a_network_sees_no_later_symbol():
    net = gpt(7, 8, n_blocks=2, width=8, n_heads=2).eval()
    x = torch.randint(7, (2, 8), generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 5:] = (x[:, 5:] + 1) % 7
    assert torch.equal(net(x)[:, :5], net(changed)[:, :5])
    assert not torch.equal(net(x)[:, 5], net(changed)[:, 5])


@pytest.mark.filterwarnings("ignore")
def test_onnx_and_the_compacted_network_write_the_same_text(tmp_path):
    pytest.importorskip("onnxruntime")
    net = built(lambda: gpt(7, 8, n_blocks=2, width=16, n_heads=4).eval())
    beginning = torch.arange(8)[None] % 7
    heads = {f"blocks.{i}.attention.query": 2 for i in range(2)}
    sparse = prune(as_point(net, Categorical()), keep_units(heads, example=beginning))
    small = compact(sparse, beginning).eval()
    assert small.get_submodule("blocks.0.attention.value").weight.shape == (8, 16)
    session = OnnxSession(small, tmp_path / "gpt.onnx", beginning)

    def run(symbols):
        return torch.from_numpy(session.run(symbols.numpy()))

    written = [char_gpt.continue_text(one, beginning, 12, context=8, seed=3)
               for one in (sparse.to_module(), small, run)]  # fmt: skip
    assert torch.equal(written[0], written[1])
    assert torch.equal(written[0], written[2])
