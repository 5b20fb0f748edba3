"""A recording that is killed, or whose disk fails, at each and every operation: whole or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torture import faults

KILLS = ("kill", "torn", "twice")
FAILURES = ("once:ENOSPC", "once:EIO", "lasting:ENOSPC", "lasting:EIO", "quit:EIO", "resume:EIO", "short")
POWER = ("power:all", "power:names", "power:data", "power:zeros", "power:some")
FAULTS = (*KILLS, *FAILURES, *POWER)
SELECTIONS = ("selective", "everything")


def run(
    shim: Path, directory: Path, fault: str, selection: str, stride: int, offset: int = 0
) -> dict[str, Any]:
    """Every ``stride``-th fault point; the operations counted, and the problems found at each point."""
    request = {
        "directory": str(directory),
        "selection": selection,
        "fault": fault,
        "stride": stride,
        "offset": offset,
    }
    answer = json.loads(faults.python("torture.server", library=shim, request=json.dumps(request)))
    print(f"{fault} {selection}: {answer['operations']} operations, {len(answer['points'])} points tried")
    return answer


def problems(answer: dict[str, Any]) -> dict[str, list[str]]:
    return {str(p["point"]): p["problems"] for p in answer["points"] if p["problems"]}


@pytest.mark.long(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_leaves_every_acknowledged_round_and_no_half_round(shim, tmp_path, fault):
    answer = run(shim, tmp_path, fault, "selective", stride=48, offset=FAULTS.index(fault))
    assert answer["operations"] > 300
    assert problems(answer) == {}


@pytest.mark.slow
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_operation(shim, tmp_path, fault, selection):
    answer = run(shim, tmp_path, fault, selection, stride=1)
    assert len(answer["points"]) == answer["operations"]
    assert problems(answer) == {}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["all", "some"])
def test_the_power_goes_after_the_disk_failed(shim, tmp_path, loss):
    answer = run(shim, tmp_path, f"power-after-error:{loss}", "selective", stride=3)
    assert len(answer["points"]) > 1000
    assert problems(answer) == {}


def test_the_shim_sees_what_sqlite_does(shim, tmp_path):
    answer = run(shim, tmp_path, "log", "selective", stride=1)
    kinds = {(kind, Path(path).name) for kind, path in answer["points"]}
    assert {("WRITE", "ledger.sqlite-wal"), ("SYNC", "ledger.sqlite-wal"), ("SYNC", "ledger.sqlite")} <= kinds
    assert {("RENAME", ".ledger.head.tmp"), ("SYNC", "snapshots"), ("MKDIR", "snapshots")} <= kinds
