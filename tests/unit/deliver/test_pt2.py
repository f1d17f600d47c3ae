import pytest
import torch
from torch import nn

from bayesieve.deliver import export
from bayesieve.deliver.bundle import save_bundle
from bayesieve.deliver.export import export_pt2
from bayesieve.errors import UnsupportedModelError, VerificationError
from bayesieve.nets import mlp
from problems import normal32
from zoo import Calling


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    )


def test_archive_gives_the_same_outputs_for_any_batch(tmp_path):
    module = network().train()
    path = export_pt2(module, tmp_path / "net.pt2", normal32(1, 1, 6, 6))
    assert module.training
    again = torch.export.load(path).module()
    module.eval()
    for n in (1, 2, 5, 33):
        x = normal32(n, 1, 6, 6, seed=n)
        torch.testing.assert_close(again(x), module(x))
    assert [p.name for p in tmp_path.iterdir()] == ["net.pt2"]


def reader():
    """Words to classes by a recurrent layer."""
    return Calling(
        lambda s, x: s.head(s.rnn(s.words(x))[0][:, -1]),
        words=nn.Embedding(9, 4),
        rnn=nn.LSTM(4, 5, batch_first=True),
        head=nn.Linear(5, 3),
    )


def test_a_recurrent_network_is_exported_without_a_warning(tmp_path):
    torch.manual_seed(0)
    module, x = reader().eval(), torch.arange(8).view(2, 4)
    again = torch.export.load(export_pt2(module, tmp_path / "net.pt2", x)).module()
    torch.testing.assert_close(again(x), module(x))
    with pytest.raises(
        UnsupportedModelError, match=r"'rnn' \(LSTM\) .* use export_onnx or export_p"
    ):
        save_bundle(module, tmp_path / "b", example=x)


def test_archive_holds_neither_the_example_nor_paths(tmp_path):
    example = normal32(3, 7)
    path = export_pt2(mlp((7,), 2, (4,)), tmp_path / "net.pt2", example)
    data = path.read_bytes()
    assert example[0].numpy().tobytes() not in data
    assert b"/bayesieve/" not in data
    assert torch.export.load(path).example_inputs is None


def test_transposed_weights_and_views_are_written_alone(tmp_path):
    module, whole = nn.Sequential(nn.Linear(40, 30)), normal32(1000, 30)
    module[0].weight.data = whole.T[:, :40]
    path = export_pt2(module, tmp_path / "net.pt2", normal32(2, 40))
    assert path.stat().st_size < 4 * 1200 + 20000
    assert not module[0].weight.is_contiguous()
    x = normal32(5, 40)
    torch.testing.assert_close(torch.export.load(path).module()(x), module(x))


@pytest.mark.parametrize(
    "module",
    [Calling(lambda s, x: x.reshape(2, 3) * 2), Calling(lambda s, x: x if x.sum() > 0 else -x)],
)
def test_modules_that_cannot_be_traced(module, tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"export_pt2: torch\.export cannot trace"):
        export_pt2(module, tmp_path / "net.pt2", torch.ones(2, 3))
    assert not list(tmp_path.iterdir())


def test_modules_must_return_one_tensor(tmp_path):
    with pytest.raises(UnsupportedModelError, match="one tensor, got tuple"):
        export_pt2(Calling(lambda s, x: (x, x)), tmp_path / "net.pt2", torch.ones(2, 3))


def test_another_result_is_refused_and_nothing_written(tmp_path, monkeypatch):
    trace = export.trace
    other = nn.Linear(3, 2)
    monkeypatch.setattr(export, "trace", lambda who, module, x: trace(who, other, x))
    (tmp_path / "net.pt2").write_bytes(b"old")
    with pytest.raises(VerificationError, match="export_pt2: the exported 'output' differs"):
        export_pt2(nn.Linear(3, 2), tmp_path / "net.pt2", torch.ones(2, 3))
    assert (tmp_path / "net.pt2").read_bytes() == b"old"


def test_a_module_that_is_not_finite_is_refused(tmp_path):
    module = nn.Linear(3, 2)
    nn.init.constant_(module.weight, torch.nan)
    with pytest.raises(VerificationError, match="not finite"):
        export_pt2(module, tmp_path / "net.pt2", torch.ones(2, 3))


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"does not run on an example of shape \(2, 5\)"):
        export_pt2(nn.Linear(3, 2), tmp_path / "net.pt2", torch.ones(2, 5))
    with pytest.raises(FileNotFoundError, match="export_pt2: the folder"):
        export_pt2(nn.Linear(3, 2), tmp_path / "none" / "net.pt2", torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"export_pt2: example must be a batch"):
        export_pt2(nn.Linear(3, 2), tmp_path / "net.pt2", torch.ones(0, 3))
