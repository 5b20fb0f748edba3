"""The command ``certify``: state what is proven about a recovery."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from fedcrab.certificate.assumptions import Assumptions
from fedcrab.certificate.certificate import certify_folder, declared_in
from fedcrab.certificate.document import NAME, signed, write_certificate
from fedcrab.certificate.noise import budget
from fedcrab.cli.output import (
    AsJson,
    Delta,
    Epsilon,
    HistoryPlace,
    Retrained,
    print_json,
    print_next,
    print_tables,
)
from fedcrab.errors import ConfigError
from fedcrab.history.signature import check_private
from fedcrab.name_value import split_pair
from fedcrab.recover.folder import RecoveryFolder, find_folder
from fedcrab.terminal import print_to_stderr
from fedcrab.terminal_table import Column, FittedTable


def certify_recovery(
    place: Path,
    *,
    assume: Sequence[str] = (),
    history: Path | None = None,
    retrained: Path | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    key: Path | None = None,
    estimate: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Path, dict[str, Any]]:
    """Certify a recovery on disk; return the certificate's path and content.

    Everything that a signature would confirm is passed to ``tell`` before anything is signed or written.
    """
    if key is not None:
        check_private(key)
    folder, noise = find_folder(place), budget(epsilon, delta)
    opened = folder.open_history(history)
    known, left = declared_in(folder, key)
    certificate = certify_folder(
        folder,
        opened,
        assumptions=assumed(known, assume),
        retrained=RecoveryFolder.open(retrained) if retrained else folder.retraining(),
        noise=noise or folder.noise(),
        estimate=estimate,
    )
    table = certificate.to_table()
    for line in declarations(table, left):
        tell(line)
    table = table if key is None else signed(table, key)
    write_certificate(folder.path / NAME, table)
    return folder.path / NAME, table


def declarations(table: Mapping[str, Any], left: Assumptions) -> Iterator[str]:
    """Yield what the operator or the folder declares, and what the certificate leaves out."""
    inputs = dict(table["inputs"])
    declared = _settings(inputs.pop("assumptions"))
    yield f"Declared: {declared or 'nothing'}"
    for name in ("malicious", "crab", "noise"):
        value = inputs.pop(name)
        if value:
            inputs[name] = ",".join(value) if name == "malicious" else f"({_settings(value)})"
    retrained = "with" if table["subject"]["retrained_model"] else "without"
    yield f"About: {_settings(inputs)}, {retrained} a retraining, all as the recovery's folder has them"
    if behind := _settings(left.to_table()):
        again = " ".join(f"--assume {pair}" for pair in behind.split(", "))
        yield (
            "Left out: what a certificate declares that this key has not signed. If you vouch for it, repeat "
            f"with {again}"
        )


def _settings(table: Mapping[str, Any]) -> str:
    """Return the values that are set, as ``name=value`` pairs."""
    pairs = ((name, value if isinstance(value, str) else json.dumps(value)) for name, value in table.items())
    return ", ".join(f"{name}={value}" for name, value in pairs if value not in ("null", "false"))


def assumed(known: Assumptions, changes: Sequence[str]) -> Assumptions:
    """Return the assumptions with changes such as ``rate=0.1``; ``rate=null`` removes one."""
    table, names = asdict(known), [f.name for f in fields(Assumptions)]
    for change in changes:
        name, text = split_pair(change, option="--assume", example="rate=0.1")
        if name not in names:
            raise ConfigError(f"--assume: no constant {name[:60]!r}; there are {', '.join(names)}")
        table[name] = _value(change, text)
    return Assumptions(**table)


def _value(change: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--assume {change[:60]}: must be a number, true, false or null") from error


def certificate_tables(path: Path, table: Mapping[str, Any], *, terms: bool) -> list[RenderableType]:
    """Return the conclusion, the place of the file and, with ``terms``, every statement."""
    lines: list[RenderableType] = [_conclusion(table), Text(_written(path, table))]
    if not terms:
        count = sum(term["value"] is not None for term in table["terms"].values())
        return [*lines, Text(f"It rests on {count} statements with their formulas: --terms shows them.")]
    flag, formula = Column("flag", left=True), Column("formula", prose=True)
    statements = FittedTable("Statements", "term", "value", flag, formula)
    for name, term in table["terms"].items():
        if term["value"] is not None:
            statements.add_row(name, f"{term['value']:.6g}", term["flag"], term["formula"])
    unknown = [name for name, term in table["terms"].items() if term["value"] is None]
    left_out = Text(f"Not available, assumptions missing: {', '.join(unknown)}")
    return [*lines, statements, *([left_out] if unknown else [])]


def _conclusion(table: Mapping[str, Any]) -> Text:
    found, check = table["conclusion"], table["terms"].get("answers.refute")
    if check is not None and check["assumes"] and (check["value"] or 0.0) > 1:
        return Text(f"Nothing is claimed: {check['assumes'][0]}.")
    if found["value"] is None:
        return Text(
            "Nothing is proven about the distance to training from scratch: no κ is declared, and no "
            "retraining was run. docs/certificate.md says what can be declared."
        )
    assumed = "; ".join(found["assumes"]) or "nothing"
    return Text(
        f"Proved: the recovered model is at most {found['value']:.6g} from the one trained from scratch "
        f"({found['by']}). This assumes: {assumed}.{_declared(found)}{_beside(found)}"
    )


def _declared(found: Mapping[str, Any]) -> str:
    """Return the declared constants; certificates of format 1 do not list them."""
    constants = [
        name if value is True else f"{name} = {value:.6g}"
        for name, value in found.get("declared", {}).items()
    ]
    return f" Declared: {', '.join(constants)}." if constants else ""


def _beside(found: Mapping[str, Any]) -> str:
    """Return the bound of doing nothing, and which of the two is smaller."""
    nothing = found.get("poisoned")
    if nothing is None or nothing["value"] is None:
        return ""
    sentence = f" For the poisoned model the proven bound is {nothing['value']:.6g} ({nothing['by']})"
    if found["nearer"] == "recovered":
        return f"{sentence}: recovery is proven to be nearer than that bound."
    return f"{sentence}: the proof alone does not favour recovery over doing nothing. It may still be nearer."


def _written(path: Path, table: Mapping[str, Any]) -> str:
    signature = table["signature"]
    return f"{path}: " + (
        f"signed by {signature['public_key'][:16]}…" if signature else "written, not signed"
    )


app = typer.Typer()


@app.command("certify", epilog="Example: fedcrab certify recovered/crab-hardened --assume expansion=1")
def certify_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What 'recover' wrote for one method.")],
    assume: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Declare a constant of the training.")
    ] = None,
    history: HistoryPlace = None,
    retrained: Retrained = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    key: Annotated[Path | None, typer.Option(help="Sign with this Ed25519 private key (PEM).")] = None,
    estimate: Annotated[bool, typer.Option(help="Estimate constants that are not declared.")] = True,
    terms: Annotated[
        bool, typer.Option("--terms", help="Show every statement, its formula and its flag.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """State what is proven about a recovery, under which assumptions; hashes bind it to history and models.

    Declared constants are printed before anything is signed. Those of an earlier certificate are used only
    if nothing is signed, or if the same key signed it.
    """
    path, table = certify_recovery(
        directory,
        assume=assume or [],
        history=history,
        retrained=retrained,
        epsilon=epsilon,
        delta=delta,
        key=key,
        estimate=estimate,
        tell=print_to_stderr,
    )
    if as_json:
        print_json(table)
    else:
        print_tables(*certificate_tables(path, table, terms=terms))
        more = ("--key", "public.pem") if key is not None else ()
        print_next("fedcrab", "verify", path, *more)
