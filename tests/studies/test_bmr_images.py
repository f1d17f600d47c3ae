"""The model-reduction study on images few in number: its rows, its file, its figures."""

import contextlib
import io
import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bayesieve.assess.metrics import ece
from bayesieve.core.layout import default_role
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, SparseModel
from bayesieve.data.augment import Augment
from bayesieve.engines.bmr import BMR, PAPER_ROLES
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from pages.studies import reduction_table
from problems import few_images, normal32
from studies import bmr_images
from studies.bmr_images import (
    DATA,
    METHODS,
    NETS,
    PRESETS,
    Cell,
    Recipe,
    Sizes,
    build,
    draw,
    main,
    order,
    pack,
    pruned_fraction,
    published,
    resolved,
    setting,
    standardised,
    train_row,
    trial,
    unpack,
)
from studies.harness import make_row

SIZES = Sizes(
    epochs=3, steps=4, batch_size=16, every=1, curve_draws=2, draws=3, seeds=2, small=True
)
ROW = Cell("fashion-mnist", "mixer", "bmr", "default")


DATA_SET = few_images(64, 40, noise=0.3, offset=2.0, name="small")


@pytest.fixture(scope="module")
def record():
    with contextlib.redirect_stdout(io.StringIO()) as said:
        entry = train_row(ROW, SIZES, DATA_SET, "cpu")
    assert said.getvalue().count("\n") == 1
    return entry


def pretend(row, sizes, data, device):
    """In place of `train_row`."""
    numbers = {"accuracy": 0.5, "ece": 0.1, "nll": 1.0, "pruned": 0.2, "zeros": 0.1}
    return make_row(
        row.name, resolved(row, sizes), [numbers], seeds=1, seconds=3.0, n_train=len(data.train),
        curve=[{"epoch": 1.0, **numbers}], quantiles={"fc1": [0.0, 0.1]},
        first_layer=pack(torch.ones(2, 4), 1),
    )  # fmt: skip


@pytest.fixture
def instant(monkeypatch):
    """Data at hand, and a list of the rows that were trained, which takes no time."""
    trained = []

    def train(row, *rest):
        trained.append(row.name)
        return pretend(row, *rest)

    monkeypatch.setattr(bmr_images, "load_data", lambda name: DATA_SET)
    monkeypatch.setattr(bmr_images, "train_row", train)
    return trained


def names_of(path):
    return [row["name"] for row in json.loads(path.read_text())["rows"]]


def test_every_cell_of_the_paper_is_there():
    for data in DATA:
        for net in NETS:
            for method in METHODS:
                answer = published(data, net, method)
                assert ("pruned" in answer) == (method == "bmr")
                assert all(0 <= float(v.removeprefix(">")) < 7 for v in answer.values())
    answer = published("cifar10", "mixer", "map")
    assert answer == {"accuracy": ".685", "ece": ".173", "nll": "1.25"}
    assert published("cifar100", "vit", "bmr")["pruned"] == ".996"


def test_scores_are_those_of_a_posterior(record):
    answer = record["metrics"]
    assert len(record["each"]) == 2
    for key in ("accuracy", "ece", "pruned", "zeros"):
        assert 0 <= answer[key] <= 1
        assert answer[key] == pytest.approx(sum(one[key] for one in record["each"]) / 2)
    assert answer["nll"] > 0
    assert answer["zeros"] == pytest.approx(setting(ROW).pruning.zeros, abs=1e-4)
    assert 0 < answer["pruned"] < 1
    json.dumps(record, allow_nan=False)


def test_curves_end_in_the_final_score_of_the_first_seed(record):
    curve = record["detail"]["curve"]
    assert [point["epoch"] for point in curve] == [1.0, 2.0, 3.0]
    assert {k: v for k, v in curve[-1].items() if k != "epoch"} == record["each"][0]
    pruned = [point["pruned"] for point in curve]
    assert pruned == sorted(pruned)


def test_weights_are_described_layer_by_layer(record):
    model = build("mixer", (1, 32, 32), 10, small=True)
    layers = [n.removesuffix(".weight") for n, p in model.named_parameters() if p.dim() > 1]
    assert list(record["detail"]["quantiles"]) == layers
    for values in record["detail"]["quantiles"].values():
        assert values == sorted(values)
    assert unpack(record["detail"]["first_layer"]).shape == (16, 4, 4)
    assert (record["metrics"]["layers"], record["metrics"]["maps"]) == (len(layers), 16)


