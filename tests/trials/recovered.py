"""A recovery on disk as the command leaves it, over clients that need no simulator."""

from __future__ import annotations

from pathlib import Path

from fedcrab import plan
from fedcrab.certificate.certificate import certify_folder
from fedcrab.recover import CRAB_PRESETS, AnswerFolder, RecordedFleet, ask_at, crab, resumable, retrain
from fedcrab.recover.folder import RecoveryFolder, write_result
from trials.convex import Training, quadratics, random_training, softmax_regressions

METHODS = {"crab-hardened": (crab, CRAB_PRESETS["hardened"]), "retrain": (retrain, {})}


def recovered(
    place: Path, seed: int = 3, unfound: int = 0, anchor: bool = False
) -> tuple[Training, RecoveryFolder]:
    """A training in place/h, recovered in place/out/crab-hardened, retrained beside it."""
    training = random_training(seed, place / "h", quadratics if seed % 2 else softmax_regressions)
    decided = plan(training.history, training.malicious, beta=3.0, unfound=unfound)
    for method, (function, settings) in METHODS.items():
        folder, request = place / "out" / method, {"method": method, **settings}
        fleet = training.problem
        if anchor and method != "retrain":
            fleet = RecordedFleet(fleet, AnswerFolder(folder, training.history.charter.layout).save)
        steps = list(resumable(folder, function, decided, fleet, request=request, **settings))
        if fleet is not training.problem:
            ask_at(decided, fleet, steps[-1].model)
        write_result(folder, decided, method, steps[-1].model)
    return training, RecoveryFolder.open(place / "out" / "crab-hardened")


def certified(place: Path, unfound: int = 0, **settings: object) -> tuple[Path, dict]:
    """The same, certified with all that is known; the certificate's place and content."""
    from fedcrab.certificate import write_certificate

    training, folder = recovered(place, unfound=unfound)
    given = training.problem.assumptions(gradient=50.0, initial_gap=1e3, rollback_gap=1e3, residual=0.5)
    again = RecoveryFolder.open(place / "out" / "retrain")
    noise = {"epsilon": 0.5, "delta": 1e-5}
    asked = {"assumptions": given, "retrained": again, "noise": noise, **settings}
    table = certify_folder(folder, training.history, **asked).to_table()
    write_certificate(folder.path / "certificate.json", table)
    return folder.path / "certificate.json", table
