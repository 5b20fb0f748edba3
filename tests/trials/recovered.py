"""A recovery on disk as the command leaves it, over clients that need no simulator."""

from __future__ import annotations

import json
from pathlib import Path

from fedcrab import plan
from fedcrab.certify.folder import MODEL, SUMMARY, Folder
from fedcrab.certify.making import certificate_of
from fedcrab.history.snapshots import write_model
from fedcrab.recover import CRAB_PRESETS, crab, resumable, retrain
from trials.convex import Training, quadratics, random_training, softmax_regressions

METHODS = {"crab-hardened": (crab, CRAB_PRESETS["hardened"]), "retrain": (retrain, {})}


def recovered(place: Path, seed: int = 3, unfound: int = 0) -> tuple[Training, Folder]:
    """A training in place/h, recovered in place/out/crab-hardened, retrained beside it."""
    training = random_training(seed, place / "h", quadratics if seed % 2 else softmax_regressions)
    decided = plan(training.history, training.malicious, beta=3.0, unfound=unfound)
    for method, (function, settings) in METHODS.items():
        folder, request = place / "out" / method, {"method": method, **settings}
        steps = list(resumable(folder, function, decided, training.problem, request=request, **settings))
        write_model(folder / MODEL, training.history.charter.layout, steps[-1].model)
        told = {
            "history": str(training.history.path.absolute()),
            "plan": decided.to_table(),
            "method": method,
        }
        (folder / SUMMARY).write_text(json.dumps(told))
    return training, Folder.open(place / "out" / "crab-hardened")


def certified(place: Path, unfound: int = 0, **settings: object) -> tuple[Path, dict]:
    """The same, certified with all that is known; the certificate's place and content."""
    from fedcrab.certify import write_certificate

    training, folder = recovered(place, unfound=unfound)
    given = training.problem.assumptions(gradient=50.0, initial_gap=1e3, rollback_gap=1e3, residual=0.5)
    again = Folder.open(place / "out" / "retrain")
    noise = {"epsilon": 0.5, "delta": 1e-5}
    asked = {"assumptions": given, "retrained": again, "noise": noise, **settings}
    table = certificate_of(folder, training.history, **asked).to_table()
    write_certificate(folder.path / "certificate.json", table)
    return folder.path / "certificate.json", table