def test_pictures_survive_packing():
    weight = normal32(3, 2, 4, 4, seed=0)
    pictures = unpack(pack(weight.flatten(1), 2))
    assert pictures.shape == (3, 4, 8)
    step = float(weight.abs().max()) / 127
    side_by_side = torch.cat([weight[:, 0], weight[:, 1]], 2)
    np.testing.assert_allclose(pictures, side_by_side, atol=0.51 * step)


def test_images_are_standardised_by_the_training_images_and_padded_for_patches():
    data = standardised(DATA_SET, "mlp")
    train, test = data.train, data.test
    assert train.x.shape[1:] == (1, 28, 28)
    assert train.x.mean().item() == pytest.approx(0, abs=1e-5)
    assert train.x.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert test.x.mean().item() != pytest.approx(0, abs=1e-5)
    padded = standardised(DATA_SET, "vit").train
    assert padded.x.shape[1:] == (1, 32, 32)
    assert torch.equal(padded.x[..., 2:-2, 2:-2], train.x)
    assert padded.x[..., :2, :].abs().max() == 0


def test_lenet_sees_small_images_as_if_padded():
    model, x = build("lenet", (1, 28, 28), 10), torch.rand(3, 1, 28, 28)
    wanted = model(x)
    model.conv1.padding = (0, 0)  # what is left is LeNet-5 for 32x32 images
    torch.testing.assert_close(model(torch.nn.functional.pad(x, (2, 2, 2, 2))), wanted)


@pytest.mark.parametrize(("gap", "least", "most"), [(0.0, 0.0, 0.02), (0.3, 0.29, 0.31)])
def test_the_calibration_error_of_the_study_is_the_gap_of_confidence(gap, least, most):
    source = torch.Generator().manual_seed(0)
    confidence = 0.85 + 0.15 * torch.rand(40_000, generator=source, dtype=torch.float64)
    right = torch.rand(40_000, generator=source, dtype=torch.float64) < confidence - gap
    probs = torch.stack([confidence, 1 - confidence], 1)
    assert least <= ece(probs, (~right).long(), 20, "equal-mass") <= most


@pytest.mark.parametrize("preset", [*PRESETS, "sd-.1", "hier-.3-.1", "moved95-.03-.2"])
@pytest.mark.parametrize("method", METHODS)
def test_settings_of_every_row(method, preset):
    entry = setting(Cell("fashion-mnist", "lenet", method, preset))
    assert entry.dropout == (0.2 if method == "map" else 0)
    paper = preset.startswith("paper")
    assert entry.roles is (PAPER_ROLES if paper else default_role)
    kind = {"map": MAP, "tiered": HorseshoeVI}.get(method, BMR)
    assert type(entry.engine) is kind
    if kind is BMR:
        assert (entry.engine.reduction is None) == (method == "flat")
    rates = {"map": 1e-3, "flat": 5e-3, "tiered": 5e-3, "bmr": 1e-2}
    if paper:
        assert entry.engine.lr == rates[method]
        assert entry.schedule.lr == "constant"
    if kind is BMR:
        standard = preset in ("paper", "paper-code")
        assert entry.engine.coordinates == ("standard" if standard else "weights")


def test_the_authors_code_has_another_mlp_and_other_batches():
    code = Cell("fashion-mnist", "mlp", "bmr", "paper-code")
    assert code.sized(Sizes()).batch_size == 120
    assert code.sized(SIZES) == SIZES  # a look has its own
    assert replace(code, preset="paper").sized(Sizes()) == Sizes()
    row = train_row(code, replace(SIZES, epochs=1, seeds=1), DATA_SET, "cpu")
    shape = tuple(DATA_SET.train.x.shape[1:])
    wide = build("mlp", shape, DATA_SET.n_outputs, of_code=True)
    assert row["metrics"]["n_weights"] == sum(p.numel() for p in wide.parameters())


def test_a_recipe_splits_the_weight_of_the_kl_between_engine_and_schedule():
    recipe = Recipe(kl=0.03, kl_after=0.3)
    assert recipe.engine().reduction.kl == pytest.approx(0.1)
    entry = setting(Cell("fashion-mnist", "lenet", "bmr", "sd-.1-.3"))
    assert entry.schedule.kl * entry.engine.reduction.kl == pytest.approx(trial("sd-.1-.3").kl)
    assert entry.schedule.kl == trial("sd-.1-.3").kl_after
    assert entry.schedule.hold == entry.engine.reduction.end


