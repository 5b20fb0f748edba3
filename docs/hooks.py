"""The site: the API page from docstrings, and links that leave docs/ as plain names."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]+)[^)]*\)")
MODULES = {
    "fedcrab": "What `import fedcrab` gives.",
    "fedcrab.recover": "Recovery methods: generators of steps over a fleet.",
    "fedcrab.detect": "Who is malicious.",
    "fedcrab.audit": "What was planted, since when, and who taught it. Needs the extra `simulate`.",
    "fedcrab.flower": "Recording and recovery on Flower. Needs the extra `flower`.",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of the Python API."""
    files.append(File.generated(config, "api.md", content=api_page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to files of the repository outside docs/ into their names; they must exist."""
    return OUTSIDE.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    words, path = link.group(1), link.group(2)
    if not (ROOT / path).exists():
        return link.group(0)  # mkdocs reports it
    return f"`{path}`" if words.strip("`") in path else f"{words} (`{path}`)"


def api_page() -> str:
    """Every public name with its signature and docstring, module by module."""
    parts = ["# Python API", "Generated from the docstrings; `help(fedcrab.plan)` shows the same."]
    for name, words in MODULES.items():
        module = __import__(name, fromlist=["__all__"])
        parts += [f"## `{name}`", words]
        parts += [_entry(name, public, getattr(module, public)) for public in sorted(module.__all__)]
    return "\n\n".join(parts) + "\n"


def _entry(module: str, name: str, thing: Any) -> str:
    if inspect.ismodule(thing):
        return f"### `{name}`\n\n{_text(thing)}"
    if not callable(thing) or getattr(thing, "__module__", "").partition(".")[0] != "fedcrab":
        return f"### `{name}`\n\nA value or type: `{_shortened(thing)}`."
    lines = [f"### `{name}`", f"```text\n{module}.{name}{_signature(thing)}\n```", _text(thing)]
    if inspect.isclass(thing):
        lines += [_member(*pair) for pair in vars(thing).items() if _shown(*pair)]
    return "\n\n".join(lines)


def _shortened(thing: Any) -> str:
    words = getattr(thing, "__name__", None) or repr(thing)
    return (words if len(words) <= 80 else words[:77] + "...").replace("`", "'").replace("\n", " ")


def _shown(name: str, member: Any) -> bool:
    inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return not name.startswith("_") and inspect.isfunction(inner)


def _member(name: str, member: Any) -> str:
    inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
    call = "" if isinstance(member, property) else "()"
    first = _text(inner).split("\n\n")[0].replace("\n", " ")
    return f"- `{name}{call}`: {first}"


def _signature(thing: Any) -> str:
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r"<[^>]* at 0x[0-9a-f]+>", "...", text)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return (
        text
        if len(text) < 90
        else re.sub(r", (?=[\w*]+(:|=|,|\)))", ",\n    ", text.replace("(", "(\n    ", 1))
    )


def _text(thing: Any) -> str:
    """A docstring as Markdown: indented formulas become blocks, brackets and angles stay text."""
    doc = inspect.getdoc(thing) or "No description."
    doc = re.sub(r":(?:func|class|mod|meth|data):`~?([^`]+)`", r"`\1`", doc).replace("``", "`")
    return doc.replace("<", "&lt;").replace("[", "\\[")
