"""The page around the facts: one file, nothing fetched, nothing in it that a client's name could break."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

ASSETS = files("fedcrab.report.page") / "assets"
ARITHMETIC = ("arithmetic.js", "plan.js", "reading.js")  # without a page: these run anywhere
SCRIPTS = (
    *ARITHMETIC,
    *("dom.js", "chart.js", "state.js", "verdict.js", "timeline.js", "suspects.js", "colours.js", "map.js"),
    *("reach.js", "cost.js", "recovered.js", "commands.js", "certificate.js", "main.js"),
)


def asset(name: str) -> str:
    """The text of a file of the page."""
    return (ASSETS / name).read_text(encoding="utf-8")


def script() -> str:
    """All scripts as one, its names its own."""
    return '(() => {\n"use strict";\n' + "\n".join(asset(name) for name in SCRIPTS) + "})();\n"


def embedded(facts: Any) -> str:
    """JSON that can stand inside a script element: it can neither end it nor open a comment in it."""
    text = json.dumps(facts, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def framed(facts: Any) -> str:
    """The whole page."""
    style, code = asset("style.css"), script()
    policy = (
        f"default-src 'none'; script-src '{_hash(code)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": code, "facts": embedded(facts)}
    page = asset("frame.html")
    for name, text in parts.items():
        before, after = page.split(f"@@{name}@@")
        page = before + text + after
    return page


def _hash(text: str) -> str:
    """As a Content-Security-Policy names the one script, or style, that may be there."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
