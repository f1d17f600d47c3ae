"""The UCI study: choices stay inside the training part, rows are kept, verdicts are right."""

import json
import math

import numpy as np
import pytest
import torch

from bayesieve.assess.predict import RealPrediction
from bayesieve.core.likelihoods import Gaussian
from bayesieve.data.examples import DataSet, Examples
from bayesieve.estimators import SieveRegressor
from pages.studies import uci_estimators_table
from records import record_of
from studies import uci, uci_networks
from studies.uci import PUBLISHED, blocks, candidates, join_blocks, page, row_of, verdicts
from studies.uci_networks import (
    CUTS,
    Budget,
    Setting,
    Task,
    inner_rows,
    mixture,
    pruning_table,
    run_engine,
    without_least,
)

TINY = Budget(steps=20, batch_size=16, inner=2, n_members=2, n_draws=2, at_once=3)


def toy(seed, n=60):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    y = x[:, 0] + 0.1 * torch.randn(n, generator=generator)
    unit = (torch.tensor(5.0), torch.tensor(2.0))
    pieces = [Examples(x[:50], y[:50], *unit), Examples(x[50:], y[50:], *unit)]
    return DataSet("toy", *pieces, "regression", None, ("a", "b", "c"))


def test_inner_rows_split_the_training_part():
    for rest, held_out in inner_rows(20, Budget(1, 1, 3, held_out=0.25), seed=0):
        assert len(held_out) == 5
        assert sorted([*rest.tolist(), *held_out.tolist()]) == list(range(20))


def test_an_engine_is_chosen_scored_and_halved():
    task = Task([toy(0), toy(1)], "cpu")
    settings = [Setting(widths=(4,)), Setting(widths=(4,), noise="heteroscedastic")]
    each, totals = run_engine(task, settings, TINY, halve=True)
    assert len(each) == 2
    assert {one["choice"]["setting"] for one in each} <= {0, 1}
    assert totals["full/removed"] == 0
    # 16 weights: half of them, up to rounding to whole weights
    assert totals["half/removed"] == pytest.approx(0.5, abs=1 / 16)
    for prefix in ("", "half/"):
        for one in each:
            assert math.isfinite(one[f"{prefix}log_lik"])
            assert 0 < one[f"{prefix}rmse"] < 8  # in units of the target, whose std is about 2


def test_the_droprate_counts_weights_alone():
    (q,) = Task([toy(0)], "cpu").train(Setting(widths=(4,)), [(0, torch.arange(50))], TINY, 0)
    for removed, zeros in ((0.0, 0), (0.25, 4), (0.95, 15)):
        entry = without_least(q, removed)
        assert int((entry.mean[entry.layout.sparse] == 0).sum()) == zeros
        assert bool((entry.mean[entry.layout.n_sparse :] == q.mean[q.layout.n_sparse :]).all())
    lowest = q.logit_inclusion[q.layout.sparse].argsort()[:4]
    assert bool((without_least(q, 0.25).mean[lowest] == 0).all())


def test_one_shot_table_has_the_papers_columns():
    (one,) = pruning_table(Task([toy(0)], "cpu"), [Setting(widths=(4,))], TINY)
    assert {f"cut-{rate}/rmse" for rate in (0, 25, 50, 75, 90, 95)} <= one.keys()
    assert one["rmse"] == one["cut-0/rmse"]


@pytest.mark.parametrize("per_cut", [False, True])
def test_settings_for_cuts_are_chosen_by_held_out_rows(monkeypatch, per_cut):
    class Fixed(Task):  # a "network" is the share of weights it can lose
        def train(self, setting, rows, budget, seed, removed=0.0):
            return [setting.kl] * len(rows)

    def prediction(members, x, n_draws):
        ((most, removed),) = members
        shift = 9.0 if removed > most else 0.1 if most == 0.95 else 0.03
        return RealPrediction((x[:, :1] + shift)[None], torch.ones(1, 1, 1), Gaussian())

    monkeypatch.setattr(uci_networks, "without_least", lambda q, removed: (q, removed))
    monkeypatch.setattr(uci_networks, "mixture", prediction)
    task, settings = Fixed([toy(0), toy(1)], "cpu"), [Setting(kl=0.5), Setting(kl=0.95)]
    for one in pruning_table(task, settings, TINY, per_cut=per_cut):
        expected = {f"cut-{100 * cut:g}": int(cut > 0.5) for cut in CUTS}
        assert one["choice"] == (expected if per_cut else {"setting": 1})
        assert one["cut-95/rmse"] < 0.5
        assert one["rmse"] == one["cut-0/rmse"]
        assert (one["cut-50/rmse"] < one["cut-95/rmse"]) == per_cut


def test_members_are_one_mixture():
    record = toy(3)
    task = Task([record], "cpu")
    members = task.train(Setting(widths=(4,)), [(0, torch.arange(50))] * 2, TINY, seed=0)
    numbers = mixture(members, record.test.x, 3)
    assert numbers.sample_means.shape == (6, 10, 1)


def scores(*rmse):
    return [{"rmse": value, "log_lik": 0.0} for value in rmse]


