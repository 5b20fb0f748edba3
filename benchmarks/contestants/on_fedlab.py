"""FedLab: its serial trainer and synchronous server."""

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from network import accuracy, network
from torch.utils.data import DataLoader
from trial import Trial

trial = Trial()
torch.set_num_threads(trial.threads)
x, y = torch.tensor(trial.x), torch.tensor(trial.y)


class Clients(FedDataset):
    def __init__(self):
        super().__init__()
        self.num = trial.clients

    def get_dataset(self, id, type="train"):
        return BaseDataset(x[id], y[id])

    def get_dataloader(self, id, batch_size, type="train"):
        return DataLoader(self.get_dataset(id), batch_size=batch_size, shuffle=True)


trainer = SGDSerialClientTrainer(network(trial.model), trial.clients, cuda=False)
trainer.setup_dataset(Clients())
trainer.setup_optim(trial.epochs, trial.batch, trial.learning_rate)
handler = SyncServerHandler(network(trial.model), trial.rounds, 1.0, cuda=False)
handler.num_clients = trial.clients
while not handler.if_stop:
    broadcast, clients = handler.downlink_package, handler.sample_clients()
    trainer.local_process(broadcast, clients)
    for package in trainer.uplink_package:
        handler.load(package)
    trial.round_done()
trial.report(accuracy(handler.model, trial))
