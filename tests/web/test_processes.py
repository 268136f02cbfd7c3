"""Real processes: a server behind the proxy, a site on Flower, three tabs of a browser, one reloaded, one killed."""

from __future__ import annotations

from base64 import b64decode
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By

import pflego
from pflego.after.kit import write_kit
from pflego.codec import decode
from pflego.deploy.folder import write_app
from pflego.deploy.gateway import tokens
from pflego.weights import Weights
from tests.deploy.flower.test_processes import LONG, kept, learned, rounds, runs
from tests.support.browser import chromium, needs_browser
from tests.support.light import assert_near
from tests.support.processes import NGINX, free_port, machines, until
from tests.support.sites import NAMES, SHAPE, federation, settle
from tests.support.tabs import needs_node

SITE, *TABS = NAMES[:4]
ROUNDS = 8
CLOSE = 1e-4
pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,  # test_rounds.py has tabs in a federation, test_page.py one in a browser
    needs_browser,
    needs_node,
    pytest.mark.skipif(not NGINX.exists(), reason="nginx is not installed (Debian: nginx-light)"),
]

# all that a client keeps, as IndexedDB has it
STATES = """
const asked = indexedDB.open("pflego");
asked.onsuccess = () => {
  const table = asked.result.transaction("states").objectStore("states");
  const [keys, values] = [table.getAllKeys(), table.getAll()];
  values.onsuccess = () => arguments[0](Object.fromEntries(keys.result.map((key, i) =>
    [key, btoa(String.fromCharCode(...values.result[i]))])));
};
"""


class Browser:
    """Tabs by the names of their clients."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.tabs: dict[str, str] = {}

    def open(self, name: str, link: str) -> None:
        self.driver.switch_to.new_window("tab")
        self.tabs[name] = self.driver.current_window_handle
        self.driver.get(link)

    def at(self, name: str) -> webdriver.Chrome:
        self.driver.switch_to.window(self.tabs[name])
        return self.driver

    def text(self, name: str, element: str) -> str:
        return self.at(name).find_element(By.ID, element).text

    def join(self, name: str, file: Path) -> None:
        until(f"{name} is let in", lambda: f"You are {name}" in self.text(name, "status"), seconds=LONG)
        self.driver.find_element(By.ID, "file").send_keys(str(file))
        until("data are read", self.driver.find_element(By.ID, "join").is_enabled, seconds=LONG)
        self.driver.find_element(By.ID, "join").click()

    def crash(self, name: str) -> None:
        """End a tab as the system does when memory is short: nothing of it runs any more."""
        with suppress(WebDriverException):
            self.at(name).execute_cdp_cmd("Page.crash", {})

    def states(self) -> dict[str, tuple[Weights, int]]:
        """What each client keeps after its last round, and that round."""
        found = {}
        for key, text in self.driver.execute_async_script(STATES).items():
            read = decode(b64decode(text))
            state = {n.removeprefix("after/"): t for n, t in read.tensors.items() if n.startswith("after/")}
            found[key.partition(".")[2]] = state, read.facts.whole("round", least=1)
        return found


def test_three_tabs_and_a_site_make_one_federation(tmp_path: Path) -> None:
    configs = settle(tmp_path, NAMES[:4])
    model, algorithm = pflego.models.build("mlp", SHAPE, seed=5), pflego.PFLEGO(steps=10)
    kit = write_kit(tmp_path / "kit", model, algorithm, torch.zeros(4, *SHAPE), seed=5).folder
    file = tmp_path / "tokens.json"
    given = {name: tokens.give(file, name) for name in TABS}
    port = free_port()
    app = {
        "steps": 10, "rounds": ROUNDS, "seed": 5, "evaluate_every": 0, "device": "cpu", "out": str(tmp_path / "out"),
        "members": ", ".join(NAMES[:4]), "wait": LONG, "reply-timeout": LONG, "patience": 1,
        "gateway_port": port, "gateway_kit": str(kit), "gateway_tokens": str(file), "gateway_silence": 300,
    }  # fmt: skip
    trial = tmp_path / "trial"
    write_app(trial, app)
    with machines(tmp_path) as hub, chromium("--ignore-certificate-errors") as driver:
        hub.start_server(trial)
        hub.start_proxy(trial)
        hub.register(SITE)
        links = {name: f"https://127.0.0.1:{hub.door}/visit/#token={token}" for name, token in given.items()}
        browser = Browser(driver)
        hub.start_site(SITE, trial, configs[SITE])
        until("the gateway is open", lambda: hub.listens(port), seconds=LONG)
        for name in TABS:
            browser.open(name, links[name])
            browser.join(name, Path(configs[name]["data"]))
        until("round 2 is done", lambda: rounds(tmp_path) >= 2, seconds=LONG)
        browser.at(TABS[0]).refresh()
        browser.crash(TABS[1])
        assert rounds(tmp_path) < ROUNDS
        browser.at(TABS[0])
        browser.open(TABS[1], links[TABS[1]])
        until("the last round is done", lambda: rounds(tmp_path) == ROUNDS, seconds=LONG)
        until("the run is finished", lambda: "finished:completed" in runs(hub), seconds=LONG)
        until("a tab has heard it", lambda: "finished" in browser.text(TABS[2], "status"), seconds=LONG)
        states = browser.states()
        assert browser.text(TABS[2], "after").endswith("%")
        assert browser.text(TABS[2], "rounds") == str(ROUNDS)
        assert "bytes so far" in browser.text(TABS[2], "total")

    whole = pflego.train(
        federation(NAMES[:4]), model, algorithm, rounds=ROUNDS, seed=5, evaluate_every=0, device="cpu"
    )
    assert_near(learned(tmp_path), whole.shared)
    assert [row["missing"] for row in pflego.open_run(tmp_path / "out").history] == [0] * ROUNDS
    for name, (state, last) in {**states, SITE: kept(tmp_path, SITE)}.items():
        assert last == ROUNDS
        assert_near(state, whole.states[name], CLOSE)
    assert states.keys() == {*TABS}
