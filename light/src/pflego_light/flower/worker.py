"""A site's worker: it takes the tasks of a SuperNode and does them here.

It stands in the place of Flower's SuperExec, which starts a process for every message and runs the app that the server
has sent. This one answers by itself, and never looks at the program that came with a task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import httpx
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from pflego_light.errors import LightError
from pflego_light.flower.app import answer
from pflego_light.kit import Kit

_POLL = 0.2  # seconds between two looks at the SuperNode, which is on this machine
_PATIENCE = 60.0  # seconds for which a SuperNode that does not answer is asked again
_UNKNOWN = 401  # the status of a request with the token of a task that is no longer there
_PROTECTED = frozenset({"/flwr.proto.Runtime/AcquireTask"})

log = logging.getLogger("flwr.pflego")


def work(kit: Kit, address: str, secret: bytes, *, while_true: Callable[[], bool]) -> None:
    """Do the tasks of the SuperNode at an address, one after the other.

    secret: what the SuperNode knows its worker by; nobody else gets a task.
    """
    auth = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_PROTECTED)
    client = _client(address, "SuperExec", [auth], retries=False)
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    try:
        while while_true():
            try:
                acquired = client.AcquireTask(request)
            except httpx.HTTPError:  # it is not there yet, or no longer
                time.sleep(_POLL)
                continue
            if acquired.HasField("task") and acquired.token:
                _do(kit, address, acquired.token)
            else:
                time.sleep(_POLL)
    finally:
        client.close()


def reply_to(kit: Kit, message: Message, context: Context) -> Message:
    """Answer; what went wrong is told, unless it could tell of the data."""
    try:
        return answer(kit, message, context)
    except LightError as error:
        log.warning("no answer: %s", error)
        why = str(error)
    except Exception as error:  # whatever a library does
        log.exception("no answer")
        why = f"{type(error).__name__}; the site's log says more"
    return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=why), reply_to=message)


def _do(kit: Kit, address: str, token: str) -> None:
    client = _client(address, "flwr-clientapp", [RuntimeTokenHttpInterceptor(token)], retries=True)
    heartbeat = HeartbeatSender(beating(client))
    heartbeat.start()
    context, status = None, SubStatus.FAILED
    try:
        message, context, _, _ = pull_task_input(client)  # the last is the server's program: it stays closed
        reply = reply_to(kit, message, context)
        push_message(client, reply, context)
        status = SubStatus.FAILED if reply.has_error() else SubStatus.COMPLETED
    except Exception as error:
        if dropped(error):
            log.info("a message is gone with its run")
            return
        # without a reply, the SuperNode would wait for it for ever
        raise LightError(
            f"a message could not be taken or answered ({error}): start this site again"
        ) from error
    finally:
        push_task_output(client, context, status, "")  # refused and logged, if the task was dropped
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()


def beating(client: RuntimeHttpClient) -> Callable[[], bool]:
    """Make what tells the SuperNode that its task is being done.

    Flower's own ends the whole program where the task is gone, which is right for a program of one task.
    """

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError:  # it is gone: whatever is asked for next tells
            pass
        return True

    return beat


def dropped(error: BaseException | None) -> bool:
    """Tell whether the SuperNode no longer knows the task that something was asked for: its run has ended."""
    if error is None:
        return False
    refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == _UNKNOWN
    return refused or dropped(error.__cause__ or error.__context__)


class _Door(RuntimeHttpClient):
    """The SuperNode's door, at which a task may be had a moment before its message is."""

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        while not (pulled := super().PullMessages(request)).messages_list:
            time.sleep(_POLL)  # refused when the SuperNode has dropped the task
        return pulled


def _client(
    address: str, name: str, interceptors: Sequence[ProtobufClientInterceptor], *, retries: bool
) -> RuntimeHttpClient:
    # Flower's own retries end the whole program at the first answer that says the task is gone
    retrying = RetryInvoker(
        lambda: exponential(_POLL, max_delay=1), httpx.TransportError, max_tries=None, max_time=_PATIENCE
    )
    return _Door.from_server_address(
        server_address=address,
        insecure=True,  # it never leaves this machine
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=name), *interceptors],
        retry_invoker=retrying if retries else None,
    )
