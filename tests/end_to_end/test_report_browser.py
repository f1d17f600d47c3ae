"""The page of a run in headless Chromium: it moves, answers, fits and asks nobody."""

import json
import re
import struct
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from bayesieve.assess.predict import predict
from bayesieve.report.collect import collect
from bayesieve.report.page import page as write
from bayesieve.report.source import Limits, Source
from browser import chromium, opened
from reports import digits_source, table_source

LIMITS = Limits(points=9, draws=8)


@pytest.fixture(scope="module")
def source():
    return digits_source(
        epochs=12, versions={"torch": torch.__version__}, hashes={"config.json": "0" * 64}
    )


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    """Pages: digits, a regression on a table, and three runs together."""
    home = tmp_path_factory.mktemp("pages")
    table, classes = table_source(), table_source("classification")
    point = Source("dense", "before", source.before, source.data)
    for name, sources in {"digits": [source], "table": [table], "choice": [classes],
                          "three": [source, point, classes]}.items():  # fmt: skip
        (home / f"{name}.html").write_text(write(collect(sources, limits=LIMITS)))
    return home


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser, folder):
    return lambda name, **settings: opened(browser, folder / f"{name}.html", **settings)


def move(page, position):
    page.locator("#cut").evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }",
        str(position),
    )


def data_of(page):
    return json.loads(page.locator("#data").text_content())["runs"][0]


def draw(page, *strokes):
    """Strokes of points (x, y) between 0 and 1."""
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    for points in strokes:
        for i, (x, y) in enumerate(points):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=6)
            if i == 0:
                page.mouse.down()
        page.mouse.up()


def test_the_slider_moves_the_numbers(visit):
    with visit("digits") as page:
        points = data_of(page)["curve"]["points"]
        seen = []
        for position in (0, 4, 8):
            move(page, position)
            point = points[position]
            assert page.locator("#at-weights").text_content() == f"{point['weights']:,}"
            assert page.locator("#at-macs").text_content() == f"{point['macs']:,}"
            meters = page.locator("#layer-meters").text_content()
            assert f"{point['units']['fc1']} of 20" in meters
            assert f"{point['kept'][0]:,} of 1,280" in meters
            seen.append(
                [page.locator(f"#at-{key}").text_content()
                 for key in ("zeros", "quality", "nll", "bytes")]
            )  # fmt: skip
        assert seen[0] != seen[1] != seen[2]


def test_the_slider_works_by_keyboard_and_the_curve_by_click(visit):
    with visit("digits") as page:
        page.locator("#cut").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        points = data_of(page)["curve"]["points"]
        assert page.locator("#at-weights").text_content() == f"{points[2]['weights']:,}"
        curve = page.locator('[data-panel="digits-curve"] svg[role=img]')
        curve.scroll_into_view_if_needed()
        box = curve.bounding_box()
        page.mouse.click(box["x"] + box["width"] - 14, box["y"] + box["height"] / 2)
        assert page.locator("#cut").input_value() == "8"


def test_a_drawing_gives_a_class(visit):
    with visit("digits") as page:
        page.locator("[data-class]").wait_for()  # an example is there from the start
        page.locator("#clear").click()
        page.locator("[data-class]").wait_for(state="detached")
        assert "Draw something" in page.locator("#answer").text_content()
        ring = [(0.5 + 0.24 * x, 0.5 + 0.36 * y) for x, y in
                [(0, -1), (0.8, -0.6), (1, 0), (0.8, 0.6), (0, 1), (-0.8, 0.6), (-1, 0),
                 (-0.8, -0.6), (0, -1)]]  # fmt: skip
        draw(page, ring)
        answer = page.locator("[data-class]")
        answer.wait_for()
        probs = [float(p) for p in answer.get_attribute("data-probs").split()]
        assert answer.get_attribute("data-class") == "0"
        assert sum(probs) == pytest.approx(1, abs=1e-4)
        assert "nats" in page.locator("#epistemic").text_content()
        page.locator("#clear").click()
        answer.wait_for(state="detached")


def test_the_first_stroke_replaces_the_example(visit):
    """The top left corner is black once something was drawn at the lower right."""
    with visit("digits") as page:
        page.locator("[data-class]").wait_for()
        inked = """document.getElementById("pad").getContext("2d")
            .getImageData(0, 0, 140, 140).data.some((v, i) => i % 4 === 3 && v > 0)"""
        assert page.evaluate(inked)
        draw(page, [(0.7, 0.7), (0.9, 0.9)])
        assert not page.evaluate(inked)


