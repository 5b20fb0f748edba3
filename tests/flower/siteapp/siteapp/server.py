"""The server app: records, or recovers where the run says so."""

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcrab.flower import Recorder, patience_of, recover_if_asked
from siteapp import task

app = ServerApp()


def evaluated(_round: int, arrays: ArrayRecord) -> MetricRecord:
    x, y = task.examples("probe")
    model = {name: array.numpy() for name, array in arrays.items()}
    flat = task.probabilities(model, x).reshape(-1).tolist()
    return MetricRecord({"loss": task.loss(model, x, y), "probabilities": flat})


@app.main()
def main(grid: Grid, context: Context) -> None:
    if recover_if_asked(grid, context):
        return
    config, sites = context.run_config, int(context.run_config["sites"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=sites // 2, min_available_nodes=sites)
    recorder = Recorder(strategy, config["history"], evaluate_fn=evaluated, patience=patience_of(config))
    initial = ArrayRecord({name: Array(array) for name, array in task.initial().items()})
    recorder.start(grid, initial, num_rounds=int(config["rounds"]))
