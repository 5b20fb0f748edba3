"""The incident page in a real browser: its size, the time to open it, and the time of a click.

usage: python benchmarks/page.py [--clicks N]

Synthetic histories of 20 clients × 1,000 rounds, 1,000 × 100 and 5,000 × 10. A click is timed by the
browser's own clock, from the event to the end of all handlers ("answered"), and to the frame that shows the
new picture ("shown"). "CPU" is the work of the page's thread in this time, including layout and painting; it
hardly depends on the load of the machine. Needs Chromium and Playwright (`make test` installs both).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from fedcrab import History, Round, Updates
from fedcrab.report.page import page_data, write_page

SIZES = ((20, 1000), (1000, 100), (5000, 10))
PARAMETERS = 2000
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
CLICK = """(button) => new Promise((done) => {
  const begun = performance.now();
  button.click();
  const answered = performance.now() - begun;
  requestAnimationFrame(() => setTimeout(() => done([answered, performance.now() - begun]), 0));
})"""


def synthetic(path: Path, clients: int, rounds: int) -> History:
    """Random updates around a common direction; a tenth of the clients pulls another way."""
    rng, names = np.random.default_rng(0), tuple(sorted(str(i) for i in range(clients)))
    model = np.zeros(PARAMETERS, np.float32)
    pull = np.where(np.arange(clients) < clients / 10, -1, 1)[:, None].astype(np.float32)
    with History.create(path, model, initial_loss=2.3) as history:
        for t in range(rounds):
            vectors = rng.normal(size=(clients, PARAMETERS)).astype(np.float32) + 0.2 * pull
            step = vectors.mean(axis=0)
            updates = Updates(names, vectors, np.full(clients, 50.0))
            history.record(Round(t, model, updates, step, 2.3 * 0.998**t, 0.1))
            model = model + step
    return History.open(path)


def measured(browser: Any, path: Path, clicks: int) -> dict[str, Any]:
    """Seconds to open, and the clicks in milliseconds."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def worked() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(found["value"] for found in metrics if found["name"] == "TaskDuration")

    begun = time.perf_counter()
    page.goto(path.as_uri())
    page.locator("#map-clients button").first.wait_for()
    opened = time.perf_counter() - begun
    buttons = page.locator("#map-clients button")
    times = []
    for place in range(clicks):
        before = worked()
        times.append((*buttons.nth(place % buttons.count()).evaluate(CLICK), worked() - before))
    page.close()
    answered, shown, cpu = zip(*times, strict=True)
    return {"opened": opened, "answered": answered, "shown": shown, "CPU": cpu}


def row(name: str, size: int, found: dict[str, Any]) -> str:
    spans = [
        f"{median(found[kind]):.0f} ms, at most {max(found[kind]):.0f}"
        for kind in ("answered", "shown", "CPU")
    ]
    return f"| {name} | {size / 1e6:.1f} MB | {found['opened']:.1f} s | {' | '.join(spans)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clicks", type=int, default=24)
    clicks = parser.parse_args().clicks
    print(
        "| history | page | opens in | a click is answered in | shown in | CPU |\n|---|---|---|---|---|---|"
    )
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as place:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for clients, rounds in SIZES:
            name = f"{clients:,} clients × {rounds:,} rounds"
            path = Path(place) / f"{clients}.html"
            size = write_page(path, page_data(synthetic(Path(place) / str(clients), clients, rounds)))
            print(row(name, size, measured(browser, path, clicks)), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
