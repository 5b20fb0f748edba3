"""The command ``detect``: who seems to be malicious, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from click import Choice
from rich.console import RenderableType
from rich.text import Text

from fedcrab.cli.output import (
    AsJson,
    Directory,
    busy,
    malicious_words,
    print_json,
    print_next,
    print_tables,
)
from fedcrab.detect import DETECTORS, Detection, join, ledger
from fedcrab.detect.detection import NOT_LOOKED_FOR, no_configuration
from fedcrab.errors import ConfigError
from fedcrab.extras import has_extra, install, need_extra
from fedcrab.history import History
from fedcrab.progress import Progress
from fedcrab.recover.cost import planned_costs
from fedcrab.recover.methods import default_method
from fedcrab.report.tables import number
from fedcrab.rollback.decision import Plan
from fedcrab.rollback.malicious import NO_SIGN, SUSPECTS, quoted
from fedcrab.rollback.onset import EARLIER, Onset, onset
from fedcrab.terminal_table import Column, FittedTable
from fedcrab.types import ClientId, natural

WIDTH = 24  # of the longest bar
EIGHTHS = " ▏▎▍▌▋▊▉"
LONGEST = 60  # clients shown unless all are asked for; suspects are always shown


app = typer.Typer()


def detection_tables(detection: Detection, *, everything: bool = False) -> Sequence[RenderableType]:
    """Return a table of the clients' scores with reasons, the judgement in one line, and the notes."""
    bars = Column("", 1, left=True, name="the bars")
    table = FittedTable("Clients", "client", "score", bars, "sure", Column("because of", prose=True))
    flagged = {*detection.suspicions, *detection.apart}
    ranked = sorted(
        detection.scores, key=lambda c: (c not in detection.suspicions, c not in detection.apart, natural(c))
    )
    shown = ranked if everything else ranked[: max(LONGEST, len(flagged))]
    most = max(detection.scores.values(), default=0.0)
    for client in shown:
        _add(table, detection, client, most)
    if len(shown) < len(ranked):
        table.caption = f"{len(shown)} of {len(ranked)}; --all shows every one"
    return [table, _judgement(detection), *(Text(f"! {note}", style="yellow") for note in detection.notes)]


def onset_lines(found: Onset, since: Mapping[ClientId, int], saving: Plan | None = None) -> list[Text]:
    """Return when the named clients began, as far as it is visible; ``saving`` is the plan it would allow."""
    if found.round is None or found.certain is None:
        return [Text(f"It is not clear when they started: {found.why}.")]
    if late := sorted((c for c, t in since.items() if t > found.certain), key=natural):
        warning = f"! They differ from the others by round {found.certain}, but count as honest until later: "
        return [Text(warning + ", ".join(late), style="yellow")]
    if since or not found.since:
        return [Text(f"They differ visibly from the others from round {found.round} on.")]
    seen = (
        f"They show no sign of an attack before round {found.round}, and a clear one by round {found.certain}"
    )
    cost = ""
    if saving is not None:
        share = planned_costs(saving, saving)[default_method(saving.history)[0]].share_of_retrain
        cost = f" (back to round {saving.rollback_round}, cost {share:.0%} of full retraining)"
    return [
        Text(
            f"{seen}. If you know that they were honest at first, use --since {found.since}{cost}: "
            f"{EARLIER} rounds earlier, because a first act can be too small to see. An attacker that hides "
            "has no visible start."
        )
    ]


def _add(table: FittedTable, detection: Detection, client: str, most: float) -> None:
    score, found = detection.scores[client], detection.suspicions.get(client)
    apart = detection.apart.get(client)
    style = "red" if found else "yellow" if apart else ""
    cells = (Text(client), number(score), Text(bar(score, most), style=style))
    reason = found.reason if found else f"not named: {apart}" if apart else ""
    table.add_row(*cells, f"{found.confidence:.1%}" if found else "", reason)


def bar(value: float, most: float) -> str:
    """Return a bar of up to WIDTH characters, exact to an eighth of a character."""
    eighths = round(8 * WIDTH * value / most) if most > 0 else 0
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def _judgement(detection: Detection) -> Text:
    seen = f"{detection.detector}, {detection.rounds} rounds"
    if detection.attack:
        return Text(
            f"{SUSPECTS} {', '.join(map(quoted, detection.suspects))}", no_wrap=True
        )  # in one piece, because programs may read it
    if detection.strength >= 1:
        return Text(f"{NO_SIGN} that points to a client ({seen}); but see below")
    return Text(f"{NO_SIGN} ({seen}; strongest signal: {detection.strength:.0%} of the alarm threshold)")


DETECTOR_NAMES = ("all", *DETECTORS, "taught")


@app.command(epilog="Example: fedcrab detect my-history | fedcrab plan my-history --malicious -")
def detect(
    directory: Directory,
    detector: Annotated[
        str,
        typer.Option(click_type=Choice(DETECTOR_NAMES), help="The detector to run; all: each that can run."),
    ] = "all",
    examples: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Inputs x and the wrong labels y that the model gives them."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every client.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with code 1 if there are suspects, for scripts.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Name the clients that seem malicious, with reasons; or report no sign of attack.

    'ledger' compares the clients' updates by their measures in the ledger. 'taught' finds who taught the
    model the trigger that an audit finds, or what --examples shows. 'all' does both, and looks for clients
    that make the model unlearn. No client is asked.
    """
    with busy("Reading the history"):
        history = History.open(directory)
    with Progress(quiet=as_json) as progress:
        detection = _detection(history, detector, examples, progress)
    began = onset(history, detection.suspects) if detection.attack else None
    if as_json:
        print_json({**detection.to_table(), "onset": began.to_table() if began else None})
    else:
        print_tables(*detection_tables(detection, everything=everything))
        if began is not None:
            print_tables(*onset_lines(began, {}))
            named = malicious_words(dict.fromkeys(detection.suspects, 0))
            print_next("fedcrab", "plan", directory, *named)
        else:
            print_next("fedcrab", "report", directory, "-o", "incident.html")
    if exit_code and detection.attack:
        raise typer.Exit(1)


def _detection(history: History, detector: str, examples: Path | None, progress: Progress) -> Detection:
    if detector in DETECTORS:
        if examples is not None:
            raise ConfigError(f"--examples applies to the detectors taught and all, not to {detector}")
        return DETECTORS[detector](history)
    if detector == "all" and examples is None and not has_extra("simulate"):
        return join([ledger(history)], [f"{NOT_LOOKED_FOR} {install('simulate')}"])
    need_extra("simulate", "asking who taught the model something")
    if not history.clients:
        return ledger(history)  # it says why there is nothing to judge
    if detector == "all" and examples is None and (problem := no_configuration(history)) is not None:
        return join([ledger(history)], [f"{NOT_LOOKED_FOR} {problem}"])  # without importing the simulator
    progress.stage("Loading the simulator")
    from fedcrab.experiment.forensics import detect_everything, detect_taught

    progress.stage("Looking for what was planted, and who taught it")
    return (detect_everything if detector == "all" else detect_taught)(history, examples)
