"""Take the pictures of docs/report.md and the README from the page of the demo.

    bayesieve demo --out runs/demo
    python docs/make_report_images.py runs/demo

Needs Chromium, and playwright (the extra `dev`).
"""

import argparse
import io
import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from bayesieve.runs import report

IMAGES = Path(__file__).parent / "images"
SEVEN = [[(0.26, 0.18), (0.74, 0.18), (0.62, 0.45), (0.45, 0.86)]]


def keep(png: bytes, name: str) -> None:
    """Write a picture with 256 colours: a third of the size, no visible loss."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(IMAGES / f"{name}.png", optimize=True)


def visit(browser: Browser, path: Path, *, width: int, height: int, dark: bool = False) -> Page:
    """The page, once it has compared itself with torch."""
    page = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    page.goto(path.as_uri())
    page.wait_for_selector("#self-check[data-worst]")
    page.wait_for_selector("[data-class]")
    return page


def draw(page: Page, strokes: list[list[tuple[float, float]]]) -> None:
    """Draw over the example that is shown."""
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    assert box is not None
    for points in strokes:
        for i, (x, y) in enumerate(points):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=8)
            if i == 0:
                page.mouse.down()
        page.mouse.up()
    page.wait_for_timeout(200)


def move(page: Page, position: int) -> None:
    """Set the slider."""
    page.locator("#cut").evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }",
        str(position),
    )


def take(browser: Browser, path: Path) -> None:
    """The headline with the curve, the network with a drawing, the zeros, and a phone."""
    page = visit(browser, path, width=1060, height=1560)
    move(page, 6)
    keep(page.screenshot(), "report-slider")
    move(page, 0)
    draw(page, SEVEN)
    keep(page.locator("#try figure.panel").screenshot(), "report-try")
    keep(page.locator('[data-panel$="-masks"]').screenshot(), "report-masks")
    page = visit(browser, path, width=360, height=780, dark=True)
    move(page, 6)
    shots = [page.screenshot()]
    page.locator('[data-panel$="-curve"]').evaluate("(node) => node.scrollIntoView()")
    shots.append(page.screenshot())
    draw(page, SEVEN)
    page.locator("#try").evaluate("(node) => node.scrollIntoView()")
    shots.append(page.screenshot())
    side = Image.new("RGB", (3 * 360 + 40, 780), "white")
    for i, shot in enumerate(shots):
        side.paste(Image.open(io.BytesIO(shot)), (i * 380, 0))
    whole = io.BytesIO()
    side.save(whole, "png")
    keep(whole.getvalue(), "report-phone")


def main() -> None:
    """Build the page of a run and take its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    options = parser.parse_args()
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        path = Path(scratch) / "report.html"
        report([options.run], path, device="cpu")
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        take(browser, path)
        browser.close()


if __name__ == "__main__":
    main()
