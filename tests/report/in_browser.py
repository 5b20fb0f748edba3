"""Debian's Chromium, driven by Playwright: a page opened from its file, watched for errors and requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedcrab import History
from fedcrab.report.page import page_data, write_page

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LISTEN = "document.addEventListener('answered', (event) => { window.answer = event.detail; });"
ANSWER = """() => {
  window.ids ??= JSON.parse(document.getElementById("facts").textContent).clients;
  const told = (plan) => plan && {
    ...plan,
    shares: [...plan.shares].map(([c, x]) => [window.ids[c], x]),
    replay: plan.replay.map((s) => [s.round, s.clients.map((c) => window.ids[c])]),
  };
  const { refused, plan, presets } = window.answer;
  return { refused, plan: told(plan), hardened: told(presets.hardened), paper: told(presets.paper) };
}"""


class Opened:
    """A page in the browser."""

    def __init__(self, page: Any) -> None:
        self.page, self.complaints, self.requests = page, list[str](), list[str]()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))
        page.add_init_script(LISTEN)

    def click_client(self, client: str) -> None:
        ids = self.page.evaluate("JSON.parse(document.getElementById('facts').textContent).clients")
        self.page.locator(f'#map-clients button[data-client="{ids.index(client)}"]').click()

    def choose(self, name: str, value: str) -> None:
        """Click a radio button where it is, though the page may just be laid out again."""
        button = self.page.locator(f'input[name="{name}"][value="{value}"]')
        button.evaluate("button => button.click()")
        assert button.is_checked()

    def answer(self) -> dict[str, Any]:
        """What the page has computed last."""
        answer: dict[str, Any] = self.page.evaluate(ANSWER)
        for plan in (answer[name] for name in ("plan", "hardened", "paper") if answer.get(name)):
            plan["shares"] = dict(plan["shares"])
        return answer

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())


@contextmanager
def opened(browser: Any, path: Path, **context: Any) -> Iterator[Opened]:
    """A page, closed at the end; it must not have complained or asked for anything."""
    context = {"viewport": {"width": 1280, "height": 900}, **context}
    tab = browser.new_context(**context)
    tab.set_default_timeout(300_000)  # ms; a busy machine takes its time
    try:
        page = Opened(tab.new_page())
        page.page.goto(path.as_uri())
        yield page
        assert page.complaints == []
        assert page.requests == [path.as_uri()]
    finally:
        tab.close()


def written(history: History, path: Path, *marked: str, recovered: Path | None = None) -> Path:
    """The page of a history."""
    write_page(path, page_data(history, marked, recovered))
    return path
