"""What the readers take from records of the form that the studies write."""

import json

import pytest

from studies.reproduce import read_findings

HEAD = {"machine": {"device": "chip"}, "command": "python -m x --full", "date": "2026-01-02"}


@pytest.fixture
def found(tmp_path):
    def read(record):
        (tmp_path / "a.json").write_text(json.dumps({**HEAD, **record}))
        return read_findings(tmp_path)

    return read


def test_resnet_rows_are_named_by_method_and_zeros(found):
    row = {"setting": {"method": "a-sghmc-sa", "zeros": 90}, "average": 91.5, "single": 91.0,
           "seconds": 3.0}  # fmt: skip
    record = {"study": "aeb_resnet", "settings": {"scored_on": "test images"}, "rows": [row]}
    own = found(record)["aeb-resnet", "a-sghmc-sa/90", "accuracy"]
    assert (own.value, own.seconds, own.device, own.date) == (91.5, 3.0, "chip", "2026-01-02")
    record["settings"]["scored_on"] = "5,000 held-out training images"
    assert found(record) == {}


def test_attacks_at_the_largest_strength(found):
    curve = [{"strength": 0.0, "accuracy": 0.99}, {"strength": 0.5, "accuracy": 0.4}]
    row = {"task": "mnist", "setting": {"method": "vanilla", "chains": 1}, "pooled": 99.0,
           "fgsm": curve, "seconds": 1.0}  # fmt: skip
    record = {"study": "aeb_images", "settings": {"scored_on": "test images"}, "rows": [row]}
    own = found(record)
    assert own["aeb-images", "mnist/vanilla", "attacked"].value == pytest.approx(40.0)
    assert own["aeb-images", "mnist/vanilla", "accuracy"].value == 99.0


def test_logistic_accuracy_is_the_mean_over_data_sets(found):
    rows = [{"method": "sa", "accuracy": a} for a in (0.8, 0.9)]
    own = found({"study": "aeb_logistic", "seconds": 5.0, "rows": rows})
    assert own["aeb-logistic", "sa", "accuracy"].value == pytest.approx(85.0)
    assert own["aeb-logistic", "sa", "accuracy"].seeds == 2


def test_one_shot_tables_of_uci(found):
    cut = [{"removed_in_one_shot": r, "rmse": 1 + r} for r in (0.0, 0.25, 0.5)]
    paper = {"full": {"rmse_splits": [1.0, 1.0]}, "one_shot": cut, "seconds": 2.0}
    own = found({"study": "uci", "sets": {"yacht": {"sbnn-paper": paper}}, "findings": {}})
    assert own["uci", "yacht/one-shot", "25"].value == 1.25
    assert own["uci", "yacht/one-shot", "50"].seeds == 2


def test_model_reduction_keeps_each_rows_machine(found):
    row = {"data": "cifar10", "net": "mlp", "method": "bmr", "preset": "default", "accuracy": 0.5,
           "ece": 0.02, "nll": None, "pruned": 0.9, "zeros": 0.91, "seeds": [1, 2],
           "machine": {"device": "other"}, "seconds": {"fit": 1.0, "score": 2.0}}  # fmt: skip
    own = found({"study": "bmr_images", "scored_on": "test images", "records": [row]})
    key = "cifar10/mlp/bmr/default"
    assert own["bmr-images", key, "pruned"].device == "other"
    assert own["bmr-images", key, "accuracy"].seconds == 3.0
    assert ("bmr-images", key, "nll") not in own


def test_a_reduction_without_test_images_gives_nothing(found):
    assert found({"study": "bmr_mnist", "records": [{"name": "l5", "held_out": {}}]}) == {}


@pytest.mark.parametrize(
    ("n_train", "command", "key"),
    [(10_000, "--seeds 5", "tdamp-128"), (60_000, "--full", "tdamp-128/60000"),
     (2_000, "--quick", "tdamp-128")],
)  # fmt: skip
def test_message_passing_is_told_apart_by_its_images(tmp_path, n_train, command, key):
    own = {"name": "tdamp-128", "mean": {"accuracy": 0.9, "seconds_per_pass": 1.0},
           "seeds": [{"history": [{}, {}]}]}  # fmt: skip
    record = {**HEAD, "study": "tdamp_mnist", "n_train": n_train, "command": f"x {command}",
              "records": [own]}  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(record))
    found = read_findings(tmp_path, quick=True)
    assert found["tdamp-mnist", key, "accuracy"].value == 0.9
    assert found["tdamp-mnist", key, "passes"].value == 2
