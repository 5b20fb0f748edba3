"""fedcrab's own simulator."""

import numpy as np
from trial import Trial

from fedcrab.simulate import LocalTraining, Predictor, SimulatedFleet, from_arrays, initial_model

trial = Trial()
data = from_arrays(
    trial.x.reshape(-1, 1, 28, 28), trial.y.reshape(-1), trial.test_x, trial.test_y, name="trial"
)
parts = tuple(np.split(np.arange(trial.clients * trial.examples), trial.clients))
local = LocalTraining(learning_rate=trial.learning_rate, batch=trial.batch, epochs=trial.epochs)
name = "own_module:own" if trial.model == "own" else trial.model
with SimulatedFleet(data, parts, name, seed=0, local=local, workers=trial.cores) as fleet:
    model = initial_model(fleet.architecture, seed=0)
    for index in range(trial.rounds):
        updates = fleet.train(model, fleet.clients, round=index)
        model = model + np.float32(updates.weights / updates.weights.sum()) @ updates.vectors
        trial.round_done()
accuracy = Predictor(fleet.architecture).accuracy(model, trial.test_x, trial.test_y)
trial.report(accuracy)
