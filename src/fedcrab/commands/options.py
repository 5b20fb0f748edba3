"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a history.")]
HistoryOrRecovery = Annotated[Path, typer.Argument(metavar="DIR", help="A history, or what 'recover' wrote.")]
Malicious = Annotated[
    str, typer.Option(metavar="IDS", help="Ids of the malicious clients: 3,7; - takes them from a pipe.")
]
Epsilon = Annotated[float | None, typer.Option(help="ε of noise on the rollback model.")]
Delta = Annotated[float | None, typer.Option(help="δ of noise on the rollback model.")]
Unfound = Annotated[
    str | None,
    typer.Option(metavar="COUNT", help="So many others may be malicious, unknown: 2, or 20% of all."),
]
Workers = Annotated[int | None, typer.Option(help="Worker processes; one a core unless given.")]
HistoryPlace = Annotated[
    Path | None, typer.Option("--history", metavar="DIR", help="Where the history is, if it was moved.")
]
Retrained = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A retraining; the folder 'retrain' beside, unless told.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