def test_a_row_has_the_standard_error_of_its_means():
    numbers = row_of("yacht", "linear", scores(1.0, 3.0), [0, 1], {"seconds": 1.0}, {})["metrics"]
    assert (numbers["rmse"], numbers["rmse_standard_error"]) == (2.0, 1.0)
    alone = row_of("yacht", "linear", scores(1.0), [0], {"seconds": 1.0}, {})["metrics"]
    assert alone["rmse_standard_error"] is None


def row(rmse, log_lik, half, name="boston", row="sbnn"):
    made = row_of(name, row, [{"rmse": rmse, "log_lik": log_lik, "half/rmse": half}], [0],
                  {"seconds": 1.0}, {})  # fmt: skip
    made["metrics"]["rmse_standard_error"] = 0.1
    return made


def test_verdicts_compare_with_the_targets():
    numbers = verdicts("boston", row(2.8, -2.5, 3.1))  # 3.1 > 2.8 + 2 · 0.1
    assert numbers == ["boston", "2.8", "2.9", "yes", "3.1", "no", "-2.500", "-2.4", "no"]
    assert verdicts("power", row(3.9, -2.7, 4.15))[5] == "yes"  # the bound of this set is 4.2


def test_the_test_error_chooses_no_row():
    better = row(2.1, -2.3, 2.2, row="flat-vi")
    text = page(record_of("uci", [row(2.8, -2.5, 3.1), better]))
    assert "| boston | 2.8 | 2.9 | yes |" in text
    assert "| boston | 2.1" not in text


def test_a_second_call_does_only_what_is_missing(tmp_path, monkeypatch, capsys):
    calls = []

    def fake(name, row_name, n_splits, device, *, first, quick, effort):
        calls.append((name, row_name, n_splits))
        each = [{"rmse": 1.0, "log_lik": 0.0, "half/rmse": 1.0}] * n_splits
        return row_of(name, row_name, each, list(range(n_splits)), {"seconds": 1.0}, {})

    monkeypatch.setattr(uci, "run_row", fake)
    out = tmp_path / "uci.json"
    common = ["--device", "cpu", "--out", str(out)]
    assert uci.main(["--sets", "yacht,protein", "--rows", "sbnn", *common]) == 0
    assert sorted(calls) == [("protein", "sbnn", 5), ("yacht", "sbnn", 20)]
    uci.main(["--sets", "yacht", "--rows", "sbnn,linear", *common])
    assert calls[2:] == [("yacht", "linear", 20)]
    stored = json.loads(out.read_text())
    rows = {row["name"]: row["metrics"] for row in stored["rows"]}
    assert {*rows} == {"yacht/sbnn", "yacht/linear", "protein/sbnn"}
    assert "UCI regression" in out.with_suffix(".md").read_text()
    with pytest.raises(SystemExit, match="Give another --out"):
        uci.main(["--sets", "yacht", "--rows", "sbnn", "--splits", "2", *common])
    capsys.readouterr()


def test_every_row_has_candidates():
    assert set(PUBLISHED) == set(uci.SETS)
    for name in uci.ROWS:
        if name not in (*uci.BASELINES, *uci.ESTIMATORS):
            assert candidates(name, 400)


