"""What is changed in Flower's own programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store.object_store_factory import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import start_client_internal as loop
from flwr.supernode.nodestate.nodestate_factory import NodeStateFactory

from pflego.deploy.flower import child
from pflego_light.flower import supernode
from tests.support.grid import MemoryGrid


@pytest.mark.parametrize("mended", [child.dropped_with_its_run, supernode.dropped_with_its_run])
def test_a_message_whose_run_has_ended_leaves_no_task_behind(mended: Callable[..., Any]) -> None:
    """A worker would take the task, and wait for the rest of its message for ever."""
    MemoryGrid({}, {})
    factory = ObjectStoreFactory()
    state, store = NodeStateFactory(factory).state(), factory.store()
    state.set_node_id(1)
    state.store_run(Run.create_empty(1))
    message = Message(RecordDict(), 1, MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = message.object_id

    def ended(*_: object) -> Any:
        raise RunNotRunningException

    take = mended(vars(loop)["_pull_and_store_message"])
    taken = take(
        state=state, object_store=store, node_config={}, receive=lambda: (message, get_object_tree(message)),
        get_run=ended, get_fab=ended, pull_object=ended, confirm_message_received=ended, trusted_entities=None,
    )  # fmt: skip
    assert taken is None
    assert not state.get_tasks(statuses=["pending", "starting", "running"])
    assert not state.get_messages_legacy(is_reply=False)
