"""Draw docs/incident.png, the picture of the incident page in the README, from a page.

usage: python benchmarks/incident_picture.py PAGE.html [--out docs/incident.png]

PAGE is the page of the tutorial's recovery: `fedcrab report recovered -o incident.html --title "Backdoor in
the digits model" --owner "A. Rao, security response" --status contained`. The chart of the training and the
list of suspects are hidden, so that headline and map fit in one picture.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from page import FLAGS
from playwright.sync_api import sync_playwright

SIZE = {"width": 1180, "height": 1420}
HIDDEN = "#training, #suspects { display: none !important; }"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "incident.png")
    asked = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport=SIZE, color_scheme="light", bypass_csp=True)
        page.goto(asked.page.absolute().as_uri())
        page.locator("#map-clients button").first.wait_for()
        page.add_style_tag(content=HIDDEN)
        page.screenshot(path=asked.out)
        browser.close()


if __name__ == "__main__":
    main()
