"""One file, nothing from outside, and no way for data to become markup or code."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from bayesieve.data import load_data
from bayesieve.deliver.bundle.packing import gaps_of
from bayesieve.report import page as pages
from bayesieve.report.collect import collect
from bayesieve.report.inputs import describe_inputs, familiarity
from bayesieve.report.page import asset, page, script_text, write_report
from bayesieve.uncertainty.familiarity import Familiarity
from reports import QUICK, digits_source, node

HOSTILE = "</script><img src=x onerror=alert(1)><!--"


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.text, self._open = [], {}, None

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._open = (tag, dict(attrs).get("id"))

    def handle_data(self, data):
        if self._open:
            self.text[self._open] = self.text.get(self._open, "") + data


def parse(text):
    parser = Elements()
    parser.feed(text)
    return parser


@pytest.fixture(scope="module")
def data():
    return collect([digits_source()], limits=QUICK)


@pytest.fixture(scope="module")
def text(data):
    return page(data)


def test_nothing_comes_from_outside(text):
    for tag, attributes in parse(text).found:
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), (tag, value)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", text)


def test_the_policy_names_the_script_and_the_style(text):
    policy = dict(parse(text).found[3][1])["content"]
    script = base64.b64encode(hashlib.sha256(script_text().encode()).digest()).decode()
    style = base64.b64encode(hashlib.sha256(asset("page.css").encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{script}'" in policy
    assert f"style-src 'sha256-{style}'" in policy


def test_the_data_come_back(text, data):
    actual = json.loads(parse(text).text["script", "data"])
    assert actual == data


def test_hostile_names_stay_text(data):
    run = {**data["runs"][0], "name": HOSTILE, "title": HOSTILE, "setup": HOSTILE}
    run["data"] = {**run["data"], "classes": [HOSTILE] * 10}
    text = page({**data, "runs": [run]})
    parsed = parse(text)
    assert not [tag for tag, _ in parsed.found if tag == "img"]
    assert json.loads(parsed.text["script", "data"])["runs"][0]["name"] == HOSTILE
    assert text.count("</script>") == 2


def test_a_page_that_would_be_too_large_is_refused(data, monkeypatch):
    monkeypatch.setattr(pages, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="fewer `points`"):
        page(data)


def test_readers_without_javascript_see_the_numbers(text, data):
    body = text[text.index("<noscript>") : text.index("</noscript>")]
    error = data["runs"][0]["headline"]["after"]["quality"]["error"]
    assert f"{100 * error:.2f} %" in body


def test_tempering_is_said_beside_the_doubt(data):
    run = collect([digits_source(epochs=1, kl=0.2)], limits=QUICK)["runs"][0]
    assert "5 times as much data" in run["tempering"]
    assert data["runs"][0]["tempering"] == ""


def test_own_tensors_are_told_how_to_become_a_data_set(tmp_path):
    model = digits_source(epochs=1).model
    with pytest.raises(
        TypeError, match=r"must be a DataSet, got tuple. Make one .* Examples\(x, y\)"
    ):
        write_report(model, (torch.zeros(2, 64), torch.zeros(2)), tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_every_script_parses():
    if shutil.which("node") is None:
        pytest.skip("Node.js is not on the path")
    done = subprocess.run(["node", "--check", "-"], input=script_text(), text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_numbers_as_people_read_them():
    code = """return [
        percent(0.5), percent(0.9987), percent(0.00034), percent(0), percent(null),
        percent(0.125, 1),
        bytes(999), bytes(53000), bytes(2.5e6), short(12345), short(-12345), short(0.5),
        number(0.123456), number(100, 2), number(1e-9), number(-2.5), number(null), count(1234567),
        milliseconds(0.05), milliseconds(2),
    ];"""
    assert node(code) == [
        "50\u00a0%", "99.87\u00a0%", "0.034\u00a0%", "0\u00a0%", "–", "12.5\u00a0%",
        "999\u00a0B", "53.0\u00a0kB", "2.50\u00a0MB", "12.3\u00a0k", "−12.3\u00a0k", "0.5",
        "0.1235", "100", "1.0e−9", "−2.5", "–", "1,234,567",
        "50.0\u00a0µs", "2.00\u00a0ms",
    ]  # fmt: skip


@pytest.mark.parametrize("places", [[], [0], [1, 2, 300], [254, 255, 256, 1100]])
def test_places_are_read_as_a_bundle_stores_them(places):
    gaps = gaps_of(np.array(places, np.int64), 2000)
    assert node("return Array.from(placesOf(given.gaps));", gaps=gaps.tolist()) == places


def test_csv_quotes_what_needs_it():
    actual = node('return csv(["a", "b"], [[1, "x,y"], [null, "q\\"q"]]);')
    assert actual == 'a,b\n1,"x,y"\n,"q""q"\n'


def test_ticks_are_round_and_inside():
    assert node("return ticks(0, 1, 5);") == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert node("return logTicks(0.02, 0.7);") == pytest.approx([0.02, 0.05, 0.1, 0.2, 0.5])


def test_a_drawing_is_brought_to_the_size_of_the_data():
    """A square drawn small in a corner fills the box and is centred."""
    code = """
        const side = 40, ink = new Float32Array(side * side);
        for (let r = 2; r < 12; r++) for (let c = 25; c < 35; c++) ink[r * side + c] = 1;
        return [Array.from(fitDrawing(ink, side, 28, 28, 20)),
                Array.from(fitDrawing(ink, side, 8, 8, 8)),
                Array.from(fitDrawing(new Float32Array(side * side), side, 8, 8, 8))];
    """
    large, small, nothing = node(code)
    rows = [i // 28 for i, value in enumerate(large) if value > 0.5]
    columns = [i % 28 for i, value in enumerate(large) if value > 0.5]
    assert (min(rows), max(rows), min(columns), max(columns)) == (4, 23, 4, 23)
    assert small == [1] * 64
    assert nothing == [0] * 64


def test_every_log_axis_has_three_ticks():
    code = "return given.ends.map(([a, b]) => logTicks(a, b));"
    ends = [[1, 1.1], [0.013, 0.9], [3, 7], [1e-4, 2], [450, 2000], [0.02, 0.021], [0.9, 0.3]]
    for (low, high), found in zip(ends, node(code, ends=ends), strict=True):
        assert len(found) >= 3
        assert min(low, high) * 0.999 <= min(found)
        assert max(found) <= max(low, high) * 1.001


def test_a_link_holds_the_state_and_nothing_hostile_comes_back():
    code = """
        const state = { cut: 3, run: null, x: encodeInput(Uint8Array.from([0, 255, 7]), true) };
        const read = readState(writeState(state));
        const row = encodeInput(Float32Array.from([0.5, -2]), false);
        return [read.cut, "run" in read, Array.from(decodeInput(read.x, true, 3)), row,
                Array.from(decodeInput(row, false, 2)), decodeInput("%%", true, 3),
                decodeInput("1,x", false, 2), decodeInput(row, false, 3), readState("#trust")];
    """
    assert node(code) == ["3", False, [0, 255, 7], "0.5,-2", [0.5, -2], None, None, None, {}]


def test_a_thin_drawing_gets_the_ink_of_the_data():
    code = """
        const side = 40, ink = new Float32Array(side * side);
        for (let r = 4; r < 36; r++) ink[r * side + 20] = 1;
        const thin = fitDrawing(ink, side, 8, 8, 8), thick = asTrained(ink, side, 8, 8, 8, 12);
        const sum = (values) => values.reduce((a, b) => a + b, 0);
        const nothing = asTrained(new Float32Array(side * side), side, 8, 8, 8, 12);
        return [sum(thin), sum(thick), sum(nothing), shareBelow([0, 1, 2, 3], 1.5)];
    """
    thin, thick, nothing, share = node(code)
    assert thin < 4
    assert thick >= 12
    assert (nothing, share) == (0, 0.5)


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (3, 12, 9)])
def test_the_page_computes_the_familiarity_that_python_does(shape):
    x = torch.randn(300, *shape, generator=torch.Generator().manual_seed(0))
    new = torch.cat([x[:20], 1.7 * x[:20], torch.full((1, *shape), 1e9)])
    code = """
        const known = loadFamiliarity(given.known);
        return given.x.map((row) => [familiarityOf(known, row), strangeness(known, row)]);
    """
    actual = node(code, known=familiarity(Familiarity.of(x)), x=new.flatten(1).tolist())
    known = Familiarity.of(x)
    for (share, distance), a, b in zip(actual, known.score(new), known.distance(new), strict=True):
        assert share == pytest.approx(a.item(), abs=2e-4)
        assert distance == pytest.approx(b.item(), rel=1e-3)


def test_a_dot_an_x_and_a_scribble_on_the_pad_are_unfamiliar_and_digits_are_not():
    data = load_data("digits")
    recipe = describe_inputs(data)
    code = """
        const known = loadFamiliarity(given.known), side = 280;
        const drawn = (line) => { // points of a pen of 22 pixels, as the pad draws
          const ink = new Float32Array(side * side);
          for (const [x, y] of line) {
            for (let r = -11; r <= 11; r++) for (let c = -11; c <= 11; c++) {
              const place = (Math.round(y) + r) * side + Math.round(x) + c;
              if (r * r + c * c <= 121) ink[place] = 1;
            }
          }
          const { shape, box } = given.recipe;
          const values = fitDrawing(ink, side, shape[1], shape[2], box);
          return familiarityOf(known, prepareImage(values, given.recipe));
        };
        const steps = Array.from({ length: 200 }, (_, i) => i / 199);
        const dot = [[140, 140]];
        const cross = steps.map((t) => 60 + 160 * t).flatMap((t) => [[t, t], [280 - t, t]]);
        const scribble = steps.map((t) => [140 + 100 * Math.sin(31 * t), 40 + 200 * t]);
        const zero = steps.map((t) => [140 + 55 * Math.cos(6.3 * t), 140 + 90 * Math.sin(6.3 * t)]);
        return [dot, cross, scribble, zero].map(drawn);
    """
    dot, cross, scribble, zero = node(
        code, known=familiarity(Familiarity.of(data.train.x)), recipe=recipe
    )
    assert max(dot, cross, scribble) < 0.05
    assert zero > 0.05


def test_inputs_are_prepared_as_in_training():
    columns = [
        {"name": "a", "kind": "numeric", "at": 0, "mean": 5, "std": 2, "limit": 20},
        {"name": "c", "kind": "category", "at": 1, "levels": ["no", "yes"]},
    ]
    code = """
        const x = prepareRow([9, 1], given.columns, 3);
        const recipe = { shape: [2, 1, 2], mean: [0, 0.5], std: [1, 0.25] };
        const image = prepareImage([0, 1, 0.5, 0.5], recipe);
        const far = prepareRow([-1e6, 0], given.columns, 3);
        return [Array.from(x), readRow(x, given.columns), Array.from(image), Array.from(far)];
    """
    x, values, image, far = node(code, columns=columns)
    assert x == [2, 0, 1]
    assert far == [-20, 1, 0]
    assert values == [9, 1]
    assert image == [0, 1, 0, 0]