def test_drawing_by_keyboard(visit):
    with visit("digits") as page:
        page.locator("[data-class]").wait_for()
        page.locator("#clear").click()
        page.locator("[data-class]").wait_for(state="detached")
        page.locator("#pad").focus()
        page.keyboard.press("Space")
        for _ in range(8):
            page.keyboard.press("ArrowDown")
        page.locator("[data-class]").wait_for()


def test_test_examples_get_the_answers_of_torch(visit, source):
    """The first least certain example, averaged over the draws in the page."""
    with visit("digits") as page:
        run = data_of(page)
        page.locator("[data-class]").wait_for()
        shown = page.locator("[data-class]").get_attribute("data-probs")
        index = run["examples"]["least"]["index"][0]
        x = source.data.test.x[index][None]
        expected = predict(source.model, x, n_samples=run["network"]["n_draws"]).probs[0]
        found = torch.tensor([float(p) for p in shown.split()]).double()
        # the picture in the page has 256 grey levels
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)


def test_the_page_has_compared_itself_with_torch(visit):
    with visit("digits") as page:
        page.wait_for_selector("#self-check[data-worst]")
        check = page.locator("#self-check")
        assert check.text_content().startswith("✓")
        assert float(check.get_attribute("data-worst")) < 1e-3


def test_the_slider_prunes_the_network_in_the_page(visit):
    with visit("digits") as page:
        page.locator("#next-example").click()
        before = page.locator("[data-class]").get_attribute("data-probs")
        move(page, 8)
        after = page.locator("[data-class]").get_attribute("data-probs")
        assert before != after


def test_columns_of_a_table(visit):
    with visit("table") as page:
        page.wait_for_selector("[data-mean]")
        start = float(page.locator("[data-mean]").get_attribute("data-mean"))
        page.locator("#column-0").focus()
        page.keyboard.press("End")
        end = float(page.locator("[data-mean]").get_attribute("data-mean"))
        assert end > start + 1  # the target rises with this column
        assert page.locator("#epistemic").is_visible()
    with visit("choice") as page:
        page.wait_for_selector("[data-class]")
        page.locator("#column-2").select_option("yes")
        assert page.locator("[data-class]").get_attribute("data-class") in ("low", "high")


def test_rows_of_a_table_can_be_tried(visit):
    with visit("choice") as page:
        page.wait_for_selector("[data-class]")
        rows = data_of(page)["examples"]["most"]
        panel = page.locator('[data-panel="toy-examples-most"]')
        assert panel.locator("thead").text_content().startswith("test row")
        panel.get_by_role("button", name="Put it into the network").first.click()
        shown = page.locator("[data-class]").get_attribute("data-probs").split()
        # draws in the page are fewer than those the examples were ranked by
        assert [float(p) for p in shown] == pytest.approx(rows["probs"][0], abs=0.1)
    with visit("table") as page:
        page.wait_for_selector("[data-mean]")
        rows = data_of(page)["examples"]["wrong"]
        panel = page.locator('[data-panel="toy-examples-wrong"]')
        assert f"{rows['surprise'][0]:.2g} std" in panel.text_content()
        panel.get_by_role("button", name="Put it into the network").first.click()
        mean = float(page.locator("[data-mean]").get_attribute("data-mean"))
        assert mean == pytest.approx(rows["mean"][0], abs=0.3)


def test_the_page_says_how_to_make_the_cut(visit, folder, source):
    data = collect([replace(source, provenance={"folder": "runs/a"})], limits=LIMITS)
    (folder / "command.html").write_text(write(data))
    with visit("command") as page:
        command = page.locator("#cut-command")
        assert command.text_content() == "bayesieve compact runs/a --out runs/a-small"
        move(page, 3)
        zeros = data_of(page)["curve"]["points"][3]["zeros"]
        start = f"bayesieve prune runs/a --zeros {zeros:.4f} --score snr --finetune 10 --out "
        assert command.text_content() == start + "runs/a-cut"


