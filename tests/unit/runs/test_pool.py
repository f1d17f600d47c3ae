"""`bayesieve runs pool`: chains of several runs as one."""

import pytest
import torch

from bayesieve import runs
from bayesieve.assess.diagnostics import diagnose, pooled
from bayesieve.errors import UsageError
from commands import as_json, refused

TINY = {"data": "digits", "net": "mlp:4", "epochs": 1, "device": "cpu", "figures": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of one posterior, one of another, and one without chains."""
    home = tmp_path_factory.mktemp("pool")
    for seed, chains in ((0, 1), (1, 2)):
        runs.train(out=home / f"{seed}", engine="sgld", seed=seed, chains=chains, draws=4, **TINY)
    runs.train(out=home / "longer", engine="sgld", seed=2, draws=4, **{**TINY, "epochs": 2})
    runs.train(out=home / "map", engine="map", seed=2, **TINY)
    return home


def test_all_chains_are_compared_and_their_draws_pooled(folder):
    result = runs.pool_runs([folder / "0", folder / "1"], out=folder / "both", figures=False)
    opened = [runs.load(folder / name) for name in "01"]
    chains = [model for run in opened for model in run.models()]
    with pytest.warns(UserWarning, match="not mixed"):  # so few draws
        report = diagnose(chains, opened[0].data.test)
    assert (result["chains"]["n_chains"], result["chains"]["rhat"]) == (3, report.rhat)
    assert result["sampled"]["draws"] == 12
    both = runs.load(folder / "both")
    assert torch.equal(both.pooled().draws, pooled(chains).draws)
    alone = as_json("runs", "pool", folder / "0", folder / "1")
    assert alone["chains"]["log_lik_ess"] == result["chains"]["log_lik_ess"]
    assert alone["sampled"]["nll"] == pytest.approx(result["sampled"]["nll"])


def test_what_cannot_be_pooled_is_named(folder):
    pool = ("runs", "pool", folder / "0")
    assert "give two runs or more" in refused(2, *pool)
    assert "have the same draws" in refused(2, *pool, folder / "0")
    assert "has no chains, its engine is map" in refused(2, *pool, folder / "map")
    with pytest.raises(UsageError, match="longer was trained with `epochs` 2"):
        runs.pool_runs([folder / "0", folder / "longer"])
