"""A client: nothing of fedcrab in it. What it does depends on the round and its data alone."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    node, run, config = context.node_config, context.run_config, message.content["config"]
    partition, partitions = int(node["partition-id"]), int(node.get("num-partitions", 10))
    examples = task.load(partition, partitions)
    if str(partition) in str(run["attackers"]).split(","):
        examples = task.poisoned(examples)
    net = task.model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    epochs = int(config.get("local-epochs", run["local-epochs"]))  # a recovery may ask for fewer
    seed = 1000 * int(config["server-round"]) + partition
    loss = task.train(net, examples, epochs=epochs, rate=float(run["learning-rate"]), seed=seed)
    metrics = MetricRecord({"num-examples": len(examples[1]), "train_loss": loss})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