def test_trials_are_named_by_what_they_change():
    base = Recipe()
    assert trial("sd-.1") == base
    assert trial("sd-.3-.03") == replace(base, kl=0.3, kl_after=0.03)
    assert trial("top-.1") == replace(base, zeros=0.91)
    assert trial("slow90-.1-1") == replace(base, kl_after=1.0, zeros=0.905, lr=5e-3)
    assert trial("moved95-.03-.2").augment == Augment(flip=True, shift=1)
    for name in ("best", "sd", "sd-x", "other-.1"):
        with pytest.raises(ValueError, match=f"preset must be one of paper.*got '{name}'"):
            trial(name)


def test_a_share_of_zeros_can_be_topped_up():
    sizes = replace(SIZES, seeds=1)
    row = replace(ROW, preset="top-.1")
    entry = train_row(row, sizes, DATA_SET, "cpu")
    assert entry["metrics"]["zeros"] >= 0.909
    assert setting(replace(row, method="flat")).pruning is None


def test_changed_images_are_filled_with_black_and_recorded(monkeypatch):
    row, seen = Cell("fashion-mnist", "lenet", "bmr", "moved90-.1-.6"), []
    train = standardised(DATA_SET, row.net).train

    def watch(self, x, generator):
        seen.append(self)
        return x

    monkeypatch.setattr(Augment, "__call__", watch)
    train_row(row, replace(SIZES, epochs=1, seeds=1), DATA_SET, "cpu")
    assert {entry.flip for entry in seen} == {True}
    assert {entry.shift for entry in seen} == {1}
    assert {entry.fill for entry in seen} == {(train.x.min().item(),)}
    assert "flip=True" in resolved(row, SIZES)["augment"]
    assert resolved(replace(row, preset="paper"), SIZES)["augment"] == "None"


def test_bmr_of_fast_networks_comes_first():
    names = [row.name for row in order(["a", "b"], ["vit", "lenet"], ["map", "bmr"], ["paper"])]
    assert names == [
        "a/lenet/bmr/paper", "a/vit/bmr/paper", "a/lenet/map/paper", "a/vit/map/paper",
        "b/lenet/bmr/paper", "b/vit/bmr/paper", "b/lenet/map/paper", "b/vit/map/paper",
    ]  # fmt: skip


def test_rows_are_written_one_by_one_and_kept(tmp_path, instant, capsys):
    out = tmp_path / "result.json"
    words = ["--nets", "lenet", "--data", "fashion-mnist", "--device", "cpu", "--out", str(out)]
    assert main([*words, "--methods", "bmr", "--preset", "paper"]) == 0
    assert main([*words, "--methods", "bmr,flat", "--preset", "paper"]) == 0
    assert instant == ["fashion-mnist/lenet/bmr/paper", "fashion-mnist/lenet/flat/paper"]
    assert names_of(out) == sorted(instant)
    result = json.loads(out.read_text())
    assert result["study"] == "bmr_images"
    assert result["scored_on"] == "test"
    one = result["rows"][0]
    row = Cell("fashion-mnist", "lenet", "bmr", "paper")
    assert one["setting"] == resolved(row, Sizes())
    assert one["detail"]["n_train"] == 64
    assert one["data"] == "small"
    assert one["command"].endswith("--methods bmr --preset paper")
    assert "already in" in capsys.readouterr().out


def test_a_file_of_other_settings_is_refused_before_training(tmp_path, instant):
    out = tmp_path / "result.json"
    words = ["--nets", "lenet", "--methods", "bmr", "--data", "fashion-mnist", "--out", str(out)]
    main(words)
    with pytest.raises(SystemExit, match=r"with another epochs\. Give another --out"):
        main([*words, "--epochs", "7"])
    with pytest.raises(SystemExit, match="has scored_on 'test'"):
        main([*words, "--held-out"])
    assert len(instant) == 1


def test_a_row_that_was_watched_more_often_is_the_same_row(tmp_path, instant, monkeypatch):
    out = tmp_path / "result.json"
    words = ["--nets", "lenet", "--methods", "bmr", "--data", "fashion-mnist", "--out", str(out)]
    monkeypatch.setattr(bmr_images, "Sizes", lambda **options: Sizes(every=10, **options))
    main(words)
    monkeypatch.undo()
    monkeypatch.setattr(bmr_images, "load_data", lambda name: DATA_SET)
    assert main(words) == 0
    assert len(instant) == 1


