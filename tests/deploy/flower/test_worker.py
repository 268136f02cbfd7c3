"""What a site's worker makes of a task that is gone."""

from __future__ import annotations

import httpx
import pytest

from pflego.deploy.flower import worker
from pflego.errors import UserError


class Client:
    """Stands for the SuperNode's door, and remembers that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://supernode/v1/runtime/pull-object")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))


def do(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Client:
    client = Client()

    def failing(*_: object) -> object:
        raise error

    monkeypatch.setattr(worker, "_client", lambda *_, **__: client)
    monkeypatch.setattr(worker, "make_task_heartbeat_fn_http", lambda _: lambda: True)
    monkeypatch.setattr(worker, "pull_task_input", failing)
    monkeypatch.setattr(worker, "push_task_output", failing)
    worker._do("127.0.0.1:1", "token")
    return client


def test_a_task_that_the_supernode_has_dropped_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run ended while the message was fetched: the site goes on with the next."""
    assert do(monkeypatch, refusal(401)).closed
    wrapped = RuntimeError("pulling failed")
    wrapped.__cause__ = refusal(401)
    assert worker.dropped(wrapped)


def test_any_other_failure_ends_the_site_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="start this site again"):
        do(monkeypatch, refusal(500))
    assert not worker.dropped(RuntimeError("the data are gone"))
