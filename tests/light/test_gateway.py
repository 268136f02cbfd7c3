"""A light client at a gateway that misbehaves: its token goes nowhere else, and its errors are one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from pflego.cli.gateway import _is_safe
from pflego_light.__main__ import main
from pflego_light.errors import SettingError
from pflego_light.gateway import AwayError, Gateway, RefusedError, is_safe

Reply = Callable[[str], tuple[int, dict[str, str], bytes]]  # a path to status, headers and body


@contextmanager
def serving(reply: Reply) -> Iterator[tuple[str, list[str]]]:
    """Answer requests on loopback; give the address and, as they come, the paths that were asked for with a token."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization"):
                asked.append(self.path)
            status, headers, body = reply(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_token_does_not_follow_to_another_address(status: int) -> None:
    with (
        serving(lambda _: (200, {}, b"{}")) as (elsewhere, asked),
        serving(lambda _: (status, {"Location": elsewhere}, b"")) as (address, _),
    ):
        with pytest.raises(RefusedError):
            Gateway(address, "secret").who()
        assert not asked


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        ("https://example.org/visit/", True),
        ("http://127.0.0.1:8001/", True),
        ("http://localhost:8001/", True),
        ("http://[::1]:8001/", True),
        ("http://example.org/", False),
        ("http://192.168.0.7:8001/", False),
        ("http://127.0.0.1.example.org/", False),
        ("http://127.0.0.1@example.org/", False),
        ("http://[", False),
        ("ftp://127.0.0.1/", False),
        ("https://", False),
    ],
)
def test_a_token_does_not_travel_in_the_clear(address: str, safe: bool) -> None:
    assert is_safe(address) is _is_safe(address) is safe  # one rule for who gives a token and for who uses it
    if safe:
        Gateway(address, "secret")
    else:
        with pytest.raises(SettingError):
            Gateway(address, "secret")


def test_a_link_in_the_clear_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link.txt"
    link.write_text("http://visit.invalid/#token=secret\n")
    words = ["visit", str(tmp_path / "kit"), "--link", str(link), "--data", str(tmp_path / "own.npz")]
    monkeypatch.setattr(sys, "argv", ["pflego-light", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said == (
        "pflego-light: a token goes over https, or stays on this machine: 'http://visit.invalid/' is neither\n"
    )


def test_no_proxy_hears_what_stays_on_this_machine() -> None:
    def told(_: str) -> tuple[int, dict[str, str], bytes]:
        return 200, {}, b'{"client": "ann", "config": {}}'

    with serving(told) as (proxy, overheard), serving(told) as (address, asked):
        program = f"from pflego_light.gateway import Gateway; Gateway({address!r}, 'secret').who()"
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "http_proxy": proxy, "no_proxy": ""},
            check=True,
            timeout=60,
        )
        assert asked == ["/v1/gateway/who"]
        assert not overheard


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"client": "a"}', b'{"client": 1, "config": {}}', b"\xff"]
)
def test_what_is_no_gateway_is_refused(body: bytes) -> None:
    with serving(lambda _: (200, {}, body)) as (address, _), pytest.raises(RefusedError):
        Gateway(address, "secret").who()


def test_a_late_word_on_an_earlier_visit_does_not_end_the_present_one() -> None:
    def over(_: str) -> tuple[int, dict[str, str], bytes]:
        gateway._session = "later"  # it has come in anew while this was under way
        return 410, {}, b"this visit is over"

    with serving(over) as (address, _):
        gateway = Gateway(address, "secret", _session="earlier")
        with pytest.raises(AwayError):
            gateway._post("here")
        assert gateway._session == "later"
