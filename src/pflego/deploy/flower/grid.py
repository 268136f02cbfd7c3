"""What a grid of one's own needs beside what pflego's loop asks of it: nodes, messages to them, replies."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class AskedGrid(Grid):
    """A Grid whose nodes, push_messages and pull_messages are for its kinds to say; the loop asks for nothing else."""

    def get_node_ids(self) -> Iterable[int]:
        """List the numbers of all who are there."""
        return [node.node_id for node in self.get_nodes()]

    def set_run(self, run: Run) -> None:
        """Not asked for by pflego's loop."""
        raise NotImplementedError

    @property
    def run(self) -> Run:
        """Not asked for by pflego's loop."""
        raise NotImplementedError

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Not asked for by pflego's loop."""
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Not asked for by pflego's loop."""
        raise NotImplementedError


def introduce() -> None:
    """Say who this process is, as Flower says to a ServerApp that it starts: messages ask for it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
