"""pfl: federated averaging on its simulated backend."""

import torch
from network import accuracy, network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from trial import Trial

trial = Trial()
torch.set_num_threads(trial.threads)
x, y = torch.tensor(trial.x), torch.tensor(trial.y)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = network(trial.model)

    def forward(self, x):
        return self.body(x)

    def loss(self, x, y, eval=False):
        self.train(not eval)
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y, eval=False):
        return {}


class Clock(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        trial.round_done()
        return False, Metrics()


module = Network()
turn = iter(range(10**9))
dataset = FederatedDataset(
    lambda user: Dataset(raw_data=[x[user], y[user]], user_id=str(user)), lambda: next(turn) % trial.clients
)
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=trial.rounds,
        evaluation_frequency=10**6,
        train_cohort_size=trial.clients,
        val_cohort_size=0,
    ),
    SimulatedBackend(training_data=dataset, val_data=dataset),
    PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
    NNTrainHyperParams(
        local_learning_rate=trial.learning_rate, local_num_epochs=trial.epochs, local_batch_size=trial.batch
    ),
    callbacks=[Clock()],
)
trial.report(accuracy(module, trial))
