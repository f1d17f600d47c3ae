import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Samples, SparseModel
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.core.storage import load_posterior, load_sparse, read_header, save

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def network_of(dtype=torch.float32, width=3):
    model = nn.Sequential(
        nn.Linear(2, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1)
    )
    return Network.of(model.to(dtype), Gaussian())


def posterior_on(network, prior=None):
    generator = torch.Generator().manual_seed(0)
    d = network.layout.size
    mean = torch.randn(d, generator=generator).to(network.dtype)
    logit = torch.randn(d, generator=generator).to(network.dtype)
    logit[0], logit[1], mean[2] = torch.inf, -torch.inf, -0.0
    buffers = network.buffers()
    buffers["1.running_mean"] += 0.1
    return Factorised(network, mean, mean.abs() / 3, prior, logit, buffers)


def same_bits(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "prior", [None, Normal(0.1), SpikeSlab(0.3, 0.07, 0.2), Normal((0.1, 2.0))]
)
def test_a_normal_posterior_comes_back_bit_for_bit(tmp_path, dtype, prior):
    network = network_of(dtype)
    q = posterior_on(network, prior)
    back = load_posterior(save(q, tmp_path / "q.safetensors"), network)
    assert isinstance(back, Factorised)
    assert back.prior == prior
    assert all(
        same_bits(getattr(back, n), getattr(q, n)) for n in ("mean", "std", "logit_inclusion")
    )
    assert back.buffers.keys() == q.buffers.keys()
    for name, value in q.buffers.items():
        assert torch.equal(back.buffers[name], value)
        assert back.buffers[name].dtype == value.dtype


@pytest.mark.parametrize("logit", [True, False])
def test_draws_come_back_bit_for_bit(tmp_path, logit):
    network = network_of()
    draws = torch.randn(4, network.layout.size)[:, torch.randperm(network.layout.size)]
    q = Samples(network, draws, draws.mean(0) if logit else None, network.buffers())
    back = load_posterior(save(q, str(tmp_path / "q")), network)
    assert isinstance(back, Samples)
    assert same_bits(back.draws, q.draws)
    assert (back.logit_inclusion is None) == (not logit)


@pytest.mark.parametrize("n", [1, 4])
def test_draws_that_share_zeros_are_stored_without_them(tmp_path, n):
    network = network_of()
    keep = torch.rand(network.layout.size, generator=torch.Generator().manual_seed(1)) < 0.3
    draws = torch.randn(n, network.layout.size) * keep
    path = save(Samples(network, draws, None, network.buffers()), tmp_path / "q")
    stored = load_file(path)["draws"]
    assert stored.shape[1] == (len(keep) if n == 1 else int(keep.sum()))
    assert same_bits(load_posterior(path, network).draws.abs(), draws.abs())


@pytest.mark.parametrize("wrong", [[0, 99], [-1, 2], [0]])
def test_places_outside_of_the_weights_are_damage(tmp_path, wrong):
    network = network_of()
    draws = torch.zeros(3, network.layout.size)
    draws[:, :2] = 1
    path = save(Samples(network, draws, None, network.buffers()), tmp_path / "q")
    with safe_open(path, framework="pt") as stream:
        metadata = {"bayesieve": stream.metadata()["bayesieve"]}  # without checksums
    tensors = load_file(path) | {"draws.index": torch.tensor(wrong, dtype=torch.int32)}
    save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match="is damaged: its content does not fit its header"):
        load_posterior(path, network)


def test_a_sparse_model_comes_back_with_its_mask(tmp_path):
    network = network_of()
    keep = torch.rand(network.layout.size, generator=torch.Generator().manual_seed(1)) < 0.5
    sparse = SparseModel(posterior_on(network).masked(keep), keep)
    path = save(sparse, tmp_path / "s.safetensors")
    back = load_sparse(path, network)
    assert same_bits(back.keep, keep)
    assert back.zeros == sparse.zeros
    assert same_bits(back.posterior.mean, sparse.posterior.mean)
    assert same_bits(load_posterior(path, network).mean, sparse.posterior.mean)


