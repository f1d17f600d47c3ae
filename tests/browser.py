"""A headless Chromium for tests of pages; they are skipped where none is found."""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VARIABLE = "BAYESIEVE_CHROMIUM"  # the browser's program, where it has another name


@contextmanager
def chromium():
    """A browser, or a skipped test with the reason."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, NAMES)), None)
    # Chromium refuses to be root with its sandbox; the pages are our own.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        if program is None and not os.path.exists(driver.chromium.executable_path):
            pytest.skip(f"no Chromium found: install one, or name it in {VARIABLE}")
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser, path, **settings):
    """A page opened from disk; raises at the end if it complained or asked for anything."""
    context = browser.new_context(**({"viewport": {"width": 1100, "height": 900}} | settings))
    page = context.new_page()
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    try:
        yield page
    finally:
        context.close()
    address = path.as_uri()
    outside = [url for url in requests if url != address and not url.startswith(("data:", "blob:"))]
    assert complaints == []
    assert outside == []
