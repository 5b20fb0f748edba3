"""A Flower grid in one process: a function answers every message when the server looks for answers."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Answer = Callable[[str, Message], Message]  # of a site's name and the message that it got


class FunctionGrid(Grid):
    """Named nodes of this process; only the replies are kept in memory, as in Flower."""

    def __init__(self, sites: Sequence[str], answer: Answer) -> None:
        self._sites, self._answer = dict(enumerate(sites, 1)), answer
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
                yield self._answer(self._sites[message.metadata.dst_node_id], message)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        return list(self.pull_messages(self.push_messages(messages)))