def test_a_problem_stands_for_its_network_and_other_things_do_not(tmp_path):
    model = nn.Linear(2, 1)
    problem = Problem(model, Gaussian(), (torch.zeros(3, 2), torch.zeros(3, 1)))
    q = Factorised(problem.network, torch.arange(3.0), torch.ones(3))
    path = save(q, tmp_path / "q")
    assert load_posterior(path, problem).network is problem.network
    with pytest.raises(TypeError, match=r"must be a Network or a Problem, got Linear"):
        load_posterior(path, model)


def test_the_header_is_plain_json_with_what_the_caller_adds(tmp_path):
    extra = {"engine": {"name": "SBNN", "lr": 1e-3}, "note": "α ≤ 1", "seeds": [1, None]}
    q = posterior_on(network_of(), SpikeSlab(0.3, 0.07, 0.2))
    header = read_header(save(q, tmp_path / "q", extra=extra))
    assert header["extra"] == extra
    assert header["format"] == 1
    assert header["class"] == "Factorised"
    assert header["dtype"] == "float32"
    assert header["prior"] == {
        "class": "SpikeSlab", "slab_std": 0.3, "spike_std": 0.07, "slab_prob": 0.2,
    }  # fmt: skip
    assert header["layout"][0] == ["0.weight", [3, 2], "PRUNE"]
    assert read_header(save(q, tmp_path / "q"))["extra"] == {}


def test_saving_shares_nothing_and_replaces_the_old_file(tmp_path):
    network = network_of()
    path = tmp_path / "q.safetensors"
    save(posterior_on(network), path, extra={"run": 1})
    save(posterior_on(network), path, extra={"run": 2})
    assert read_header(path)["extra"] == {"run": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["q.safetensors"]


def test_another_network_is_named_with_both_shapes(tmp_path):
    path = save(posterior_on(network_of()), tmp_path / "q")
    text = (
        r"q is of another network: expected '0\.weight' of shape \[4, 2\] \(PRUNE\), "
        r"found '0\.weight' of shape \[3, 2\]"
    )
    with pytest.raises(ValueError, match=text):
        load_posterior(path, network_of(width=4))
    longer = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    short = Network.of(nn.Sequential(nn.Linear(2, 1)), Gaussian())
    path = save(Factorised(short, torch.ones(3), torch.ones(3)), tmp_path / "short")
    with pytest.raises(ValueError, match="expected 4 tensors, found 2"):
        load_posterior(path, Network.of(longer, Gaussian()))


def test_another_dtype_is_not_converted_behind_the_scenes(tmp_path):
    path = save(posterior_on(network_of()), tmp_path / "q")
    with pytest.raises(ValueError, match="holds float32 weights but the network is float64"):
        load_posterior(path, network_of(torch.float64))


def test_a_posterior_without_a_mask_is_no_sparse_model(tmp_path):
    path = save(posterior_on(network_of()), tmp_path / "q")
    with pytest.raises(ValueError, match="without a mask; use load_posterior"):
        load_sparse(path, network_of())


class Boom:
    def __reduce__(self):
        return os.mkdir, (str(Path(os.environ["BOOM"])),)


@pytest.mark.parametrize(
    "how", ["pickle", "torch", "empty", "text", "head", "tail", "flipped", "huge"]
)
def test_damaged_and_foreign_files_are_named_and_never_run(tmp_path, monkeypatch, how):
    trap = tmp_path / "executed"
    monkeypatch.setenv("BOOM", str(trap))
    path = save(posterior_on(network_of()), tmp_path / "q.safetensors")
    data = path.read_bytes()
    if how == "torch":
        torch.save({"a": Boom()}, path)
    else:
        path.write_bytes(
            {
                "pickle": pickle.dumps(Boom()),
                "empty": b"",
                "text": b"x" * 1000,
                "head": data[:20],
                "tail": data[:-3],
                "flipped": data[:9] + b"\xff\xfe" + data[11:],
                "huge": b"\xff" * 8 + data[8:],
            }[how]
        )
    for load in (load_posterior, load_sparse):
        with pytest.raises(ValueError, match=r"load: .*q\.safetensors is damaged: it is cut off"):
            load(path, network_of())
    with pytest.raises(ValueError, match="damaged"):
        read_header(path)
    assert not trap.exists()


def rewrite(path, change=lambda header: None, **tensors):
    """Write the file again with another header or other tensors."""
    header = read_header(path)
    text = change(header)
    changed = {**load_file(path), **tensors}
    changed = {name: value for name, value in changed.items() if value is not None}
    save_file(changed, path, {"bayesieve": text if isinstance(text, str) else json.dumps(header)})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda h: h.update(format=2), "has format 2, this version reads 1. Update bayesieve"),
        (lambda h: h.pop("dtype") and None, "is damaged: its header lacks dtype"),
        (lambda h: h.update({"class": "os.system"}), "its header lacks a known class"),
        (lambda h: h.update({"class": []}), "its header lacks a known class"),
        (lambda h: h.update(layout="none"), "its layout is not a list of tensors"),
        (lambda h: h.update(layout=[[1]]), "its layout is not a list of tensors"),
        (lambda h: h.update(prior={"class": "system"}), "does not fit its header"),
        (lambda h: h.update(prior={"class": "Normal", "std": -1.0}), "does not fit its header"),
        (lambda h: h.update(prior={"class": "Normal", "mean": 1.0}), "does not fit its header"),
        (lambda h: h.pop("format") and None, "was not written by bayesieve's save"),
        (lambda h: "[1]", "its header must hold one JSON object"),
        (lambda h: "{", "its header is no JSON"),
        (lambda h: "[" * 100_000, "must have at most 64 levels of nesting"),
    ],
)
def test_wrong_headers_are_named(tmp_path, change, text):
    path = save(posterior_on(network_of()), tmp_path / "q.safetensors")
    rewrite(path, change)
    with pytest.raises(ValueError, match=r"q\.safetensors .*" + text.replace(".", r"\.")):
        load_posterior(path, network_of())