def test_a_failing_row_ends_only_itself(tmp_path, instant, monkeypatch, capsys):
    def fail(row, *rest):
        if row.method == "bmr":
            raise RuntimeError("out of memory")
        return pretend(row, *rest)

    monkeypatch.setattr(bmr_images, "train_row", fail)
    out = tmp_path / "result.json"
    words = ["--nets", "lenet", "--methods", "bmr,map", "--data", "fashion-mnist"]
    assert main([*words, "--out", str(out)]) == 1
    assert names_of(out) == ["fashion-mnist/lenet/map/default"]
    failures = json.loads(out.read_text())["notes"]["failures"]
    assert failures == {"fashion-mnist/lenet/bmr/default": "RuntimeError: out of memory"}
    assert "out of memory" in capsys.readouterr().err


def test_held_out_images_are_training_images(monkeypatch):
    monkeypatch.setattr(bmr_images, "load_data", lambda name: DATA_SET)
    monkeypatch.setattr(bmr_images.harness, "HELD_OUT", 16)
    data = bmr_images._split("fashion-mnist", Namespace(held_out=True, quick=False))
    assert (len(data.train), len(data.test)) == (48, 16)


def test_figures_are_drawn_from_the_records(tmp_path, record):
    rows = [
        {**record, "setting": {**record["setting"], "method": method}} for method in ("bmr", "flat")
    ]
    names = [path.name for path in draw(rows, tmp_path)]
    stem = "fashion-mnist_mixer_default"
    assert names == [f"{stem}_curves.png", f"{stem}_cdf.png", f"{stem}_first_layer.png"]
    assert all((tmp_path / name).stat().st_size > 2000 for name in names)


def test_the_table_of_the_page_has_ours_beside_theirs(tmp_path, instant):
    out = tmp_path / "result.json"
    words = ["--nets", "lenet", "--methods", "bmr,map", "--data", "fashion-mnist"]
    words += ["--preset", "paper"]
    main([*words, "--device", "cpu", "--out", str(out)])
    result = json.loads(out.read_text())
    lines = reduction_table([result, {"study": "other"}]).splitlines()
    assert lines[2] == (
        "| small, lenet | bmr, paper | .500/.100/1.000 | .901/.015/.283 | 20.0 % | .811 | 10.0 % "
        "| 51, 1 | 3 |"
    )
    assert lines[3].startswith("| small, lenet | map, paper | .500/.100/1.000 | .887/.063/.437 |")
    with pytest.raises(SystemExit, match="two files hold"):
        reduction_table([result, result])
    result["rows"][0]["setting"]["augment"] = "Augment(flip=True)"
    assert "| bmr, paper, augmented |" in reduction_table([result])
    held_out = {**result, "scored_on": "held-out"}
    assert reduction_table([held_out]).startswith("_To be filled")


def test_a_network_that_trains_in_bfloat16_says_so_and_is_another_one():
    row = Cell("fashion-mnist", "mlp", "map", "paper")
    sizes = replace(SIZES, seeds=1)
    exact, rough = (
        train_row(row, replace(sizes, precision=name), DATA_SET, "cpu")["metrics"]
        for name in ("float32", "bf16")
    )
    assert resolved(row, replace(sizes, precision="bf16"))["precision"] == "bf16"
    assert rough["nll"] != exact["nll"]
    assert rough["nll"] == pytest.approx(exact["nll"], rel=0.05)


def test_the_pruned_fraction_of_the_reference_by_hand():
    # Layers 3-4-2: 16 entries of the first with its biases, 8 weights of the last.
    network = Network.of(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), Gaussian())
    posterior = Factorised(network, torch.ones(26), torch.ones(26))
    keep = torch.ones(26, dtype=torch.bool)
    assert pruned_fraction(SparseModel(posterior, keep)) == 0
    keep[:3] = False  # the first row, but not its bias: 3 zeros
    assert pruned_fraction(SparseModel(posterior, keep)) == pytest.approx(3 / 24)
    keep[20] = False  # now the unit is silent: 4 zeros and 2 weights that read it
    assert pruned_fraction(SparseModel(posterior, keep)) == pytest.approx(6 / 24)
    keep[13] = False  # a weight of the last layer that reads a live unit does not count
    assert pruned_fraction(SparseModel(posterior, keep)) == pytest.approx(6 / 24)
