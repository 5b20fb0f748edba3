"""Makes the job that recovers a model from the folder of the job that trained it.

Scripts, their arguments, filters and settings of single sites are copied unchanged, so that sites repeat
what they did in the training. On the server, a Recovery replaces the workflow.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcrab.errors import ConfigError
from fedcrab.nvflare.recovery import Recovery

SERVER = "config/config_fed_server.json"
RECORDER = (
    "fedcrab.nvflare.Recorder",
    "fedcrab.nvflare.recorder.Recorder",
)  # as people and FLARE write it
RECOVERY = "fedcrab.nvflare.Recovery"


def make_recovery_job(
    training: str | Path, out: str | Path, *, min_clients: int | None = None, **settings: Any
) -> Path:
    """Write the folder of a recovery job to ``out`` and return its path.

    ``training`` is the folder of the recorded job, as `recipe.export` or `FedJob.export_job` writes it.
    ``settings`` are those of :class:`fedcrab.nvflare.Recovery`: history, malicious, recovered and others.
    ``min_clients`` is the number of sites that the job waits for before it starts; by default that of the
    training less the malicious sites. Raises ConfigError, and writes nothing, if this is not possible.
    """
    training, out = Path(training), Path(out)
    meta, configured = _read(training / "meta.json"), _servers(training)
    try:
        recovery = Recovery(**settings)
    except TypeError as error:  # an unknown name, or a value of another kind
        raise ConfigError(f"a setting of the recovery is wrong: {error}") from error
    if out.exists():
        raise ConfigError(f"{out}: there is something already; choose another folder for the job")
    sites = min_clients or _sites_needed(meta, recovery)
    meta = {**meta, "name": f"{meta.get('name', training.name)}-recovery", "min_clients": sites}
    shutil.copytree(training, out, ignore=_copied_fedcrab)
    _write(out / "meta.json", meta)
    for path, config in configured.items():
        _write(out / path.relative_to(training), _recovering(config, settings))
    return out


def _sites_needed(meta: Mapping[str, Any], recovery: Recovery) -> int:
    trained = meta.get("min_clients", 1)
    return max(1, trained - len(recovery.named())) if isinstance(trained, int) else 1


def _servers(training: Path) -> dict[Path, dict[str, Any]]:
    """Return the server's configuration of each app of the job that has one."""
    found = {path: _read(path) for path in sorted(training.glob(f"*/{SERVER}"))}
    if not found:
        raise ConfigError(
            f"{training}: no */{SERVER} in it; name the folder of the training's job, as "
            "recipe.export(job_dir=...) writes it"
        )
    return found


def _recovering(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with a Recovery as its only workflow and without the Recorder."""
    workflow = {"id": "controller", "path": RECOVERY, "args": dict(settings)}
    others = [part for part in config.get("components", []) if part.get("path") not in RECORDER]
    return {**config, "workflows": [workflow], "components": others}


def _copied_fedcrab(folder: str, names: list[str]) -> list[str]:
    """Return what not to copy: FLARE puts fedcrab's source into a job, but the server has it installed."""
    return ["fedcrab"] if Path(folder).name == "custom" and "fedcrab" in names else []


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a part of a FLARE job: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: not a part of a FLARE job: no table in it")
    return found


def _write(path: Path, config: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(config, indent=2) + "\n")
