"""The page in a browser: what is drawn, and that mouse, keyboard and eyes can all use it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

import pflego
from pflego.report import write_report
from tests.support.browser import chromium, needs_browser
from tests.support.reported import ODD, federation, model, run

pytestmark = [
    needs_browser,
    pytest.mark.slow,
]

IDS = ["north", "south", "west", *ODD]

# The least contrast between a text and what it stands on, WCAG's formula, over all texts of the page.
CONTRAST = """
const channels = (colour) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d");
  canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
const under = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour[3] === 255) return colour;
  }
};
const texts = [...document.querySelectorAll("h1,h2,h3,h4,p,li,a,th,td,dt,dd,small,button,select,summary,figcaption")]
  .filter((e) => e.checkVisibility() && e.textContent.trim() && !e.closest(".hidden, .skip, .confusion, :disabled"));
return Math.min(...texts.map((e) => {
  const [a, b] = [light(channels(getComputedStyle(e).color)), light(under(e))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}));
"""


def _feature(name: str, value: str) -> dict[str, str]:
    return {"name": f"prefers-{name}", "value": value}


class Page:
    """A report that is open in the browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1280, scheme: str = "light") -> None:
        features = [_feature("color-scheme", scheme), _feature("reduced-motion", "reduce")]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.resize(width)
        self.driver.get(path.as_uri())

    def resize(self, width: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.js("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def js(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def labelled(self, label: str) -> WebElement:
        return self.driver.find_element(
            By.XPATH, f"//label[starts-with(., '{label}')]//*[self::select or self::input]"
        )

    @property
    def rows(self) -> list[str]:
        """The clients in the table, in its order."""
        return [button.text for button in self.all(".roster tbody button")]

    @property
    def client(self) -> str:
        """Who is shown in detail."""
        return self.one(".client h3").text.removeprefix("Client ")

    def data(self) -> dict[str, Any]:
        """What the page was made of."""
        content: dict[str, Any] = json.loads(self.js("return document.getElementById('data').textContent"))
        return content

    def figures(self) -> list[float]:
        return [float(cell.text.split()[0]) for cell in self.all(".roster tbody td:nth-child(2)")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(f"--user-data-dir={tmp_path_factory.mktemp('browser')}") as driver:
        driver.set_page_load_timeout(60)
        yield Page(driver)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run, several side by side, and a regression."""
    folder = tmp_path_factory.mktemp("reports")
    methods = [pflego.PFLEGO(steps=3), pflego.FedAvg(steps=3), pflego.Local(steps=3)]
    runs = [run(method, ids=IDS, rounds=8, evaluate_every=2, participation=3) for method in methods]
    return {
        "one": write_report(runs[:1], folder / "one.html", alone=True),
        "several": write_report(runs, folder / "several.html", alone=True),
        "adapted": write_report(
            [run(method, evaluate_adapted=True) for method in methods[:2]], folder / "adapted.html"
        ),
        "regression": write_report([run(regression=True)], folder / "regression.html", alone=True),
        "untested": write_report([run(tests=0, evaluate_every=None)], folder / "untested.html"),
    }


@pytest.fixture
def one(page: Page, reports: dict[str, Path]) -> Page:
    """The report of one run, freshly opened."""
    page.open(reports["one"])
    return page


@pytest.mark.parametrize(
    ("name", "charts"), [("one", 6), ("several", 7), ("adapted", 8), ("regression", 7), ("untested", 2)]
)
def test_everything_is_drawn_without_errors_or_network(
    name: str, charts: int, page: Page, reports: dict[str, Path]
) -> None:
    page.open(reports[name])
    drawn = page.all(".chart")
    assert len(drawn) == charts
    assert all(chart.find_elements(By.CSS_SELECTOR, "svg.main-svg") for chart in drawn)
    assert all(chart.get_attribute("role") == "img" and chart.get_attribute("aria-label") for chart in drawn)
    assert page.driver.get_log("browser") == []  # type: ignore[no-untyped-call]
    assert (
        page.js("return performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('data:'))")
        == []
    )
    for width in (1280, 390):
        page.resize(width)
        assert page.js("return document.documentElement.scrollWidth <= innerWidth")
        assert (
            max(page.js("return [...document.querySelectorAll('svg.main-svg')].map((e) => e.clientWidth)"))
            <= width
        )


def test_names_are_shown_as_they_are(one: Page) -> None:
    assert set(one.rows) == set(IDS)
    assert one.js("return document.querySelectorAll('main script, main i:not(.bar i)').length") == 0


def test_a_click_on_a_point_shows_its_client(one: Page) -> None:
    assert one.client == one.rows[0]
    points = one.all(".clickable .scatterlayer .trace:first-child .point")
    assert len(points) >= len(IDS)
    ActionChains(one.driver).scroll_to_element(points[2]).move_to_element(points[2]).click().perform()
    assert one.client == one.rows[2]
    chosen = one.all(".roster tbody [aria-pressed='true']")
    assert [button.text for button in chosen] == [one.client]


def test_a_client_has_its_curve_its_classes_and_its_answers(one: Page) -> None:
    Select(one.one(".walk select")).select_by_visible_text("west")
    detail = one.one(".client")
    assert "10 training samples of 2 classes" in detail.text
    assert "on 6 test samples" in detail.text
    assert len(detail.find_elements(By.CSS_SELECTOR, ".chart svg.main-svg")) > 0
    assert [line.text for line in detail.find_elements(By.CSS_SELECTOR, ".held dt")] == ["0", "2"]
    counts = [int(cell.text) for cell in detail.find_elements(By.CSS_SELECTOR, ".confusion td")]
    assert sum(counts) == 6


def test_clients_are_searched_filtered_and_sorted(one: Page) -> None:
    search = one.labelled("Find a client")
    search.send_keys("OUT")
    assert one.rows == ["south"]
    assert one.one(".status").text == "1 of 8 clients"
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.DELETE)
    Select(one.labelled("Holding class")).select_by_visible_text("2")
    assert set(one.rows) == {id for number, id in enumerate(IDS) if number % 3 != 0}
    Select(one.labelled("Holding class")).select_by_visible_text("any")
    assert one.figures() == sorted(one.figures())
    one.driver.find_element(By.XPATH, "//button[.='Reverse']").click()
    assert one.figures() == sorted(one.figures(), reverse=True)
    Select(one.labelled("Sort by")).select_by_visible_text("training samples")
    assert one.rows == IDS[::-1]
    one.one("[data-sort='client']").click()
    assert one.rows == IDS
    assert one.one(".roster th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_the_keyboard_is_enough(one: Page) -> None:
    one.one("body").send_keys(Keys.TAB)
    assert one.driver.switch_to.active_element.text == "Skip to the content"
    wanted = one.rows[3]
    one.js("arguments[0].focus()", one.all(".roster tbody button")[3])
    one.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert one.client == wanted
    assert one.driver.switch_to.active_element.text == wanted  # the table was built anew around it
    one.js("arguments[0].focus()", one.one("[aria-label='Client after']"))
    one.driver.switch_to.active_element.send_keys(Keys.SPACE)
    assert one.client == one.rows[4]
    one.driver.switch_to.active_element.send_keys(Keys.SPACE)
    assert one.client == one.rows[5]
    one.js("arguments[0].focus()", one.one("[data-sort='samples']"))
    one.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert one.rows == IDS[::-1]
    one.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert one.rows == IDS


def test_every_control_has_a_name(page: Page, reports: dict[str, Path]) -> None:
    page.open(reports["several"])
    nameless = page.js(
        "return [...document.querySelectorAll('button, select, input, [tabindex]')].filter((e) =>"
        " !(e.ariaLabel || e.textContent.trim() && e.tagName === 'BUTTON' || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(scheme: str, page: Page, reports: dict[str, Path]) -> None:
    page.open(reports["one"], scheme=scheme)
    page.js("document.querySelectorAll('details').forEach((e) => { e.open = true; })")

    def look() -> tuple[float, str]:
        background = page.js(
            "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        )
        ink = page.one(".chart .xtitle").value_of_css_property("fill")
        return sum(background), ink

    first, ink = look()
    assert (first < 200) == (scheme == "dark")
    assert page.js(CONTRAST) >= 4.5
    page.one("#theme").click()
    second, other_ink = look()
    assert (second < 200) == (scheme == "light")
    assert other_ink != ink
    assert page.js(CONTRAST) >= 4.5


def test_runs_are_compared_client_by_client(page: Page, reports: dict[str, Path]) -> None:
    page.open(reports["several"])
    assert [row.text for row in page.all("#figures tbody th")] == ["PFLEGO", "FedAvg", "Local"]
    assert len(page.all("#rounds .chart:first-of-type .legendtext")) == 9
    own, other = (page.data()["runs"][number]["clients"]["figures"] for number in (0, 2))
    Select(page.labelled("Against")).select_by_visible_text("Local")
    Select(page.labelled("Sort by")).select_by_visible_text("client")
    shown = [cell.text for cell in page.all(".roster tbody td:nth-child(3)")]
    wanted = [
        f"{a - b:+.1f}".replace("-", "−").replace("+0.0", "0.0") for a, b in zip(own, other, strict=True)
    ]
    assert shown == wanted
    Select(page.labelled("Run")).select_by_visible_text("Local")
    assert "learns alone" in page.one("#clients .notes").text
    assert "alone" not in [option.text for option in Select(page.labelled("Against")).options]
    page.labelled(" only what differs")
    page.one("#settings input").click()
    kept = [row.text for row in page.all("#settings tbody tr") if row.is_displayed()]
    assert any(line.startswith("algorithm") for line in kept)
    assert not any(line.startswith("rounds") for line in kept)


def test_the_adapted_figure_has_a_chart_and_a_column_of_its_own(page: Page, reports: dict[str, Path]) -> None:
    page.open(reports["adapted"])
    labels = [chart.get_attribute("aria-label") or "" for chart in page.all("#rounds .chart")]
    assert labels[0].startswith("Test accuracy, everyone adapted. PFLEGO: ")
    assert len(labels) == 4
    page.one("#rounds summary").click()
    for _ in range(50):
        if page.all("#rounds tbody tr"):
            break
        time.sleep(0.1)
    assert "accuracy, everyone adapted" in [cell.text for cell in page.all("#rounds thead th")]


def test_the_numbers_of_the_curves_can_be_read(one: Page) -> None:
    one.one("#rounds summary").click()
    wanted = [str(number) for number in range(1, 9)]
    shown: list[str] = []
    for _ in range(50):  # the table is made when it is opened, a moment after the click
        shown = [row.find_elements(By.TAG_NAME, "td")[0].text for row in one.all("#rounds tbody tr")]
        if shown == wanted:
            break
        time.sleep(0.1)
    assert shown == wanted


def test_a_regression_shows_predictions(page: Page, reports: dict[str, Path]) -> None:
    page.open(reports["regression"])
    captions = [caption.text.splitlines()[0] for caption in page.all(".client figcaption")]
    assert captions == ["Over the rounds", "Predicted against true"]
    assert page.all(".confusion") == []


def test_on_a_phone_the_chosen_client_comes_into_view(page: Page, reports: dict[str, Path]) -> None:
    page.open(reports["one"], width=390)
    page.js("arguments[0].click()", page.all(".roster tbody button")[1])
    assert abs(page.js("return document.querySelector('.client').getBoundingClientRect().top")) < 200


def test_paper_is_light_and_wide_enough(page: Page, reports: dict[str, Path]) -> None:
    page.open(reports["one"], scheme="dark")
    page.js("window.dispatchEvent(new Event('beforeprint'))")
    assert page.js("return document.documentElement.dataset.theme") == "light"
    widths = page.js("return [...document.querySelectorAll('svg.main-svg')].map((e) => e.clientWidth)")
    assert max(widths) <= 680
    page.js("window.dispatchEvent(new Event('afterprint'))")
    assert page.js("return document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_who_was_not_asked_does_not_look_like_who_was_no_member(
    scheme: str, page: Page, tmp_path: Path
) -> None:
    names = ["a", "b", "c", "d"]
    trained = pflego.train(
        federation(names), model(), pflego.PFLEGO(steps=3), rounds=6, participation=2,
        population=pflego.Population(join={"d": 3}, leave={"a": 5}), progress=False,
    )  # fmt: skip
    page.open(write_report([trained], tmp_path / "report.html"), scheme=scheme)
    pale, paper = page.js(
        "const cells = document.querySelector('#presence .js-plotly-plot').data[0].colorscale[0][1];"
        "return [cells, getComputedStyle(document.body).backgroundColor];"
    )
    channels = [[int(number) for number in re.findall(r"\d+", told)[:3]] for told in (pale, paper)]
    assert all(abs(one - other) >= 20 for one, other in zip(*channels, strict=True))
    assert "an empty place: no member then" in page.one("#presence").text
