"""What a site's worker makes of a task that is gone, at a real door: HTTP answers as a SuperNode gives them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.heartbeat import HeartbeatSender

from pflego.deploy.flower import worker as full
from pflego.errors import UserError
from pflego_light.errors import LightError
from pflego_light.flower import worker as light
from pflego_light.kit import Kit

Answer = Callable[[str], tuple[int, bytes]]


def do_full(address: str) -> None:
    full._do(address, "token")


def do_light(address: str) -> None:
    light._do(Kit.__new__(Kit), address, "token")  # no message is ever given to it


WORKERS = [pytest.param(do_full, id="full"), pytest.param(do_light, id="light")]


@contextmanager
def door(answer: Answer) -> Iterator[str]:
    """Listen on loopback, and answer each request by what it asks for."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            status, body = answer(self.path.rpartition("/")[2])
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("do", WORKERS)
def test_a_task_that_the_supernode_has_dropped_is_let_go(do: Callable[[str], None]) -> None:
    """Its run ended while the message was fetched: the site goes on with the next, and nothing interrupts it."""
    asked: list[str] = []

    def answer(what: str) -> tuple[int, bytes]:
        asked.append(what)
        return 401, b""

    with door(answer) as address:
        do(address)
    assert {"pull-task-input", "push-task-output"} <= set(asked)
    assert asked.count("pull-task-input") == 1


@pytest.mark.parametrize("do", WORKERS)
def test_any_other_failure_ends_the_site_with_a_reason(do: Callable[[str], None]) -> None:
    with (
        door(lambda _: (500, b"")) as address,
        pytest.raises((UserError, LightError), match="start this site again"),
    ):
        do(address)


@pytest.mark.parametrize("dropped", [full.dropped, light.dropped])
def test_what_went_wrong_below_is_found(dropped: Callable[[BaseException], bool]) -> None:
    request = httpx.Request("POST", "http://supernode/v1/runtime/pull-object")
    wrapped = RuntimeError("pulling failed")
    wrapped.__cause__ = httpx.HTTPStatusError(
        "no", request=request, response=httpx.Response(401, request=request)
    )
    assert dropped(wrapped)
    assert not dropped(RuntimeError("the data are gone"))


@pytest.mark.parametrize("gone", [(200, b""), (401, b"")], ids=["no success", "refused"])
@pytest.mark.parametrize("beating", [full.beating, light.beating])
def test_a_heartbeat_for_a_task_that_is_gone_ends_nothing(
    beating: Callable[..., Callable[[], bool]], gone: tuple[int, bytes]
) -> None:
    """Flower's would end the whole program, with SIGINT: an empty answer is one without success."""
    with door(lambda _: gone) as address:
        client = full._client(address, "flwr-clientapp", [], retries=False)
        sender = HeartbeatSender(beating(client))
        sender.start()
        sender.stop()
        assert beating(client)()
        client.close()
    closed = full._client(address, "flwr-clientapp", [], retries=False)
    assert not beating(closed)()  # nobody is there: it is tried again
    closed.close()


@pytest.mark.parametrize("worker", ["full", "light"])
def test_a_message_that_comes_after_its_task_is_waited_for(worker: str) -> None:
    late = PullAppMessagesResponse(messages_list=[MessageProto()]).SerializeToString()
    answers = iter([b"", b"", late])
    make = full._client if worker == "full" else light._client
    with door(lambda _: (200, next(answers))) as address:
        client = make(address, "flwr-clientapp", [], retries=True)
        assert client.PullMessages(PullAppMessagesRequest()).messages_list
        client.close()
