"""The conversation with a federation's server through its gateway, over HTTP: questions are fetched, answers brought.

No Flower is needed for it. What is answered, kept and checked is as everywhere: desk.py.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener, getproxies

from pflego_light.desk import Desk
from pflego_light.errors import LightError, MessageError, SettingError

_BEAT = 10.0  # seconds between two signs of life while at work
_PAUSES = (1, 2, 5, 10)  # seconds until the next try, where the server cannot be reached
_LONGEST = 90.0  # seconds that an answer of the gateway may take
_GONE, _CLOSED, _EAGER, _SERVER = 410, 404, 429, 500

log = logging.getLogger("flwr.pflego")


class RefusedError(MessageError):
    """What the gateway does not let happen: nothing to try again."""


class AwayError(LightError):
    """The gateway cannot be reached, or wants the client to come in anew."""


class _Straight(HTTPRedirectHandler):
    """Follows nobody to another address: the token is for this one."""

    def redirect_request(self, *_: object) -> None:
        """Let a redirection be the error that it is."""


# plain http is for this machine alone, and asks no proxy the way
_OPENER = build_opener(
    _Straight, ProxyHandler({kind: proxy for kind, proxy in getproxies().items() if kind != "http"})
)


def is_safe(address: str) -> bool:
    """Tell whether a token may go to this address: over https, or on this machine alone."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    here = parts.hostname in ("127.0.0.1", "localhost", "::1")
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and here))


@dataclass
class Gateway:
    """A gateway, and the token that opens it."""

    address: str
    token: str
    config: Mapping[str, object] = field(default_factory=dict)  # what the run asks of its clients
    _session: str = ""

    def __post_init__(self) -> None:
        if not is_safe(self.address):
            raise SettingError(
                f"a token goes over https, or stays on this machine: {self.address!r} is neither"
            )

    def who(self) -> str:
        """Say whom the token is for."""
        said = self._told("who", client=str, config=dict)
        self.config = said["config"]
        return str(said["client"])

    def take_part(self, desk: Desk, *, while_true: Callable[[], bool] = lambda: True) -> None:
        """Answer until the run is finished, or somebody else speaks for this client, which is an error."""
        failures = 0
        while while_true():
            try:
                if not self._session:
                    self._session = self._told("enter", session=str)["session"]
                question, headers = self._post("take")
                failures = 0
                if "Pflego-Message" in headers:
                    self._answer(desk, question, headers)
                elif headers.get("Pflego-Run") == "finished":
                    return
            except AwayError as error:
                pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
                failures += 1
                log.warning("%s; next try in %d s", error, pause)
                time.sleep(pause)

    def _answer(self, desk: Desk, question: bytes, headers: HTTPMessage) -> None:
        done = Event()
        Thread(target=self._beat, args=(done,), daemon=True).start()
        body, kind = b"", "application/octet-stream"
        try:
            body = desk.answer(headers["Pflego-Kind"], self.config, question)
        except LightError as error:
            log.warning("no answer: %s", error)
            body, kind = str(error).encode(), "text/plain; charset=utf-8"
        finally:
            done.set()
        self._post(f"give/{headers['Pflego-Message']}", body, kind)

    def _beat(self, done: Event) -> None:
        while not done.wait(_BEAT):
            try:
                self._post("here")
            except LightError:
                return

    def _told(self, what: str, **wanted: type) -> dict[str, Any]:
        """Ask, and give the record that is answered: what it holds, by name, and of which type."""
        try:
            said = json.loads(self._post(what)[0])
        except ValueError:
            said = None
        if not (isinstance(said, dict) and all(isinstance(said.get(n), kind) for n, kind in wanted.items())):
            raise RefusedError(
                f"{self.address} does not answer as a gateway does: is the link the right one?"
            )
        return said

    def _post(self, what: str, body: bytes = b"", kind: str = "text/plain") -> tuple[bytes, Any]:
        session = self._session
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Pflego-Session": session,
            "Content-Type": kind,
        }
        request = Request(f"{self.address}v1/gateway/{what}", body, headers, method="POST")
        try:
            with _OPENER.open(request, timeout=_LONGEST) as answer:
                return answer.read(), answer.headers
        except HTTPError as error:
            why = error.read(500).decode(errors="replace").strip()
            if error.code == _CLOSED and what.startswith("give/"):  # nobody waits for it any more
                return b"", error.headers
            if error.code == _GONE and self._session == session:  # not one that was begun meanwhile
                self._session = ""
            if error.code in (_GONE, _EAGER) or error.code >= _SERVER:
                raise AwayError(why) from error
            raise RefusedError(why or f"{self.address} answers with status {error.code}") from error
        except (OSError, HTTPException) as error:
            raise AwayError(f"{self.address} cannot be reached: {error}") from error
