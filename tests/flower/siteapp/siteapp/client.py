"""The client app: a node knows its partition; the round and the epochs come with the model."""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from siteapp import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    site, config = context.node_config["partition-id"], message.content["config"]
    site += 0 <= int(context.run_config.get("left-out", -1)) <= site
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    epochs = int(config.get("local-epochs", context.run_config.get("local-epochs", 2)))
    time.sleep(float(context.run_config.get("slowly", 0)))
    attacks = str(site) in str(context.run_config.get("attackers", "2")).split(",")
    before = task.loss(arrays, *task.examples(site))
    made, count = task.local(arrays, site, int(config["server-round"]) - 1, epochs, attacks=attacks)
    metrics = MetricRecord({"num-examples": count, "train_loss": before})
    arrays = ArrayRecord({name: Array(np.asarray(made[name])) for name in arrays})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
