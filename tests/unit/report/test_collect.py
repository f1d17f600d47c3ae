"""The data behind a page: complete, documented, plain, and true."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bayesieve as bs
from bayesieve.assess.evaluate import evaluate
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Samples
from bayesieve.nets import mlp
from bayesieve.report.collect import chains, collect, history_columns
from bayesieve.report.curve import _without_zeros
from bayesieve.report.inputs import describe_inputs, importance
from bayesieve.report.packing import unpack
from bayesieve.report.source import DRAWN_BYTES, MAX_BYTES, MOST_DRAWS, WEIGHT_BYTES, Limits, Source
from reports import QUICK, digits_source, table_data, table_source

DOCS = Path(__file__).parents[3] / "docs" / "report.md"
# Keys inside these are names of settings, files, metrics, layers or columns.
FREE = {"dependence", 
    "config", "meanings", "versions", "hashes", "training", "units", "latency_ms", "runtime_ms",
    "sampled", "quality",
}  # fmt: skip


@pytest.fixture(scope="module")
def source():
    return digits_source(config={"engine": {"name": "sbnn"}}, hashes={"config.json": "ab"})


@pytest.fixture(scope="module")
def run(source):
    return collect([source], limits=QUICK)["runs"][0]


def keys(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            if path and path[-1] in FREE:
                continue
            yield key
            yield from keys(item, (*path, key))
    elif isinstance(value, list):
        for item in value[:3]:
            yield from keys(item, path)


@pytest.mark.slow
def test_every_field_is_documented(run):
    text = DOCS.read_text(encoding="utf-8")
    documented = set(re.findall(r"[`\"]([a-z_0-9]+)[`\"]", text))
    table = collect([table_source()], limits=QUICK)
    missing = {*keys(run), *keys(table)} - documented
    assert not missing


def test_it_is_plain_json_without_holes(run):
    text = json.dumps(run, allow_nan=False)
    assert json.loads(text) == run


def test_the_headline_is_what_evaluate_says(source, run):
    for name, model in (("before", source.before), ("after", source.model)):
        actual = evaluate(model, source.data.test)
        quality = run["headline"][name]["quality"]
        for key in ("error", "nll", "ece"):
            assert quality[key] == pytest.approx(actual[key], rel=1e-5)
    assert run["headline"]["after"]["zeros"] == pytest.approx(0.8, abs=1e-3)
    assert run["headline"]["before"]["parameters"] == source.posterior.layout.size
    sampled = evaluate(source.model, source.data.test, n_samples=QUICK.draws)
    assert run["headline"]["sampled"]["nll"] == pytest.approx(sampled["nll"], rel=1e-5)


def test_examples_are_ranked_by_entropy(source, run):
    actual = evaluate(source.model, source.data.test, n_samples=QUICK.draws).prediction
    order = actual.entropy.sort().values
    most, least, wrong = (run["examples"][key] for key in ("most", "least", "wrong"))
    assert most["entropy"] == pytest.approx(order[:8].tolist(), rel=1e-3, abs=1e-6)
    assert least["entropy"] == pytest.approx(order.flip(0)[:8].tolist(), rel=1e-3)
    labels = actual.label
    for index, label in zip(wrong["index"], wrong["label"], strict=True):
        assert int(labels[index]) != label == int(source.data.test.y[index])
    assert wrong["entropy"] == sorted(wrong["entropy"])  # the surest mistake first
    pixels = unpack(most["inputs"])[0]
    exact = source.data.test.x[most["index"][0]] * 255
    assert torch.equal(pixels, exact.round().long())


def test_importance_is_the_slope(source):
    """Against finite differences, for one example in double precision."""
    network = source.posterior.network
    x = source.data.test.x[:256]
    outputs = network.outputs(source.posterior.mean[None], x, source.posterior.buffers)[0]
    chosen = outputs.argmax(1)
    label = int(chosen[0])
    pixel = (0, 3, 4)
    slopes = []
    for image in x[chosen == label]:
        pair = image.repeat(2, 1, 1, 1)
        pair[0][pixel] -= 1e-2
        pair[1][pixel] += 1e-2
        low, high = network.outputs(source.posterior.mean[None], pair, {})[0].log_softmax(1)[
            :, label
        ]
        slopes.append(float(high - low) / 2e-2)
    expected = sum(map(abs, slopes)) / len(slopes)
    assert float(importance(source)[label][pixel]) == pytest.approx(expected, rel=2e-2)


@pytest.mark.slow
def test_a_regression_on_a_table():
    source = table_source()
    run = collect([source], limits=QUICK)["runs"][0]
    assert run["confusion"] is run["attention"] is run["first_layer"] is None
    after = run["quality"]["after"]
    assert after["intervals"]["level"][-1] == 0.95
    assert len(after["fit"]["target"]) == 80
    test = source.data.test
    assert after["fit"]["target"] == pytest.approx((test.y * 3 + 10).tolist(), rel=1e-4)
    assert {row["name"] for row in run["features"]} == {"a", "b", "c=no", "c=yes"}
    slopes = [row["slope"] for row in run["features"]]
    assert slopes == sorted(slopes, reverse=True)
    assert run["data"]["target"] == "y"


def test_examples_of_a_regression_are_in_the_unit_of_the_target():
    source = table_source()
    sets = collect([source], limits=QUICK)["runs"][0]["examples"]
    actual = evaluate(source.model, source.data.test, n_samples=QUICK.draws).prediction
    mean, std = actual.mean[:, 0] * 3 + 10, actual.std[:, 0] * 3
    target = source.data.test.y * 3 + 10
    for rows in sets.values():
        index = torch.tensor(rows["index"])
        assert rows["target"] == pytest.approx(target[index].tolist(), rel=1e-4)
        assert rows["mean"] == pytest.approx(mean[index].tolist(), rel=1e-4)
        assert rows["std"] == pytest.approx(std[index].tolist(), rel=1e-4)
    assert sets["most"]["std"] == pytest.approx(std.sort().values[:8].tolist(), rel=1e-4)
    assert sets["least"]["std"] == pytest.approx(std.sort().values.flip(0)[:8].tolist(), rel=1e-4)
    surprise = ((target - mean) / std).abs().sort(descending=True).values
    assert sets["wrong"]["surprise"] == pytest.approx(surprise[:8].tolist(), rel=1e-3)


@pytest.mark.slow
def test_the_network_before_is_pruned_too(source, run):
    """By its own ranking, from all its weights on, whatever is left of the run."""
    before = run["curve"]["before"]
    assert before["score"] == "snr"
    first = before["points"][0]
    assert first["zeros"] == 0
    assert first["error"] == pytest.approx(run["headline"]["before"]["quality"]["error"], rel=1e-5)
    kept = [point["weights"] for point in before["points"]]
    assert kept == sorted(kept, reverse=True)
    alone = table_source("classification", bs.MAP())
    point = collect([replace(alone, before=alone.model)], limits=QUICK)["runs"][0]
    assert point["curve"]["before"]["score"] == "magnitude"
    assert collect([alone], limits=QUICK)["runs"][0]["curve"]["before"] is None


def test_the_runtime_is_timed_with_and_without_zeros(source, run):
    """The dense network has no zeros: else a runtime that skips them meets its own times."""
    full = _without_zeros(source.posterior)
    assert all(bool((parameter != 0).all()) for parameter in full.parameters())
    for side in ("before", "after"):
        assert set(run["headline"][side]["runtime_ms"]) == {"1", "64"}


def test_columns_come_in_their_own_unit():
    data = table_data()
    columns = describe_inputs(data)["columns"]
    assert [(column["name"], column["kind"], column["at"]) for column in columns] == [
        ("a", "numeric", 0), ("b", "numeric", 1), ("c", "category", 2),
    ]  # fmt: skip
    raw = data.train.x[:, 0].double() * 2 + 5
    assert columns[0]["low"] == pytest.approx(float(raw.min()), rel=1e-5)
    assert columns[0]["high"] == pytest.approx(float(raw.max()), rel=1e-5)
    assert columns[2]["levels"] == ["no", "yes"]


def test_a_point_estimate_has_no_draws():
    run = collect([table_source("classification", bs.MAP())], limits=QUICK)["runs"][0]
    assert run["headline"]["sampled"] is None
    assert run["network"]["n_draws"] == 0
    assert all(row["inclusion_cdf"] is None for row in run["layers"])


@pytest.mark.slow
def test_several_runs_share_the_page():
    data = collect([table_source(), table_source("classification")], limits=QUICK)
    assert [run["task"] for run in data["runs"]] == ["regression", "classification"]
    with pytest.raises(ValueError, match="give at least one run"):
        collect([])


def test_runs_beside_each_other_keep_their_draws():
    """Three LeNet-300-100 with 5 % of their weights have room for draws that are worth showing."""
    for limits in Limits().shared([266_200] * 3, [13_331] * 3):
        assert limits.draw_bytes // (DRAWN_BYTES * 13_331) >= 8
        assert limits.model_bytes >= WEIGHT_BYTES * 13_331


def test_a_small_run_leaves_its_room_to_a_large_one():
    small, large = Limits().shared([12_000, 200_000], [1_200, 100_000])
    assert large.model_bytes >= WEIGHT_BYTES * 100_000  # more than half of what there is
    assert small.model_bytes >= WEIGHT_BYTES * 1_200
    assert small.draw_bytes >= MOST_DRAWS * DRAWN_BYTES * 1_200


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_what_all_runs_may_take_fits_into_a_page(n):
    weights, kept = 300_000, 20_000
    shares = Limits().shared([weights] * n, [kept] * n)
    total = sum(
        min(weights, share.shown_weights)
        + min(WEIGHT_BYTES * kept, share.model_bytes)
        + min(MOST_DRAWS * DRAWN_BYTES * kept, share.draw_bytes)
        for share in shares
    )
    # 117 kB of style and scripts; beside these arrays a run on MNIST takes up to 185 kB
    assert 4 / 3 * total + 117_000 + 185_000 * n < MAX_BYTES


def test_history_of_a_population_is_its_first_member():
    rows = [{"epoch": i, "elbo": [float(i), 0.0], "note": "x"} for i in range(3)]
    assert history_columns(rows) == {"epoch": [0, 1, 2], "elbo": [0.0, 1.0, 2.0]}
    assert history_columns([]) is None
    long = history_columns([{"epoch": i, "elbo": 1.0} for i in range(1000)])
    assert len(long["epoch"]) <= 401
    assert long["epoch"][-1] == 999


def test_chains_that_agree_and_chains_that_do_not():
    network = Network.of(mlp((4,), 1, ()), Gaussian())
    generator = torch.Generator().manual_seed(0)
    data = table_data()

    def report(*shifts):
        members = [
            Samples(network, torch.randn(200, 5, generator=generator) + shift) for shift in shifts
        ]
        return chains(Source("s", "s", members[0], data, members=tuple(members)))

    good, bad = report(0, 0), report(0, 5)
    assert (good["n_chains"], good["n_draws"]) == (2, 200)
    assert max(good["rhat"]) < 1.1 < 1.5 < bad["rhat"][len(bad["rhat"]) // 2]  # sorted
    assert min(good["ess"]) > 100
    point = Samples(network, torch.zeros(1, 5))
    assert chains(Source("s", "s", point, data)) is None
