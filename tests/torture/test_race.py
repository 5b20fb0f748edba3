"""Kills at random moments, with a reader looking on: it always sees a committed prefix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torture import faults


def race(directory: Path, kills: int, seed: int) -> dict[str, int]:
    request = json.dumps({"directory": str(directory), "kills": kills, "seed": seed})
    answer = json.loads(faults.python("torture.race", request=request))
    print("{kills} kills of a writer, {histories} histories, {looks} looks of a reader".format(**answer))
    return answer


def test_a_writer_is_killed_and_a_reader_sees_committed_prefixes(tmp_path):
    answer = race(tmp_path, kills=20, seed=1)
    assert answer["kills"] >= 20
    assert answer["looks"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_kills(tmp_path, seed):
    answer = race(tmp_path, kills=500, seed=seed)
    assert answer["kills"] >= 500
    assert answer["looks"] > 500
    assert answer["histories"] > 1
