"""The study's record and what it delivers, on images small in number."""

import json

from problems import few_images
from studies.structured_lenet5 import Setting, delivery, parser, run_setting, setting_of


def test_the_network_ends_with_the_units_asked_for():
    data = few_images(128, 50)
    setting = Setting((3, 4, 5), epochs=3, prune_epochs=(1, 2))
    row, sparse = run_setting(setting, data.train, data.test, 2, "cpu")
    assert len(row["each"]) == 2
    numbers, detail = delivery(sparse, data.test.x[:20], rounds=1)
    assert detail["units"] == {"conv1": 3, "conv2": 4, "fc1": 5, "out": 10}
    assert detail["same_classes"]
    assert numbers["dense_parameters"] == 431_080
    assert numbers["parameters"] == 3 * 26 + 4 * 76 + 5 * 65 + 60
    json.dumps({**row, **numbers})


def test_options_become_a_setting():
    full = setting_of(parser().parse_args(["--full", "--units", "10,20,80", "--epochs", "40"]))
    assert (full.units, full.name) == ((10, 20, 80), "10-20-80")
    assert (full.epochs, full.prune_epochs) == (40, (4, 20))
    assert setting_of(parser().parse_args(["--quick"])).epochs == 6
