"""The site of the documents: built strictly, complete, and loading nothing from elsewhere; the schemas."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import fedcrab
from trials import command

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SMALL = ("--set", "rounds=3", "--set", "clients.count=6", "--set", "attack.fraction=0.3", "--workers", "0")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    place = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(place), strict=True))
    return place


@pytest.mark.long(15)
@pytest.mark.filterwarnings("default")
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.stem: path.read_text() for path in site.glob("*.html")}
    assert {path.stem for path in DOCS.glob("*.md")} <= pages.keys()
    for name, text in pages.items():
        fetched = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?:[^\"]+)", text)
        assert not [address for address in fetched if "canonical" not in address], name
    for public in ("History", "plan", "Selective", "Recorder", "crab"):
        assert f">{public}</code>" in pages["api"] or f"<code>{public}</code>" in pages["api"], public
    assert (site / "schemas" / "plan.json").is_file()


def pages_of(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for inner in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
        yield from pages_of(inner)


def test_every_document_is_in_the_site() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert {path.name for path in DOCS.glob("*.md")} == set(pages_of(nav)) - {"api.md"}


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_citation_has_the_version() -> None:
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (told["version"], told["license"]) == (fedcrab.__version__, "Apache-2.0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("schemas")
    run("train", "digits", "--history", "h", *SMALL, cwd=place)
    return place


def run(*arguments: str, cwd: Path) -> str:
    done = command.fedcrab(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def problems(name: str, document: Any) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((DOCS / "schemas" / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{name} {error.json_path}: {error.message[:200]}" for error in found]


@pytest.mark.long(20)
def test_the_commands_print_what_the_schemas_say(place: Path) -> None:
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (place / "private.pem").write_bytes(key)
    (place / "small.toml").write_text('methods = ["retrain"]\nset = {rounds = 2}\n')
    calls = {
        "train": ("train", "digits", "--history", "again", *SMALL),
        "show": ("show", "h"),
        "detect": ("detect", "h", "--detector", "ledger"),
        "plan": ("plan", "h", "--malicious", "1"),
        "methods": ("recover", "h", "--malicious", "1", "--out", "out", "--workers", "0"),
        "certificate": ("certify", "out/replay"),
        "verify": ("verify", "h"),
        "seal": ("seal", "h", "--key", "private.pem"),
        "report": ("report", "out", "-o", "page.html"),
        "bench": ("bench", "small.toml", "--results", "found", "--jobs", "1"),
    }
    for name, arguments in calls.items():
        assert problems(name, json.loads(run(*arguments, "--json", cwd=place))) == []
    assert problems("plan", {"malicious": 3})


def test_every_schema_is_documented() -> None:
    text = (DOCS / "schemas.md").read_text()
    for path in sorted((DOCS / "schemas").glob("*.json")):
        assert f"schemas/{path.name}" in text
        assert problems(path.stem, {}), "a schema that nothing can break says nothing"