def test_dark_and_light(visit):
    paper = "getComputedStyle(document.body).backgroundColor"
    with visit("digits", color_scheme="dark") as page:
        dark = page.evaluate(paper)
        assert page.locator("#theme").text_content() == "Light"
        page.locator("#theme").click()
        light = page.evaluate(paper)
    with visit("digits", color_scheme="light") as page:
        assert page.evaluate(paper) == light
    luminance = [sum(int(v) for v in text[4:-1].split(",")) for text in (dark, light)]
    assert luminance[0] < 150
    assert luminance[1] > 650


@pytest.mark.parametrize("name", ["digits", "table", "three"])
def test_a_phone_of_360_pixels(visit, name):
    with visit(name, viewport={"width": 360, "height": 740}, has_touch=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        cut = page.locator("#cut").bounding_box()
        assert cut["height"] >= 24
        assert cut["x"] >= 0
        assert cut["x"] + cut["width"] <= 360


def test_data_can_be_downloaded(visit):
    with visit("digits", accept_downloads=True) as page:
        with page.expect_download() as csv:
            page.get_by_label("Download Error against sparsity as CSV").click()
        rows = csv.value.path().read_text().splitlines()
        points = data_of(page)["curve"]["points"]
        assert csv.value.suggested_filename == "digits-curve.csv"
        assert len(rows) == len(points) + 1
        assert rows[0].startswith("zeros,removed,weights,threshold,error")
        with page.expect_download() as whole:
            page.get_by_text("All data as JSON").click()
        assert json.loads(whole.value.path().read_text())["format"] == "bayesieve-report"


CAPTURE = """() => {
    window.saved = [];
    URL.createObjectURL = (blob) => { window.saved.push(blob); return "#"; };
    HTMLAnchorElement.prototype.click = () => {};
    const buttons = document.querySelectorAll(".downloads button:not(.picture)");
    buttons.forEach((button) => button.click());
    return Promise.all(window.saved.map((blob) => blob.text()));
}"""


@pytest.mark.parametrize("name", ["digits", "table", "choice", "three"])
def test_every_picture_hands_out_its_data(visit, name):
    with visit(name) as page:
        files = page.evaluate(CAPTURE)
        assert len(files) == page.locator(".downloads button:not(.picture)").count() > 10
        for csv, text in zip(files[::2], files[1::2], strict=True):
            rows = json.loads(text)
            assert len(csv.splitlines()) == len(rows) + 1 > 1
            assert "undefined" not in csv


def test_lines_are_told_apart_without_colour(visit):
    with visit("digits") as page:
        panel = page.locator('[data-panel$="-reliability"]')
        patterns = panel.locator(".legend line").evaluate_all(
            "(nodes) => nodes.map((node) => node.getAttribute('stroke-dasharray'))"
        )
        drawn = panel.locator("svg[role=img] g[class] > path").evaluate_all(
            "(nodes) => nodes.map((node) => node.getAttribute('stroke-dasharray'))"
        )
        assert len(set(patterns)) == 3
        assert drawn == patterns


def test_axes_name_the_target_and_no_dot_lies_on_their_edge(visit):
    with visit("table") as page:
        chart = page.locator('[data-panel$="-fit"] svg[role=img]')
        text = chart.text_content()
        assert "y, target" in text
        assert "y, prediction" in text
        floor = chart.locator(".axis-line").bounding_box()
        dots = [dot.bounding_box() for dot in chart.locator("circle").all()]
        assert min(dot["x"] for dot in dots) > floor["x"]
        assert max(dot["y"] + dot["height"] for dot in dots) < floor["y"]


def test_examples_stand_in_one_row(visit):
    with visit("digits", viewport={"width": 1060, "height": 900}) as page:
        cards = page.locator('[data-panel$="-examples-most"] .example').all()
        assert len(cards) == 8
        assert len({card.bounding_box()["y"] for card in cards}) == 1


def test_several_runs(visit):
    with visit("three") as page:
        header = page.locator("#compare thead").text_content()
        assert all(name in header for name in ("digits", "dense", "toy"))
        assert "digits: 80\u00a0% of the" in page.locator("h1").nth(1).text_content()
        page.get_by_role("tab", name="toy").click()
        assert "toy: 4" in page.locator("h1").nth(1).text_content().lower()
        assert page.get_by_role("tab", name="toy").get_attribute("aria-selected") == "true"
        page.wait_for_selector("#self-check[data-worst]")
        page.keyboard.press("ArrowLeft")
        assert page.get_by_role("tab", name="dense").get_attribute("aria-selected") == "true"
        assert "all weights in use" in page.locator("h1").nth(1).text_content()


def test_runs_are_ranked_only_beyond_chance(visit, source, folder):
    near = replace(source, name="again")
    far = Source("dense", "before", source.before, source.data)
    for name, sources in {"near": [source, near], "far": [source, far]}.items():
        (folder / f"{name}.html").write_text(write(collect(sources, limits=LIMITS)))
    with visit("near") as page:
        row = page.locator("#compare tbody tr").first
        assert row.locator(".best").count() == 0
        assert "not significant" in row.text_content()
        assert page.locator('[data-panel="runs-size"] .dot').count() == 2
    with visit("far") as page:  # 80 % zeros after a few epochs cost more than chance
        row = page.locator("#compare tbody tr").first
        assert row.locator("td").nth(1).get_attribute("class") == "best"
        assert "not significant" not in row.text_content()


def test_a_link_brings_back_what_is_shown(visit, folder, browser):
    with visit("three") as page:
        page.get_by_role("tab", name="toy").click()
        move(page, 2)
        page.locator("#theme").click()
        page.locator("#column-0").focus()
        page.keyboard.press("End")
        shown = page.locator("[data-class]").get_attribute("data-probs")
        page.wait_for_timeout(600)
        link = page.evaluate("location.hash")
        theme = page.evaluate("document.documentElement.dataset.theme")
    assert "run=2" in link
    assert "cut=2" in link
    page = browser.new_page()
    page.goto((folder / "three.html").as_uri() + link)
    page.wait_for_timeout(300)
    assert page.get_by_role("tab", name="toy").get_attribute("aria-selected") == "true"
    assert page.locator("#cut").input_value() == "2"
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    again = page.locator("[data-class]").get_attribute("data-probs")
    assert [float(p) for p in again.split()] == pytest.approx(
        [float(p) for p in shown.split()], abs=1e-3
    )
    page.close()


def test_the_policy_stops_foreign_code_and_requests(browser, folder):
    text = (folder / "digits.html").read_text()
    evil = folder / "evil.html"
    added = '<img src="https://example.org/x.png"><script>document.title = "evil"</script></body>'
    evil.write_text(text.replace("</body>", added))
    page = browser.new_page()
    failed = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.goto(evil.as_uri())
    assert page.title() != "evil"
    assert page.evaluate("document.images[document.images.length - 1].naturalWidth") == 0
    page.close()


def test_names_are_announced(visit):
    """Controls and pictures have names; headings do not skip levels."""
    with visit("digits") as page:
        unnamed = page.evaluate(
            """[...document.querySelectorAll('svg[role=img], canvas[role=img], button, input')]
            .filter((node) => !(node.getAttribute('aria-label') || node.textContent.trim()
            || (node.labels && node.labels.length)) && !node.closest('button')).length"""
        )
        assert unnamed == 0
        levels = page.evaluate(
            "[...document.querySelectorAll('h1,h2,h3,h4')].map((n) => +n.tagName[1])"
        )
        assert levels[0] == 1
        assert all(b - a <= 1 for a, b in pairwise(levels))


def test_it_prints(visit):
    with visit("digits", color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert page.locator(".top").is_hidden()
        assert page.locator(".downloads").first.is_hidden()
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"
        pages = re.findall(rb"/Type\s*/Page[^s]", page.pdf(format="A4"))
        assert 1 < len(pages) <= 6


def test_the_first_screen_answers_the_checks(visit):
    with visit("digits") as page:
        rows = data_of(page)["checks"]
        shown = page.locator("[data-check]")
        assert shown.evaluate_all("(all) => all.map((n) => n.dataset.verdict)") == [
            row["verdict"] for row in rows
        ]
        assert shown.first.bounding_box()["y"] < 500
    with visit("three") as page:
        page.get_by_role(
            "tab", name="dense"
        ).click()  # nothing was removed: no card of size or time
        cards = page.locator(".cards").text_content()
        assert "time" not in cards
        assert "size of the weights" not in cards


def test_no_colour_for_chance(visit, source, folder):
    """A network compared with itself: nothing is green or red but what is counted."""
    data = collect([replace(source, before=source.model)], limits=LIMITS)
    (folder / "same.html").write_text(write(data))
    with visit("same") as page:
        assert page.locator(".cards .loss").count() == 0
        assert "not significant" in page.locator(".cards").text_content()
        assert page.locator('[data-check="error"]').get_attribute("data-verdict") != "fail"


def test_the_slider_is_docked_and_plays(visit):
    with visit("digits", viewport={"width": 900, "height": 700}) as page:
        page.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
        box = page.locator("#cut").bounding_box()
        assert 600 < box["y"] < 700
        page.locator("#play-sieve").click()
        page.wait_for_function("() => Number(document.getElementById('cut').value) >= 2")
        page.wait_for_function(
            "() => document.getElementById('play-sieve').ariaPressed === 'false'"
        )
        stopped = page.locator("#cut").input_value()
        assert "zeros" in page.locator("#dock-words").text_content()
        assert stopped == "8"  # it ends with the empty network
        page.locator("#play-sieve").click()  # and begins again with the dense one
        assert page.locator("#play-sieve").get_attribute("aria-pressed") == "true"
        page.locator("#play-sieve").click()
        assert int(page.locator("#cut").input_value()) < 8


def test_strangers_are_not_answered_and_their_noise_is_not_the_data_s(visit):
    with visit("digits") as page:
        page.locator("[data-class]").wait_for()
        for name in ("A letter", "A shoe", "Noise"):
            page.get_by_role("button", name=name, exact=True).click()
            page.locator("#familiarity.strange").wait_for()
            assert float(page.locator("#familiarity").get_attribute("data-share")) < 0.05
            assert "no answer" in page.locator("#answer").text_content()
            assert "aleatoric" not in page.locator("#answer").text_content()
        assert "of test examples" in page.locator("#epistemic").text_content()


def test_a_dot_of_the_map_goes_into_the_network(visit):
    with visit("digits") as page:
        panel = page.locator('[data-panel="digits-map"]')
        panel.scroll_into_view_if_needed()
        run = data_of(page)
        assert panel.locator(".dot").count() == len(run["map"]["index"]) == 364
        panel.get_by_role("button", name="Next dot").click()
        index = run["map"]["index"][0]
        assert f"test example {index}" in panel.locator(".picked").text_content()
        box = panel.locator("svg[role=img]").bounding_box()
        page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
        page.locator("[data-class]").wait_for()
        before = page.locator("[data-class]").get_attribute("data-probs")
        panel.get_by_role("button", name="Try it").click()
        page.locator("#pad").wait_for()
        assert page.locator("[data-class]").get_attribute("data-probs") != before


def test_sections_fold_on_a_phone_and_links_open_them(visit):
    with visit("digits", viewport={"width": 360, "height": 740}) as page:
        trust = page.locator("#trust .content")
        assert trust.is_hidden()
        page.locator("#trust .fold").click()
        assert trust.is_visible()
        page.evaluate("location.hash = '#training'")
        page.locator("#training .content").wait_for()
        height = page.evaluate(
            """document.getElementById('epistemic').getBoundingClientRect().bottom
            - document.getElementById('pad').getBoundingClientRect().top"""
        )
        assert 200 < height < 740
    with visit("digits") as page:
        assert page.locator("#trust .content").is_visible()
        assert page.locator("#trust .fold").is_hidden()


def test_one_short_sentence_is_announced(visit):
    with visit("digits") as page:
        assert page.locator("[aria-live]").count() == 0
        move(page, 3)
        page.locator("#status", has_text="zeros").wait_for(state="attached")
        assert len(page.locator("#status").text_content()) < 60


def test_axes_say_log_have_three_ticks_and_show_a_break(visit):
    with visit("digits") as page:
        text = page.locator('[data-panel$="-curve"] svg[role=img]').text_content()
        assert "parameters kept (log scale)" in text
        lines = page.locator("svg[role=img]:has(.axis-line)").evaluate_all(
            "(all) => all.map((n) => n.querySelectorAll('.grid-line').length)"
        )
        assert lines
        assert min(lines) >= 3
    with visit("table") as page:
        assert page.locator('[data-panel$="-fit"] .break').count() == 1


def test_charts_tell_their_values_under_the_pointer(visit):
    with visit("digits") as page:
        chart = page.locator('[data-panel$="-risk-coverage"] svg[role=img]')
        chart.scroll_into_view_if_needed()
        chart.hover()
        assert " at " in chart.locator(".hover").text_content()


def test_no_picture_is_nameless_and_no_heading_cell_empty(visit):
    with visit("digits") as page:
        assert page.locator('[role=img][aria-label=""]').count() == 0
        assert page.evaluate(
            "[...document.querySelectorAll('th')].every((n) => n.textContent.trim())"
        )
        names = page.evaluate(
            """[...document.querySelectorAll('button[aria-label]')].filter((n) =>
            !n.getAttribute('aria-label').toLowerCase().includes(n.textContent.trim()))
            .map((n) => n.outerHTML)"""
        )
        assert names == []


def test_the_slider_begins_at_the_dense_network(visit, source):
    with visit("digits") as page:
        run = data_of(page)
        way = run["curve"]["before"]["points"][: run["curve"]["before"]["on_the_way"]]
        page.locator("[data-class]").wait_for()
        page.locator("#cut").focus()
        page.keyboard.press("Home")
        assert page.locator("#cut").input_value() == str(-len(way))
        assert page.locator("#at-weights").text_content() == "1,510"
        assert page.locator("#cut-command").is_hidden()  # nothing to make: it is what was there
        assert "20 of 20 rows" in page.locator(".mask").first.text_content()
        probs = page.locator("[data-class]").get_attribute("data-probs").split()
        example = run["examples"]["least"]["index"][0]
        exact = predict(source.before, source.data.test.x[example : example + 1]).probs[0]
        assert [float(p) for p in probs] == pytest.approx(exact.tolist(), abs=2e-3)
        thumb, marker = (
            page.evaluate(
                f"(() => {{ const box = document.querySelector('{where}').getBoundingClientRect();"
                " return box.left + box.width / 2; })()"
            )
            for where in (".dock .thumb", '[data-panel="digits-curve"] circle[r="7"]')
        )
        assert thumb == pytest.approx(marker, abs=1)  # the thumb is under the marker
        rail = page.locator(".dock .rail").bounding_box()
        page.mouse.click(rail["x"] + rail["width"] - 1, rail["y"] + 10)
        assert page.locator("#cut").input_value() == "8"
        assert page.locator("#at-zeros").text_content().startswith("9")


def test_a_lasso_gathers_thumbnails(visit):
    with visit("digits") as page:
        chart = page.locator('[data-panel="digits-map"] svg[role=img]')
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        corners = [(0.02, 0.02), (0.99, 0.02), (0.99, 0.9), (0.02, 0.9)]
        for i, (x, y) in enumerate(corners):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=4)
            if i == 0:
                page.mouse.down()
        page.mouse.up()
        picked = page.locator(".picked")
        assert "364 test examples inside" in picked.text_content()
        assert page.locator(".thumbnail").count() == 48
        page.locator(".thumbnail").first.click()
        assert "says" in picked.text_content()


def test_a_picture_is_copied_or_saved(visit):
    with visit("digits") as page:
        refuse = "() => { navigator.clipboard.write = () => Promise.reject(new Error('no')); }"
        page.evaluate(refuse)
        with page.expect_download() as saved:
            page.locator('[data-panel="digits-curve"] .picture').click()
        assert saved.value.suggested_filename == "digits-curve.png"
        width, height = struct.unpack(">II", saved.value.path().read_bytes()[16:24])
        assert width > 1500
        assert height > 400


def test_tables_have_dependence_under_their_sliders_and_ranks(visit):
    with visit("table") as page:
        curves = data_of(page)["dependence"]
        shown = page.locator(".slider .dependence")
        assert shown.count() == len(curves)
        label = shown.first.get_attribute("aria-label")
        assert "Average answer by" in label
        line = shown.first.locator("line").last
        before = line.get_attribute("x1")
        page.locator(".slider input").first.evaluate(
            "(node) => { node.value = node.max; node.dispatchEvent(new Event('input')); }"
        )
        assert line.get_attribute("x1") != before
        assert page.locator('[data-panel$="-ranks"] rect').count() >= 11
        ways = page.locator(".ways").text_content()
        assert "predict the mean" in ways
        assert "linear model" in ways
    with visit("choice") as page:
        assert "P(" in page.locator(".slider .dependence").first.text_content()


def test_words_of_settings_tell_their_meaning(visit):
    with visit("digits") as page:
        assert page.locator(".kicker abbr").first.get_attribute("title").startswith("engine: ")
        assert page.locator(".ways abbr", has_text="ECE").get_attribute("title")
        assert page.locator("#command").count() == 1
