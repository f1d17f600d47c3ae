"""The table studies at sizes that take seconds."""

import numpy as np
import pytest

from bayesieve.errors import DamagedFileError, DataError
from studies import airfoil, tables, wide
from studies.record import make_row


def test_normal_scores_are_those_of_the_definition():
    source = np.random.default_rng(0)
    y = source.normal(size=4000)
    found = tables.normal_scores(np.zeros(4000), np.ones(4000), y)
    assert found["rmse"] == pytest.approx(1.0, abs=0.04)
    assert found["nll"] == pytest.approx(0.5 + 0.5 * np.log(2 * np.pi), abs=0.04)
    assert found["crps"] == pytest.approx(1 / np.sqrt(np.pi), abs=0.02)  # E|x - x'| / 2
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.015)


def test_ranks_are_means_over_the_sets_that_all_methods_have():
    def row(data, method, rmse):
        numbers = {"rmse": rmse, "nll": -rmse, "crps": rmse, "coverage_90": rmse}
        return {
            **make_row(f"{data} {method}", {"method": method}, [numbers], seeds=1),
            "data": data,
        }

    rows = [row("a", "x", 1.0), row("a", "y", 2.0), row("b", "x", 3.0), row("b", "y", 3.0),
            row("c", "x", 9.0)]  # fmt: skip
    found = tables.ranks(rows, ("x", "y"))
    assert found["x"]["rmse"] == 1.25
    assert found["y"]["nll"] == 1.25
    assert found["x"]["coverage_90"] == 2.0
    assert found["x"]["least"] == 1.0
    assert found["x"]["sets"] == 2
    assert "sets" in tables.ranks_table(found)


def test_held_out_rows_are_training_rows():
    x, y, at, truth = tables.load("steps", 0, held_out=True)
    assert (len(x), len(at)) == (850, 150)
    whole, _, test, _ = tables.load("steps", 0, held_out=False)
    assert (len(whole), len(test)) == (1000, 500)
    rows = {tuple(row) for row in whole}
    assert all(tuple(row) in rows for row in at)
    assert not any(tuple(row) in rows for row in test)
    assert len(y) + len(truth) == 1000


def test_effects_have_mean_0_and_variance_1():
    v = np.random.default_rng(0).normal(size=200_000)
    for kind in range(5):
        values = wide.effect(v, kind)
        assert values.mean() == pytest.approx(0, abs=0.02)
        assert values.std() == pytest.approx(1, abs=0.02)


def test_copies_have_the_correlations_of_the_columns():
    x, _, true = wide.Design(4000, 100, 1).draw(0)
    twin = wide.copies(x, 0)
    assert np.corrcoef(twin[:, 0], twin[:, 1])[0, 1] == pytest.approx(0.5, abs=0.05)
    assert np.corrcoef(x[:, 0], twin[:, 1])[0, 1] == pytest.approx(0.5, abs=0.05)
    assert {place // wide.BLOCK for place in np.flatnonzero(true)} == set(range(10))


def test_airfoil_is_checked_when_it_is_read(tmp_path):
    path = tmp_path / "uci" / "airfoil_self_noise.dat"
    assert airfoil.find_airfoil(tmp_path) is None
    path.parent.mkdir()
    np.savetxt(path, np.ones((1503, 6)))
    x, y = airfoil.read_airfoil(airfoil.find_airfoil(tmp_path))
    assert (x.shape, y.shape) == ((1503, 5), (1503,))
    path.with_suffix(".sha256").write_text("0" * 64)
    with pytest.raises(DamagedFileError, match="has changed"):
        airfoil.read_airfoil(path)
    path.with_suffix(".sha256").unlink()
    np.savetxt(path, np.ones((3, 6)))
    with pytest.raises(DataError, match="1503 rows"):
        airfoil.read_airfoil(path)