def test_wrong_tensors_are_named(tmp_path):
    network = network_of()
    keep = torch.ones(network.layout.size, dtype=torch.bool)
    sparse = SparseModel(posterior_on(network), keep)
    path = tmp_path / "q.safetensors"
    cases = [
        ({"mean": torch.zeros(3)}, "does not fit its header"),
        ({"mean": torch.zeros(network.layout.size).double()}, "does not fit its header"),
        ({"std": None}, "does not fit its header"),
        ({"keep": keep.int()}, "its mask has another shape or type"),
        ({"keep": keep[:4].clone()}, "its mask has another shape or type"),
        ({"keep": ~keep}, "a weight outside its mask is not 0"),
    ]
    for tensors, text in cases:
        rewrite(save(sparse, path), **tensors)
        with pytest.raises(ValueError, match=rf"q\.safetensors is damaged: .*{text}"):
            load_sparse(path, network)


def test_other_safetensors_files_and_missing_ones(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"other\.safetensors was not written by bayesieve's save"):
        load_posterior(path, network_of())
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError, match="there is no file"):
            load_posterior(missing, network_of())


def test_unknown_posteriors_are_refused(tmp_path):
    with pytest.raises(TypeError, match="Namespace cannot be saved; supported: Factorised, Sampl"):
        save(SimpleNamespace(network=None), tmp_path / "q")
    with pytest.raises(TypeError, match="must be a posterior or a sparse model, got object"):
        save(object(), tmp_path / "q")


def test_a_learned_noise_level_is_part_of_the_layout(tmp_path):
    learned = Network.of(nn.Linear(2, 3), Gaussian(learned=True))
    path = save(Factorised(learned, torch.ones(10), torch.ones(10)), tmp_path / "q")
    assert load_posterior(path, learned).mean.shape == (10,)
    with pytest.raises(ValueError, match="expected 2 tensors, found 3"):
        load_posterior(path, Network.of(nn.Linear(2, 3), Gaussian()))
