"""The server: one line records, two recover."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits import task
from fedcrab import Compact
from fedcrab.flower import Recorder, recover_if_asked

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=0.0)
    if recover_if_asked(grid, context, strategy):
        return
    strategy = Recorder(strategy, config["history"], evaluate_fn=evaluate, selection=Compact())
    initial = ArrayRecord(task.model().state_dict())
    strategy.start(grid=grid, initial_arrays=initial, num_rounds=config["rounds"])


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The loss and the predictions on the server's own examples; leave it out where there are none."""
    x, y = task.held_out()
    net = task.model()
    net.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        predicted = torch.softmax(net(x), 1).flatten().tolist()
    return MetricRecord({"loss": task.evaluate(net, (x, y)), "probabilities": predicted})
