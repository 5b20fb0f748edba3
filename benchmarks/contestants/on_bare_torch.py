"""A bare torch loop: what one writes without any framework, index slices in place of a DataLoader."""

import copy

import torch
from network import accuracy, network
from torch import nn
from trial import Trial

trial = Trial()
torch.set_num_threads(trial.threads)
x, y = torch.tensor(trial.x), torch.tensor(trial.y)
server = network(trial.model)
for _ in range(trial.rounds):
    total = None
    for client in range(trial.clients):
        module = copy.deepcopy(server)
        optimiser = torch.optim.SGD(module.parameters(), lr=trial.learning_rate)
        for _ in range(trial.epochs):
            for rows in torch.randperm(trial.examples).split(trial.batch):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(x[client][rows]), y[client][rows]).backward()
                optimiser.step()
        state = module.state_dict()
        total = state if total is None else {name: total[name] + state[name] for name in state}
    server.load_state_dict({name: value / trial.clients for name, value in total.items()})
    trial.round_done()
trial.report(accuracy(server, trial))
