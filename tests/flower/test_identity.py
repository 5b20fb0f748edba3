"""Who a node is, as the SuperLink tells it: never as the node tells it."""

import logging
import secrets
from pathlib import Path

import pytest
from flwr.common.constant import HEARTBEAT_INTERVAL_INF
from loopback import Loopback, by_app
from scenes import HASTY, SITES, everyone, grid, initial, recorded
from siteapp import client

from fedcrab import ConfigError
from fedcrab.errors import FleetError
from fedcrab.flower import FlowerFleet, Recorder
from fedcrab.flower.fleet import Identities

honest = by_app(client.app)


def test_a_registered_name_is_the_id_and_survives_a_new_node(tmp_path: Path) -> None:
    over = grid(sites=SITES[:3])
    before = Identities(over).nodes()
    over.state.delete_node("<id:none>", before["site-1"])
    again = over.connect("site-1")  # the operator registered another key under the same name
    assert Identities(over).nodes() == {**before, "site-1": again}


def test_an_account_cannot_take_the_name_of_anothers_node() -> None:
    over = grid(sites=["site-0"])
    node = over.state.create_node("<other>", "mallory", secrets.token_bytes(32), 30, name="site-0")
    over.state.activate_node(node, 30)
    assert set(Identities(over).nodes()) == {"site-0", "mallory/site-0"}


def test_two_nodes_of_one_name_are_refused() -> None:
    over = grid(sites=["site-0", "site-0"])
    with pytest.raises(FleetError, match="two SuperNodes are registered as 'site-0'"):
        Identities(over).nodes()


@pytest.mark.parametrize("name", ["a\u200b", " a", "a\n", "x" * 201])
def test_a_name_that_no_history_can_hold_is_refused(name: str) -> None:
    with pytest.raises(FleetError, match="give it another name"):
        Identities(grid(sites=[name])).nodes()


def test_a_node_without_a_name_goes_by_its_key_and_that_is_said_loudly(caplog) -> None:
    over = grid(sites=[])
    key = secrets.token_bytes(32)
    first = over.connect("site-0", named=False, key=key)
    identities = Identities(over)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        (client_id,) = identities.nodes()
        identities.nodes()
    assert client_id.startswith("key-")
    told = [r.getMessage() for r in caplog.records if "fedcrab" in r.getMessage()]
    assert len(told) == 1
    assert "--enable-supernode-auth" in told[0]
    over.state.delete_node("<id:none>", first)
    over.connect("site-0", named=False)  # a new key, as an unregistered SuperNode makes at each start
    assert client_id not in identities.nodes()


def test_a_simulation_goes_by_partition_in_the_order_of_registration() -> None:
    over = grid(sites=[])
    for site in SITES:
        node = over.connect(site, named=False)
        over.state.acknowledge_node_heartbeat(node, HEARTBEAT_INTERVAL_INF)
    assert [over.sites[node] for node in Identities(over).nodes().values()] == SITES
    assert list(Identities(over).nodes()) == [str(i) for i in range(len(SITES))]


def test_what_a_node_says_of_itself_changes_nothing(tmp_path: Path) -> None:
    def liar(site, message):
        reply = honest(site, message)
        if site == "site-1":
            reply.metadata.__dict__["_src_node_id"] = next(n for n, s in over.sites.items() if s == "site-0")
        return reply

    over = grid(liar, sites=SITES[:4])
    history = recorded(tmp_path / "h", over, rounds=1)
    assert history.rounds[0].clients == ("site-0", "site-2", "site-3")  # the SuperLink does not take it
    assert history.rounds[0].rejected[0].client == "site-1"


def test_a_history_of_one_kind_of_ids_is_not_gone_on_with_by_another(tmp_path: Path) -> None:
    over = grid(sites=[])
    for site in SITES:
        over.state.acknowledge_node_heartbeat(over.connect(site, named=False), HEARTBEAT_INTERVAL_INF)
    history = recorded(tmp_path / "h", over, rounds=1, keep_open=True)
    assert history.clients == tuple(str(i) for i in range(8))
    with pytest.raises(ConfigError, match="named by partition"):
        Recorder(everyone(), tmp_path / "h", patience=HASTY).start(grid(), initial(), num_rounds=2)
    with pytest.raises(FleetError, match="not connected"):
        FlowerFleet(grid(), history, patience=HASTY).train(history.model(0), ["0"], round=0)


def test_a_simulation_with_fewer_clients_than_the_training_says_so(tmp_path: Path) -> None:
    """Clients divide the data by their number: with another number each would train on other examples."""

    def simulated(count: int) -> Loopback:
        over = grid(sites=[])
        for site in SITES[:count]:
            over.state.acknowledge_node_heartbeat(over.connect(site, named=False), HEARTBEAT_INTERVAL_INF)
        return over

    history = recorded(tmp_path / "h", simulated(8), rounds=1)
    fleet = FlowerFleet(simulated(6), history, patience=HASTY)
    with pytest.raises(FleetError, match=r"has 6 clients, and no client 6, 7; .* --federation-config"):
        fleet.train(history.model(0), history.clients, round=0)
