"""A Flower grid in one process: a function answers every message when the server looks for answers."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Answer = Callable[[str, Message], Message]  # of a site's name and the message that it got


class FunctionGrid(Grid):
    """Named nodes of this process; only the replies are kept in memory, as in Flower."""

    def __init__(self, sites: Sequence[str], answer: Answer) -> None:
        self._sites, self.answer = dict(enumerate(sites, 1)), answer
        self._sent: dict[str, Message] = {}
        self.count = 0  # messages sent
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Run) -> None:
        pass

    @property
    def run(self) -> Run:
        return Run.create_empty(run_id=1)

    def create_message(self, *_: object, **__: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self._sites)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=n, name=site, owner_name="none") for n, site in self._sites.items()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            self.count += 1
            name = f"message-{self.count}"
            message.metadata.__dict__["_message_id"] = name
            self._sent[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for name in list(message_ids):
            if message := self._sent.pop(name, None):
                yield self.answer(self._sites[message.metadata.dst_node_id], message)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        return list(self.pull_messages(self.push_messages(messages)))


def asking(kind: type[FedAvg], sites_by_round: Sequence[Collection[str]]) -> type[FedAvg]:
    """The strategy, made to ask these sites in these rounds; it must configure all sites in each."""

    class Asking(kind):
        def configure_train(self, server_round, arrays, config, grid):
            names = {node.node_id: node.name for node in grid.get_nodes()}
            messages = super().configure_train(server_round, arrays, config, grid)
            by_site = {names[message.metadata.dst_node_id]: message for message in messages}
            return [by_site[site] for site in sorted(sites_by_round[server_round - 1])]

    return Asking
