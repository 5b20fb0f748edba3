"""A round is written while the next one trains: when it counts, and what a failing disk does."""

from pathlib import Path

import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg
from scenes import HASTY, everyone, grid, initial, recorded

from fedcrab import History, HistoryError
from fedcrab.flower import Recorder
from torture import forge


def rounds(path: Path) -> int:
    return len(History.open(path).rounds)


def test_no_round_is_made_before_the_one_before_it_is_on_the_disk(tmp_path: Path) -> None:
    found = []

    class Looks(FedAvg):
        def aggregate_train(self, server_round, replies):
            found.append((server_round, rounds(tmp_path / "h")))
            return super().aggregate_train(server_round, replies)

    recorded(tmp_path / "h", grid(), strategy=everyone(Looks))
    assert found == [(1, 0), (2, 1), (3, 2), (4, 3)]


def test_the_callers_evaluation_sees_a_model_once_its_round_is_on_the_disk(tmp_path: Path) -> None:
    found = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        found.append((server_round, (tmp_path / "h").is_dir() and rounds(tmp_path / "h")))
        return MetricRecord({"loss": 1.0})

    recorder = Recorder(everyone(), tmp_path / "h", evaluate_fn=lambda *_: None, patience=HASTY)
    recorder.start(grid(), initial(), num_rounds=3, evaluate_fn=evaluate)
    assert found == [(0, False), (1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("failing", [2, 4])
def test_a_round_that_cannot_be_written_ends_the_training_and_is_done_again(
    failing: int, tmp_path: Path
) -> None:
    snapshots, away, made = tmp_path / "h" / "snapshots", tmp_path / "away", []

    class DiskGoes(FedAvg):
        def aggregate_train(self, server_round, replies):
            made.append(server_round)
            if server_round == failing:
                snapshots.rename(away)
            return super().aggregate_train(server_round, replies)

    with pytest.raises(HistoryError, match=f"round {failing - 1} was not recorded"):
        recorded(tmp_path / "h", grid(), strategy=everyone(DiskGoes))
    assert made[-1] == failing  # the next was not made
    away.rename(snapshots)
    assert rounds(tmp_path / "h") == failing - 1
    whole = recorded(tmp_path / "whole", grid())
    assert [r.digests for r in recorded(tmp_path / "h", grid()).rounds] == [r.digests for r in whole.rounds]
    assert History.verify(tmp_path / "h") == []


def test_a_training_killed_while_it_closes_its_history_is_closed_when_started_again(tmp_path: Path) -> None:
    contents = recorded(tmp_path / "h", grid()).contents
    forge.write_head(tmp_path / "h", contents.entries, contents.head, None)  # not sealed yet
    assert History.verify(tmp_path / "h") != []
    recorded(tmp_path / "h", grid())
    assert History.verify(tmp_path / "h") == []
