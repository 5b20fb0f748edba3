"""How good the kept models are, where the history carries a configuration that says how to tell."""

from __future__ import annotations

from collections.abc import Sequence

from fedcrab.history import History

MOST_MODELS = 100  # are judged, evenly spread

Point = list[float | None]  # the round before which a model stood, accuracy, attack success


def accuracies(history: History) -> list[Point]:
    """Accuracy and attack success of kept models and of the last one; needs the extra ``simulate``."""
    from fedcrab.experiment.curve import measured
    from fedcrab.experiment.recover_command import setup_of

    setup = setup_of(history, 0)
    try:
        models = [(t, history.model(t)) for t in spread(history.kept)]
        last = (len(history.rounds), history.final_model())
        return [[t, *measured(setup, model).values()] for t, model in [*models, last]]
    finally:
        setup.close()


def spread(rounds: Sequence[int]) -> list[int]:
    """At most as many rounds as are judged, the first and the last among them."""
    if len(rounds) <= MOST_MODELS:
        return list(rounds)
    step = (len(rounds) - 1) / (MOST_MODELS - 1)
    return [rounds[round(place * step)] for place in range(MOST_MODELS)]
