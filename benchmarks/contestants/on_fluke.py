"""fluke: its FedAVG."""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataContainer, DataSplitter
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver
from network import accuracy, network
from trial import Trial

trial = Trial()
torch.set_num_threads(trial.threads)
environment = FlukeENV()
environment.set_seed(0)
environment.set_device("cpu")
environment.set_inmemory(True)
environment.set_evaluator(ClassificationEval(eval_every=10**6, n_classes=10))
environment.set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
container = DataContainer(
    torch.tensor(trial.x.reshape(-1, 1, 28, 28)),
    torch.tensor(trial.y.reshape(-1)),
    torch.tensor(trial.test_x),
    torch.tensor(trial.test_y),
    10,
)


class Clock(FederationObserver):
    def end_round(self, round):
        trial.round_done()


module = network(trial.model)
algorithm = FedAVG(
    trial.clients,
    DataSplitter(container, distribution="iid"),
    DDict(
        client=DDict(
            batch_size=trial.batch,
            local_epochs=trial.epochs,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=trial.learning_rate, momentum=0.0, weight_decay=0.0),
            scheduler=DDict(name="StepLR", step_size=10**6, gamma=1.0),
        ),
        server=DDict(weighted=True),
        model=module,
    ),
)
clock = Clock()
algorithm.set_callbacks(clock)
algorithm.run(trial.rounds, 1.0, finalize=False)
trial.report(accuracy(algorithm.server.model, trial))
