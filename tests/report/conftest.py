"""One browser for all tests of pages."""

from collections.abc import Iterator
from typing import Any

import pytest

from report.in_browser import CHROMIUM, FLAGS


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, where there is one; `make chromium` installs it."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here; `make chromium` installs it")
    driver = pytest.importorskip("playwright.sync_api")
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=300_000)
        yield chromium
        chromium.close()
