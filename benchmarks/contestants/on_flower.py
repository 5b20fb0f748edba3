"""Flower: its simulation engine on Ray, one core a client.

A failed round passes silently there; so every round checks that all clients answered.
"""

import os

os.environ["RAY_worker_niceness"] = "0"  # by default its workers yield to everything else
os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from network import accuracy, network
from torch import nn
from trial import Trial

trial = Trial()
answers = []
scores = []


def weights_of(module):
    return [value.numpy() for value in module.state_dict().values()]


def load(module, weights):
    names = module.state_dict()
    module.load_state_dict({name: torch.tensor(w) for name, w in zip(names, weights, strict=True)})


class Client(NumPyClient):
    def __init__(self, number):
        torch.set_num_threads(1)
        self.x, self.y = torch.tensor(trial.x[number]), torch.tensor(trial.y[number])

    def fit(self, weights, config):
        module = network(trial.model)
        load(module, weights)
        optimiser = torch.optim.SGD(module.parameters(), lr=trial.learning_rate)
        for _ in range(trial.epochs):
            for rows in torch.randperm(len(self.y)).split(trial.batch):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(self.x[rows]), self.y[rows]).backward()
                optimiser.step()
        return weights_of(module), len(self.y), {}


def make_client(context):
    return Client(int(context.node_config["partition-id"])).to_client()


def after_round(index, weights, config):
    if index:
        trial.round_done()
    if index == trial.rounds:  # not in between, or it would count as part of a round
        module = network(trial.model)
        load(module, weights)
        scores.append(accuracy(module, trial))
    return 0.0, {}


def make_server(context):
    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=trial.clients,
        min_available_clients=trial.clients,
        initial_parameters=ndarrays_to_parameters(weights_of(network(trial.model))),
        evaluate_fn=after_round,
        fit_metrics_aggregation_fn=lambda metrics: answers.append(len(metrics)) or {},
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=trial.rounds))


if __name__ == "__main__":
    run_simulation(
        ServerApp(server_fn=make_server),
        ClientApp(client_fn=make_client),
        num_supernodes=trial.clients,
        backend_config={
            "init_args": {"num_cpus": trial.cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    assert answers == [trial.clients] * trial.rounds, f"clients that answered: {answers}"
    trial.report(scores[-1])
