"""Requests to the gateway that nobody should make: refused, each with its status, and without harm."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pflego.codec import encode
from pflego.deploy.gateway import tokens
from pflego.deploy.gateway.lobby import Question, Visit
from tests.support.visitors import LIMIT, Open, gateway

CLIENTS = ["ann", "bob"]
PATHS = ["who", "enter", "take", "here", "leave", "give/0"]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Open]:
    (tmp_path / "spec.json").write_text("{}")
    with gateway(tmp_path, CLIENTS, kit={"/kit/spec.json": tmp_path / "spec.json"}) as opened:
        yield opened


def enter(door: Open, client: str) -> str:
    status, body, _ = door.post("enter", client)
    assert status == 200
    return str(json.loads(body)["session"])


def visit_of(door: Open, client: str) -> Visit:
    [visit] = [
        one for one in door.house.lobby.present(tokens.read(door.house.tokens)) if one.client == client
    ]
    return visit


def ask(door: Open, client: str, kind: str = "train", *, seconds: float = 60.0) -> str:
    """Put a question to whoever is there for a client; give its number."""
    visit = visit_of(door, client)
    number = f"question-of-{client}-{time.monotonic_ns()}"
    assert door.house.lobby.ask(visit.session, number, Question(kind, b"shared", time.monotonic() + seconds))
    return number


def answers(door: Open, *numbers: str) -> dict[str, Any]:
    return door.house.lobby.answers(numbers)


@pytest.mark.parametrize("token", ["", "x", "0" * 5000, "ann", "ü"])
def test_a_wrong_token_opens_nothing(door: Open, token: str) -> None:
    session = enter(door, "ann")
    number = ask(door, "ann")
    header = f"Bearer {token}".encode().decode("latin-1") if token else "Basic YTpi"
    for path in [*PATHS, f"give/{number}"]:
        status, _, _ = door.request(
            "POST", f"/v1/gateway/{path}", body=b"", Pflego_Session=session, Authorization=header
        )
        assert status == 401
    assert door.request("GET", "/kit/spec.json", Authorization=header)[0] == 401
    assert not answers(door, number)


def test_the_page_is_public_and_talks_to_its_own_server_alone(door: Open) -> None:
    status, body, headers = door.request("GET", "/")
    assert status == 200
    assert b"<!doctype html>" in body
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe-inline" not in headers["Content-Security-Policy"]
    assert door.request("GET", "/", If_None_Match=headers["ETag"])[:2] == (304, b"")


def test_the_kit_is_for_those_with_a_token(door: Open) -> None:
    assert door.request("GET", "/kit/spec.json")[0] == 401
    assert door.request("GET", "/kit/spec.json", token=door.given["bob"])[:2] == (200, b"{}")


def test_a_token_that_was_taken_back_opens_nothing(door: Open) -> None:
    session = enter(door, "ann")
    assert door.post("here", "ann", session)[0] == 204
    tokens.revoke(door.house.tokens, "ann")
    assert door.post("here", "ann", session)[0] == 401
    assert not list(door.grid.get_nodes())


@pytest.mark.parametrize(
    "path",
    [
        "/tokens.json",
        "/../tokens.json",
        "/kit/../tokens.json",
        "//etc/passwd",
        "/kit/%2e%2e/tokens.json",
        "/client/",
    ],
)
def test_nothing_else_is_served(door: Open, path: str) -> None:
    assert door.request("GET", path, token=door.given["ann"])[0] == 404
    assert door.request("POST", path, token=door.given["ann"], body=b"")[0] == 404
    assert door.request("PUT", path, token=door.given["ann"], body=b"")[0] == 501


def test_a_request_that_is_too_long_is_not_read(door: Open) -> None:
    session = enter(door, "ann")
    number = ask(door, "ann")
    door.post("take", "ann", session)
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as line:
        line.sendall(
            f"POST /v1/gateway/give/{number} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {door.given['ann']}\r\n"
            f"Pflego-Session: {session}\r\nContent-Length: {10**15}\r\n\r\n".encode()
        )
        assert line.recv(100).startswith(b"HTTP/1.1 413 ")  # while none of it was sent
    assert door.post(f"give/{number}", "ann", session, bytes(LIMIT + 1))[0] == 413
    assert not answers(door, number)
    assert door.post(f"give/{number}", "ann", session, bytes(LIMIT))[0] == 204


@pytest.mark.parametrize(
    "length", ["Transfer-Encoding: chunked", "Content-Length: -1", "Content-Length: 1e3", "X: y"]
)
def test_a_request_says_how_long_it_is(door: Open, length: str) -> None:
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as line:
        line.sendall(
            f"POST /v1/gateway/who HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {door.given['ann']}\r\n"
            f"{length}\r\n\r\n".encode()
        )
        assert line.recv(100).startswith(b"HTTP/1.1 411 ")


def spoken(door: Open, *requests: str) -> list[bytes]:
    """Send requests over one connection, all at once, and give the first line of every answer until it is closed."""
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as line:
        line.sendall("".join(requests).encode())
        line.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: line.recv(65536), b""))
    return [part.partition(b"\r\n")[0] for part in said.split(b"HTTP/1.1 ")[1:]]


def request_of(method: str, path: str, *headers: str, body: str = "") -> str:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", body])


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/none"), ("GET", "/kit/spec.json"), ("POST", "/v1/gateway/who")],
)
def test_a_body_that_is_not_read_is_no_second_request(method: str, path: str, door: Open) -> None:
    hidden = request_of("GET", "/")
    for length in (f"Content-Length: {len(hidden)}", "Transfer-Encoding: chunked"):
        assert len(spoken(door, request_of(method, path, length, body=hidden))) == 1


def test_a_body_is_no_second_request_where_tokens_cannot_be_read(door: Open) -> None:
    hidden, token = request_of("GET", "/"), f"Authorization: Bearer {door.given['ann']}"
    door.house.tokens.write_text("damaged")
    length = f"Content-Length: {len(hidden)}"
    [status] = spoken(door, request_of("POST", "/v1/gateway/who", token, length, body=hidden))
    assert status.startswith(b"500 ")


def test_two_lengths_are_none(door: Open) -> None:
    headers = (f"Authorization: Bearer {door.given['ann']}", "Content-Length: 0", "Content-Length: 9")
    [status] = spoken(door, request_of("POST", "/v1/gateway/who", *headers, body="x" * 9))
    assert status.startswith(b"411 ")


def test_a_connection_goes_on_after_a_body_that_was_read(door: Open) -> None:
    headers = (f"Authorization: Bearer {door.given['ann']}", "Content-Length: 2")
    once = request_of("POST", "/v1/gateway/who", *headers, body="{}")
    assert [status[:3] for status in spoken(door, once, once)] == [b"200", b"200"]
    last = request_of("POST", "/v1/gateway/who", *headers, "Connection: close", body="{}")
    assert [status[:3] for status in spoken(door, last, once)] == [b"200"]
    old = once.replace("HTTP/1.1", "HTTP/1.0")  # which ends with its answer unless it asks for more
    assert [status[:3] for status in spoken(door, old, once)] == [b"200"]


def test_a_file_that_is_gone_is_an_answer_too(door: Open) -> None:
    door.house.kit["/kit/spec.json"].unlink()
    assert door.request("GET", "/kit/spec.json", token=door.given["ann"])[0] == 500


def test_a_question_that_was_not_heard_is_given_again(door: Open) -> None:
    session = enter(door, "ann")
    number = ask(door, "ann")
    for _ in range(2):  # the first answer may have been lost on its way
        assert door.post("take", "ann", session)[2]["Pflego-Message"] == number
    assert door.post(f"give/{number}", "ann", session, b"once")[0] == 204
    assert answers(door, number) == {number: b"once"}


def test_a_look_whose_connection_may_be_lost_gets_no_question(door: Open) -> None:
    session = enter(door, "ann")
    seen: dict[str, int] = {}

    def look(name: str) -> None:
        seen[name] = door.post("take", "ann", session)[0]

    looks = [Thread(target=look, args=(name,)) for name in ("earlier", "later")]
    for number, one in enumerate(looks, 1):
        one.start()
        while visit_of(door, "ann").looks < number:
            time.sleep(0.01)
    looks[0].join(timeout=10)
    assert seen == {"earlier": 204}
    ask(door, "ann")
    looks[1].join(timeout=10)
    assert seen["later"] == 200


def test_an_answer_is_taken_once(door: Open) -> None:
    session = enter(door, "ann")
    number = ask(door, "ann")
    assert door.post(f"give/{number}", "ann", session, b"too early")[0] == 404
    status, body, headers = door.post("take", "ann", session)
    assert (status, body, headers["Pflego-Kind"], headers["Pflego-Message"]) == (
        200,
        b"shared",
        "train",
        number,
    )
    assert door.post(f"give/{number}", "ann", session, b"first")[0] == 204
    assert door.post(f"give/{number}", "ann", session, b"again")[0] == 404
    assert answers(door, number) == {number: b"first"}
    assert door.post(f"give/{number}", "ann", session, b"again")[0] == 404
    assert not answers(door, number)


def test_nobody_answers_for_another(door: Open) -> None:
    sessions = {client: enter(door, client) for client in CLIENTS}
    number = ask(door, "ann")
    door.post("take", "ann", sessions["ann"])
    assert door.post(f"give/{number}", "bob", sessions["bob"], b"for ann")[0] == 404
    assert door.post(f"give/{number}", "bob", sessions["ann"], b"for ann")[0] == 409
    assert door.post("take", "bob", sessions["ann"])[0] == 409
    assert not answers(door, number)


def test_nobody_calls_itself_by_another_name(door: Open) -> None:
    session = enter(door, "bob")
    number = ask(door, "bob", "query")
    door.post("take", "bob", session)
    assert door.post(f"give/{number}", "bob", session, encode({}, {"client": "ann"}))[0] == 204
    assert isinstance(answers(door, number)[number], str)  # why there is no answer


def test_whoever_comes_last_speaks_for_a_client(door: Open) -> None:
    earlier = enter(door, "ann")
    number = ask(door, "ann")
    door.post("take", "ann", earlier)
    later = enter(door, "ann")
    assert door.post(f"give/{number}", "ann", earlier, b"late")[0] == 409
    assert door.post(f"give/{number}", "ann", later, b"not asked")[0] == 404
    assert door.post("leave", "ann", later)[0] == 204
    assert door.post("take", "ann", later)[0] == 410


def test_a_page_that_is_left_may_be_back_at_once(tmp_path: Path) -> None:
    with gateway(tmp_path, CLIENTS) as door:
        door.house.lobby.grace = 1.0
        session = enter(door, "ann")
        [before] = door.grid.get_nodes()
        assert door.post("leave", "ann", session)[0] == 204
        assert [*door.grid.get_nodes()] == [before]  # a round waits for it
        enter(door, "ann")
        [after] = door.grid.get_nodes()
        assert after.node_id != before.node_id
        assert door.post("leave", "ann", session)[0] == 409
        assert door.post("here", "ann", session)[0] == 409
        time.sleep(1.1)
        assert [*door.grid.get_nodes()] == [after]
        assert door.post("leave", "bob", enter(door, "bob"))[0] == 204
        time.sleep(1.1)
        assert [*door.grid.get_nodes()] == [after]


def test_a_tab_that_says_nothing_is_gone(tmp_path: Path) -> None:
    with gateway(tmp_path, CLIENTS, silence=0.05) as door:
        session = enter(door, "ann")
        time.sleep(0.1)
        assert not list(door.grid.get_nodes())
        assert door.post("take", "ann", session)[0] == 410


def test_a_question_whose_time_is_up_is_closed(door: Open) -> None:
    session = enter(door, "ann")
    number = ask(door, "ann", seconds=1.0)
    assert door.post("take", "ann", session)[0] == 200
    time.sleep(1.1)
    assert door.post(f"give/{number}", "ann", session, b"late")[0] == 404


def test_a_look_for_questions_ends_when_there_is_one(door: Open) -> None:
    session = enter(door, "ann")
    seen: list[int] = []
    waiting = Thread(target=lambda: seen.append(door.post("take", "ann", session)[0]))
    waiting.start()
    time.sleep(0.1)
    assert not seen
    ask(door, "ann")
    waiting.join(timeout=10)
    assert seen == [200]


def test_visits_follow_each_other_slowly(door: Open) -> None:
    door.house.lobby.pause = 60.0
    enter(door, "ann")
    assert door.post("enter", "ann")[0] == 429
    enter(door, "bob")


def test_an_answer_is_bytes_or_a_line(door: Open) -> None:
    session = enter(door, "ann")
    number = ask(door, "ann")
    door.post("take", "ann", session)
    assert door.post(f"give/{number}", "ann", session, b"{}", Content_Type="application/json")[0] == 415
    assert door.post(f"give/{number}", "ann", session, b"\xff" * 9000, Content_Type="text/plain")[0] == 204
    said = answers(door, number)[number]
    assert isinstance(said, str)
    assert len(said) <= 500
