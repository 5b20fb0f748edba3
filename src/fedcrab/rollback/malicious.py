"""Which clients are named malicious, from the command line, from a detector, or from an earlier recovery."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from fedcrab.errors import ConfigError, shown
from fedcrab.history import History
from fedcrab.types import ClientId, natural

SUSPECTS = "Suspects:"  # starts the line that detect prints and that we read back
NO_SIGN = "No sign of attack"
LONGEST = 2**26  # bytes
TOKEN = re.compile(r'[ \t]*(?:"((?:[^"]|"")*)"[ \t]*|([^,]*))(?:,|$)')


def parse_malicious(options: Iterable[str], given: TextIO) -> list[ClientId]:
    """Return the clients in the options ``3,7``, ``-`` (standard input) and ``@FILE``, in order, each once.

    Quote an id with a comma or a quotation mark as in CSV: ``"CN=site 3,O=Acme",7``. A file has such lines,
    or the output of ``detect``, as text or as JSON.
    """
    ids = list(dict.fromkeys(client for option in options for client in _named_by(option, given)))
    if not ids:
        raise ConfigError("--malicious names no client; give ids such as --malicious 3,7")
    return ids


def _named_by(option: str, given: TextIO) -> list[ClientId]:
    if option.strip() == "-":
        return _ids_in_text(given.read(LONGEST), "standard input")
    if option.startswith("@"):
        return _ids_in_text(_content(Path(option[1:])), option[1:])
    return listed(option)


def _content(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.read(LONGEST)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); --malicious @FILE reads ids"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path}: contains invalid UTF-8; --malicious @FILE reads ids, one line each"
        ) from error


def _ids_in_text(text: str, where: str) -> list[ClientId]:
    if text.lstrip().startswith("{"):
        return _suspects(text, where)
    lines = text.splitlines()
    if any(line.startswith(NO_SIGN) for line in lines):
        raise _nobody(where)
    suspects = [line.removeprefix(SUSPECTS) for line in lines if line.startswith(SUSPECTS)]
    return [client for line in suspects or lines for client in listed(line)]


def listed(line: str) -> list[ClientId]:
    """Return the ids of one line, separated by commas and quoted as in CSV if necessary."""
    return [token.text for token in _tokens(line) if token.text]


class Token(NamedTuple):
    """One item of a list with commas; a quoted item is always an id."""

    text: str
    quoted: bool


def _tokens(line: str) -> Iterator[Token]:
    for found in TOKEN.finditer(line):
        inside, plain = found.groups()
        if inside is None and plain.startswith('"'):
            raise ConfigError(
                f"{shown(line, 80)}: a quotation mark is not closed; quote an id as in CSV, and double each "
                "quotation mark that is part of it"
            )
        yield Token(plain.strip(), False) if inside is None else Token(inside.replace('""', '"'), True)


def quoted(client: ClientId) -> str:
    """Return an id in the form that :func:`listed` reads."""
    plain = not set(client) & set('",@') and client not in ("", "-") and client == client.strip()
    return client if plain else '"' + client.replace('"', '""') + '"'


def join_quoted(clients: Iterable[ClientId]) -> str:
    """Return these clients in one line, in the form that :func:`listed` reads."""
    return ", ".join(map(quoted, sorted(clients, key=natural)))


def _suspects(text: str, where: str) -> list[ClientId]:
    """Return the suspects of a detection in JSON."""
    suspects = json_table(text).get("suspects")
    if not are_texts(suspects):
        raise ConfigError(f"{where}: not the JSON output of 'fedcrab detect --json'")
    if not suspects:
        raise _nobody(where)
    return list(suspects)


def json_table(text: str | bytes) -> dict[str, Any]:
    """Return a JSON table; an empty one for anything else."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _nobody(where: str) -> ConfigError:
    return ConfigError(f"{where}: the detector found no sign of attack, so nobody is named malicious")


def with_since(
    ids: Sequence[str], since: Sequence[str], history: History, earlier: Mapping[ClientId, int]
) -> dict[ClientId, int]:
    """Return every malicious client with the round from which it is malicious: 0 unless given.

    ``ids`` may contain items such as ``3@20``: client 3 from round 20 on. An id of the history always means
    that client, even if it looks like such an item (``alice@hospital.org``, or ``3@20`` itself). ``since``
    has a round for all clients without their own, or items such as ``3@20``. ``earlier`` are the clients of
    an earlier recovery.
    """
    known = {*history.clients, *(r.client for entry in history.rounds for r in entry.rejected)}
    own = dict(_client_round(text, known) for text in since if not _is_round(text))
    everyone = [int(text) for text in since if _is_round(text)]
    if len(everyone) > 1:
        raise ConfigError(f"--since gives two rounds for all clients, {everyone[0]} and {everyone[1]}")
    rounds = dict(_with_round(text, known) for text in ids)
    usual = everyone[0] if everyone else 0
    found = {**earlier, **{client: usual if start is None else start for client, start in rounds.items()}}
    if unnamed := [client for client in own if client not in found]:
        raise ConfigError(f"--since: client {unnamed[0]} is not named malicious")
    return {**found, **own}


def _client_round(text: str, known: Collection[ClientId]) -> tuple[ClientId, int]:
    client, start = _with_round(text, known)
    if start is None:
        raise ConfigError(f"--since takes a round such as 20, or a client's round such as 3@20; got {text!r}")
    return client, start


def _with_round(text: str, known: Collection[ClientId]) -> tuple[ClientId, int | None]:
    client, at, start = text.rpartition("@")
    return (client, int(start)) if text not in known and at and _is_round(start) else (text, None)


def _is_round(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