def test_the_estimator_itself_is_measured_on_the_splits_asked_for(monkeypatch, tmp_path):
    source = np.random.default_rng(0)
    x, seen = source.normal(size=(60, 2)), list[int]()
    masks = [np.arange(60) // 15 == i for i in range(4)]
    monkeypatch.setattr(uci, "load_uci", lambda name, root, split: toy(split))
    monkeypatch.setattr(uci, "find_uci", lambda name, root: tmp_path)
    monkeypatch.setattr(uci, "read_uci", lambda path: (x, x[:, 0], masks))

    def quick(**settings):
        seen.append(settings["random_state"])
        return SieveRegressor(hidden=(4,), bins=0, epochs=2, folds=0, kl=1.0, **settings)

    monkeypatch.setattr(uci, "SieveRegressor", quick)
    pieces = [uci.run_row("yacht", "sieve-5", 2, "cpu", first=first) for first in (2, 0)]
    row = join_blocks(pieces)
    assert seen == [2, 3, 0, 1]
    assert (row["seeds"], row["kind"], len(row["each"])) == ([0, 1, 2, 3], "ensemble", 4)
    assert math.isfinite(row["metrics"]["log_lik"])


def test_the_page_compares_rows_on_the_splits_that_both_have():
    numbers = {"log_lik": -1.0, "crps": 0.3, "coverage_90": 0.9}
    each = [{"rmse": float(i), **numbers} for i in range(4)]
    totals = {"seconds": 4.0, "processor_seconds": 8.0}
    rows = [row_of("yacht", "sieve-5", each[:2], [0, 1], totals, {}),
            row_of("yacht", "sbnn", each, [0, 1, 2, 3], totals, {})]  # fmt: skip
    last = uci_estimators_table([record_of("uci", rows)]).splitlines()[-1]
    assert last.startswith("| yacht | 2 | 0.5 ± 0.5 | 0.5 |  | -1 ± 0 | -1 |")


def test_a_row_of_a_set_with_its_own_budget(monkeypatch):
    monkeypatch.setattr(uci, "load_uci", lambda name, root, split: toy(split))
    monkeypatch.setattr(uci, "budget_for", lambda n, quick, effort: TINY)
    cut = uci.run_row("yacht", "sbnn-paper", 2, "cpu")
    assert cut["detail"]["budget"]["n_members"] == 1
    assert (len(cut["each"]), cut["kind"]) == (2, "single")
    dropped = uci.run_row("yacht", "sbnn-dropout", 1, "cpu")
    assert dropped["detail"]["budget"]["steps"] == 2 * TINY.steps
    assert dropped["metrics"]["half/removed"] == pytest.approx(0.5, abs=0.01)
    assert dropped["kind"] == "ensemble"
    linear = uci.run_row("yacht", "linear", 2, "cpu")
    assert linear["metrics"]["rmse"] < 1.0  # y = x + 0.1 ε, in a unit of 2


def test_blocks_cover_every_split_once():
    for n_splits, n_rows in ((20, 300), (20, 8000), (5, 41_000), (3, 8000)):
        covered = [i for first, n in blocks(n_splits, n_rows) for i in range(first, first + n)]
        assert covered == list(range(n_splits))


def test_blocks_of_a_row_are_joined_split_by_split():
    task = Task([toy(0), toy(1), toy(2)], "cpu")
    settings = [Setting(widths=(4,)), Setting(widths=(3,))]
    pieces = []
    for i, n in ((2, 1), (0, 2)):
        numbers = run_engine(Task(task.splits[i : i + n], "cpu", i), settings, TINY, halve=True)
        totals = {**numbers[1], "seconds": 1.0 + i}
        pieces.append(row_of("yacht", "sbnn", numbers[0], list(range(i, i + n)), totals, {}))
    joint = join_blocks(pieces)
    splits = [*pieces[1]["each"], *pieces[0]["each"]]
    assert (joint["each"], joint["seeds"]) == (splits, [0, 1, 2])
    mean = sum(one["rmse"] for one in splits) / 3
    assert joint["metrics"]["rmse"] == pytest.approx(mean, rel=1e-5)
    least = min(part["metrics"]["half/removed"] for part in pieces)
    assert joint["metrics"]["half/removed"] == least
    assert joint["seconds"] == pytest.approx(sum(joint["detail"]["block_seconds"]), abs=0.02)
    assert joint["metrics"]["full/members"] == TINY.n_members


def test_a_block_holds_out_the_rows_its_splits_always_do():
    whole, later = (inner_rows(50, TINY, seed) for seed in (0, 1))
    assert not torch.equal(whole[0][1], later[0][1])
    seeds = []

    class Spy(Task):
        def train(self, setting, rows, budget, seed, removed=0.0):
            seeds.append([entry.tolist() for _, entry in rows])
            return super().train(setting, rows, budget, seed, removed)

    run_engine(Spy([toy(0), toy(1)], "cpu"), [Setting(widths=(4,))], TINY, halve=False)
    both = seeds[0]
    seeds.clear()
    run_engine(Spy([toy(1)], "cpu", 1), [Setting(widths=(4,))], TINY, halve=False)
    assert seeds[0] == both[TINY.inner :]


def test_a_run_in_blocks_stops_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(uci, "load_uci", lambda name, root, split: toy(split))
    calls, now = [], [0.0]

    def fake(name, row_name, n_splits, device, *, first, quick, effort):
        calls.append((first, n_splits))
        now[0] += 60
        each = [{"rmse": 1.0 + first, "log_lik": 0.0, "half/rmse": 1.0}] * n_splits
        seeds = list(range(first, first + n_splits))
        return row_of(name, row_name, each, seeds, {"seconds": 60.0, "half/removed": 0.5}, {})

    monkeypatch.setattr(uci, "run_row", fake)
    monkeypatch.setattr("studies.harness.time.perf_counter", lambda: now[0])
    out = tmp_path / "part.json"
    call = ["--sets", "yacht", "--rows", "sbnn", "--in-blocks", "--stop-after", "50", "--device",
            "cpu", "--out", str(out)]  # fmt: skip
    uci.main(call)
    stored = json.loads(out.read_text())
    assert stored["rows"][0]["seeds"] == list(range(10))
    with pytest.raises(ValueError, match="some splits of yacht/sbnn are missing"):
        uci.main(["--join", str(out)])
    uci.main(call)
    assert calls == [(0, 10), (10, 10)]
    stored = json.loads(out.read_text())
    assert stored["rows"][0]["seeds"] == list(range(20))
    assert stored["rows"][0]["metrics"]["rmse"] == 6.0
    assert [call["seconds"] for call in stored["notes"]["calls"]] == [60.0, 60.0]
    assert "2 calls, 120 s" in capsys.readouterr().out
    uci.main(call)
    assert len(calls) == 2
    with pytest.raises(SystemExit, match="Give another --out"):
        uci.main(["--sets", "yacht", "--rows", "sbnn", "--device", "cpu", "--out", str(out)])
