"""The page as a visitor uses it: digits are drawn, rounds are played, and what left the tab is shown."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from selenium import webdriver
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.by import By

import pflego
from pflego.after.kit import write_kit
from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.server import serve
from pflego.deploy.gateway import tokens
from pflego.deploy.gateway.opening import opened
from pflego_light.gateway import Gateway
from tests.support.browser import chromium, needs_browser
from tests.support.processes import free_port, until
from tests.support.tabs import needs_node
from tests.support.visitors import FullDesk, gateway

pytestmark = [pytest.mark.slow, needs_browser, needs_node]

ROUNDS = 3
LONG = 300.0
STROKES = {  # on a pad of 200 x 200, from its middle
    1: [(0, -80), (0, 80)],
    7: [(-60, -70), (60, -70), (-20, 80)],
}
KEPT = "return document.querySelectorAll('#gallery button').length"
ASKED = "return performance.getEntriesByType('resource').map((one) => one.name)"
# whom the page has talked to
HOSTS = """
return [...new Set(performance.getEntriesByType("resource").map((one) => new URL(one.name).origin))];
"""


def draw(driver: webdriver.Chrome, pad: str, digit: int, moved: int) -> None:
    """Draw with the mouse."""
    builder, canvas = ActionBuilder(driver, duration=10), driver.find_element(By.ID, pad)
    mouse: Any = builder.pointer_action
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    for place, (x, y) in enumerate(STROKES[digit]):
        mouse.move_to(canvas, x + moved, y)
        if not place:
            mouse.pointer_down()
    mouse.pointer_up()
    builder.perform()


def kept(driver: webdriver.Chrome, count: int) -> bool:
    return bool(driver.execute_script(KEPT) == count)


def texts(driver: webdriver.Chrome, selector: str) -> list[str]:
    """What is shown, taken at one moment: the page is drawn anew all the time."""
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)"
    found: list[str] = driver.execute_script(script, selector)
    return found


def test_a_visitor_draws_digits_and_has_a_model_of_them(tmp_path: Path) -> None:
    federation = pflego.load("digits", clients=2, classes_per_client=5, seed=0)
    other = federation.client(0)
    parts = ("x_train", "y_train", "x_test", "y_test")
    np.savez(tmp_path / "own.npz", **{part: getattr(other, part).numpy() for part in parts})
    model = pflego.models.build("mlp", (64,), seed=0)
    write_kit(tmp_path / "kit", model, pflego.PFLEGO(steps=20), torch.zeros(4, 64))
    file = tmp_path / "tokens.json"
    given = {name: tokens.give(file, name) for name in ("you", "other")}
    app = {
        "steps": 20, "rounds": ROUNDS, "evaluate_every": 0, "device": "cpu", "out": str(tmp_path / "out"),
        "members": "you, other", "wait": LONG, "reply_timeout": LONG, "gateway_port": free_port(),
        "gateway_kit": str(tmp_path / "kit"), "gateway_tokens": str(file),
    }  # fmt: skip
    config = AppConfig.read(app)
    node = {"client-id": "other", "data": str(tmp_path / "own.npz"), "state": str(tmp_path / "state")}
    with opened(config, app) as gateway, chromium("--window-size=1000,1000") as driver:

        def train() -> None:
            serve(gateway.grid, config, poll=0.05)
            gateway.lobby.finish()

        visitor = Gateway(gateway.address, given["other"])
        visitor.who()
        threads = [
            Thread(target=train, daemon=True),
            Thread(target=visitor.take_part, args=(FullDesk(node),), daemon=True),
        ]
        for thread in threads:
            thread.start()

        def status() -> str:
            return "".join(texts(driver, "#status"))

        driver.get(f"{gateway.address}#token={given['you'][:-1]}")
        until("a wrong token is refused", lambda: "opens nothing" in status(), seconds=LONG)
        driver.get("about:blank")
        driver.get(f"{gateway.address}#token={given['you']}")
        until("the visitor is in", lambda: "You are you" in status(), seconds=LONG)
        join = driver.find_element(By.ID, "join")
        for place in range(6):
            for digit in STROKES:
                assert not join.is_enabled() or place
                draw(driver, "pad", digit, 6 * place - 15)
                driver.find_elements(By.CSS_SELECTOR, "#labels button")[digit].click()
                drawn = len(STROKES) * place + [*STROKES].index(digit) + 1
                until("it is kept", partial(kept, driver, drawn), seconds=LONG)
        assert (
            "8 samples to learn from, 4 for the test; classes 1, 7."
            in driver.find_element(By.ID, "counts").text
        )
        join.click()
        until("the run is finished", lambda: "finished" in status(), seconds=LONG)

        assert texts(driver, "#before") == ["50 %"]
        assert texts(driver, "#after") == ["100 %"]
        assert texts(driver, "#rounds") == [str(ROUNDS)]
        messages = texts(driver, ".message strong")
        assert [message.partition(":")[0] for message in messages] == [
            "who is here", f"a round's work, round {ROUNDS}", f"a test result, round {ROUNDS}"
        ]  # fmt: skip
        assert "gradient of 1.weight, 200 × 64 numbers, 51,200 bytes" in texts(driver, ".message li")
        assert any("2 × 201 numbers" in line for line in texts(driver, "#stays li"))
        draw(driver, "trial-pad", 7, 3)
        until("there is a guess", lambda: texts(driver, "#guess b") == ["1", "7"], seconds=LONG)
        one, seven = (int(line.removesuffix(" %")) for line in texts(driver, "#guess .number"))
        assert seven > one
        assert driver.execute_script(HOSTS) == [gateway.address.removesuffix("/")]

        driver.refresh()
        until("it is all there again", lambda: "finished" in status(), seconds=LONG)
        assert texts(driver, "#after") == ["100 %"]
        driver.switch_to.new_window("tab")
        driver.get(f"{gateway.address}#token={given['you']}")
        until("a second tab is refused", lambda: "another tab" in status(), seconds=LONG)
        for thread in threads:
            thread.join(timeout=LONG)
    assert [row["missing"] for row in pflego.open_run(tmp_path / "out").history] == [0] * ROUNDS


def test_a_token_does_not_leave_a_page_that_came_in_the_clear(tmp_path: Path) -> None:
    with (
        gateway(tmp_path, ["you"]) as door,
        chromium("--host-resolver-rules=MAP visit.example 127.0.0.1") as driver,
    ):
        for host, sent in (("visit.example", False), ("localhost", True)):
            driver.get(f"http://{host}:{door.port}/#token={door.given['you']}")
            until(
                "it goes no further: there is no kit",
                lambda: texts(driver, "[data-state=wrong]"),
                seconds=LONG,
            )
            assert ("token was not sent" in texts(driver, "#status")[0]) is not sent
            assert any("v1/gateway" in name for name in driver.execute_script(ASKED)) is sent
