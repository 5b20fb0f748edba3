"""A real grid over a real link state, its nodes answered by a function of this process."""

import secrets
from collections.abc import Callable, Sequence

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

RUN = 11
ALIVE = 1e6  # seconds between heartbeats: nobody sends any, however long a test takes
Handler = Callable[[str, Message], Message | None]  # (the site, its message) -> its answer, if any


class Loopback(InMemoryGrid):
    """Each look for answers first lets every node work on what it was sent."""

    def __init__(self, sites: Sequence[str], handler: Handler, *, named: bool = True) -> None:
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        super().__init__(factory, pull_interval=0.01)
        run = Run.create_empty(run_id=RUN)
        run.primary_task_id, run.federation_id = RUN, NOOP_FEDERATION_ID
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = RUN, RUN, 1
        self.state.run_ids[RUN] = RunRecord(run=run)
        self.state.task_store[RUN] = Task(task_id=RUN, run_id=RUN)
        self.set_run(run)
        self.handler, self.sites = handler, {}
        for site in sites:
            self.connect(site, named=named)

    def connect(self, site: str, *, named: bool = True, key: bytes | None = None) -> int:
        name = site if named else None
        node = self.state.create_node("<id:none>", "none", key or secrets.token_bytes(32), ALIVE, name=name)
        self.state.activate_node(node, ALIVE)
        self.sites[node] = site
        return node

    def disconnect(self, site: str) -> None:
        for node in [n for n, s in self.sites.items() if s == site]:
            self.state.deactivate_node(node)

    def pull_messages(self, message_ids):
        for node, site in list(self.sites.items()):
            for message in self.state.get_message_ins(node_id=node, limit=1):
                self.answer(self.handler(site, message))
        return super().pull_messages(message_ids)

    def answer(self, reply: Message | None) -> None:
        if reply is not None:
            reply.metadata.__dict__["_message_id"] = secrets.token_hex(16)
            self.state.store_message_res(reply)


def by_app(app: ClientApp, **run_config) -> Handler:
    """Answer with a client app; a site's partition is the number in its name."""

    def handle(site: str, message: Message) -> Message:
        node = {"partition-id": int(site.rpartition("-")[2])}
        context = Context(RUN, message.metadata.dst_node_id, node, RecordDict(), run_config)
        return app(message, context)

    return handle
