"""The certificate of a recovery that lies in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedcrab.certify.assumptions import Assumptions
from fedcrab.certify.certificate import Certificate, made
from fedcrab.certify.document import NAME, read_certificate
from fedcrab.certify.folder import SUMMARY, Folder
from fedcrab.certify.inputs import CRAB, Inputs
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.history import History
from fedcrab.rollback import SETTINGS, plan


def certificate_of(
    folder: Folder,
    history: History,
    *,
    assumptions: Assumptions,
    retrained: Folder | None = None,
    noise: Mapping[str, float] | None = None,
    estimate: bool = True,
) -> Certificate:
    """State what can be proved of the recovery in a folder."""
    asked, decided = folder.request, folder.summary.get("plan")
    if asked.get("history") != history.contents.head:
        raise HistoryError(f"{folder.path}: recovered from another state of {history.path}")
    if not isinstance(decided, Mapping) or not {*SETTINGS} <= {*decided}:
        raise DamagedError(f"{folder.path / SUMMARY}: does not say what was decided")
    asked_for = [name for name in (*SETTINGS, "unfound") if name in decided]
    chosen = plan(history, **{name: decided[name] for name in asked_for})
    inputs = Inputs.of(
        chosen,
        method=asked.get("method", ""),
        aggregation=history.charter.aggregation,
        crab={name: asked[name] for name in CRAB} if {*CRAB} <= {*asked} else None,
        assumptions=assumptions,
        estimate=estimate,
        noise=noise,
    )
    return made(inputs, chosen, folder.evidence(history, retrained))


def find_folder(place: Path) -> Folder:
    """The recovery in a directory, or the only one in its folders."""
    if (place / SUMMARY).is_file() or not place.is_dir():
        return Folder.open(place)
    inner = sorted(path.parent for path in place.glob(f"*/{SUMMARY}"))
    if len(inner) > 1:
        raise ConfigError(
            f"{place}: several recoveries ({', '.join(p.name for p in inner)}); name one of them"
        )
    return Folder.open(inner[0] if inner else place)


def declared_in(folder: Folder) -> Assumptions:
    """What the certificate that lies there already declares; nothing where there is none."""
    try:
        return Inputs.from_table(read_certificate(folder.path / NAME).get("inputs")).assumptions
    except (DamagedError, ConfigError):
        return Assumptions()
