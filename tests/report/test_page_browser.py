"""The page in a real browser: Chromium, driven by selenium; skipped where one of them is missing."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.certification_logs import log_of

pytest.importorskip("jinja2", reason="the extra report")
pytest.importorskip("PIL", reason="the extra report")
pytest.importorskip("selenium", reason="selenium, of the extra test")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from pyrobust.attacks import DDN
from pyrobust.evaluation import attack_dataset, verify_dataset
from pyrobust.report.page import page_html, threat_page_html, write_page
from pyrobust.report.page.render import Live
from pyrobust.threats import ThreatVerdicts, read_verdicts
from pyrobust.zoo import load_data, load_model

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs Chromium and chromedriver (apt-get install chromium-driver)"
)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=1200,900"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    "--force-prefers-reduced-motion",
]
# axe-core, as npm installs it, or wherever the variable says.
AXE = Path(os.environ.get("PYROBUST_AXE", Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"))
# The ticks of vertical axes that reach into the label of theirs.
_TOUCHED = """return [...document.querySelectorAll('.plot')].flatMap(plot => {
  const label = plot.querySelector('.y-label')?.getBoundingClientRect()
  const ticks = label ? [...plot.querySelectorAll('.frame text')] : []
  return ticks.map(tick => tick.getBoundingClientRect()).filter(box => box.left < label.right && box.right > label.left
    && box.top < label.bottom - 1 && box.bottom > label.top).length
})"""
HOSTILE = "</title></script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\u202eevil"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Page of proofs and attacks, with pictures, whose names are hostile."""
    model, digits = load_model("zoo:digits-smooth-0.25"), load_data("digits")
    named = replace(digits, name=HOSTILE)
    proof = verify_dataset(model, named, radius=True, norm="l2", method="crown", max_images=60, model_name=HOSTILE)
    attack = attack_dataset(DDN(model, norm="l2", steps=10), named, minimum=True, max_images=60, model_name=HOSTILE)
    path = tmp_path_factory.mktemp("pages") / "pair.html"
    write_page(path, [proof, attack], data=digits, title=HOSTILE)
    return path.as_uri()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Page of a log with ten thousand rows."""
    votes = np.random.default_rng(0).integers(300, 1000, 10_000)
    path = tmp_path_factory.mktemp("pages") / "large.html"
    write_page(path, log_of(votes.tolist(), [i % 7 != 0 for i in range(10_000)]))
    return path.as_uri()


@pytest.fixture(scope="module")
def threats(tmp_path_factory):
    """Page of verdicts whose names, prompts and answers are hostile, with a prompt of a megabyte."""
    folder = tmp_path_factory.mktemp("pages")
    prompts = {str(i): (f"{HOSTILE}\n{i}", str(i // 2), HOSTILE) for i in range(20)}
    prompts["long"] = ("p" * 1_000_000, "long", "")
    samples = [
        {
            "id": id,
            "input": text,
            "metadata": {"behaviour": behaviour, "category": category},
            "output": {"choices": [{"message": {"content": text[:200]}}]},
            "scores": {"regex": {"value": "C" if "1" in text[:200] else "I"}},
        }
        for id, (text, behaviour, category) in prompts.items()
    ]
    log = {"eval": {"task": "jailbreak", "model": "toy"}, "samples": samples}
    (folder / "log.json").write_text(json.dumps(log))
    verdicts = read_verdicts(folder / "log.json")
    rows = [replace(row, judge="other", human_label=True, success=index % 3 > 0) for index, row in enumerate(verdicts)]
    (folder / "page.html").write_text(threat_page_html(ThreatVerdicts((*verdicts, *rows), verdicts.source)))
    return (folder / "page.html").as_uri()


def drawn(browser):
    """Wait until the page has been drawn again."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def shown(browser, column=0):
    """Texts of a column in the drawn rows of the table of all examples, at one moment: rows come and go."""
    drawn(browser)
    cells = 'row.querySelectorAll("th, td")[arguments[0]].innerText'
    rows = '[...document.querySelectorAll(".rows tbody tr[data-row]")]'
    return [text.strip() for text in browser.execute_script(f"return {rows}.map(row => {cells})", column)]


def status(browser):
    return browser.find_element(By.CSS_SELECTOR, ".examples [role=status]").text


def search(browser, text):
    field = browser.find_element(By.CSS_SELECTOR, "input[type=search]")
    field.clear()
    field.send_keys(text)


def requests(browser):
    """Addresses that were asked for since the last call, but for the page and the pictures in it."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in asked if not url.startswith(("file:", "data:"))]


def test_no_request_no_error_and_hostile_names_are_text(browser, pair):
    requests(browser)
    browser.get_log("browser")
    browser.get(pair)
    assert browser.execute_script("return window.hacked") is None
    assert browser.title.startswith("</title></script>")
    assert "\u202e" not in browser.page_source
    browser.find_element(By.CSS_SELECTOR, ".card").click()
    browser.find_element(By.ID, "example-close").click()
    assert requests(browser) == []
    assert browser.get_log("browser") == []
    # what the page holds is not all that keeps requests out
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', '<img src=http://127.0.0.1:9/ onerror=x()>')")
    refused = [entry["message"] for entry in browser.get_log("browser")]
    assert len(refused) >= 2
    assert all("Content Security Policy" in message for message in refused), refused


def test_verdicts_are_hostile_text_behind_a_click(browser, threats):
    requests(browser)
    browser.get_log("browser")
    browser.get(threats)
    assert status(browser) == "42 of 42 attempts"
    search(browser, "outcome=success judge=other")
    assert set(shown(browser, 1)) == {"success"}
    search(browser, "pppppppp")  # hidden columns, too
    assert status(browser) == "2 of 42 attempts"
    browser.find_element(By.CSS_SELECTOR, ".rows tbody button").click()
    dialog = browser.find_element(By.ID, "example")
    assert "pppp" not in dialog.text
    dialog.find_elements(By.TAG_NAME, "summary")[0].click()
    assert dialog.text.count("p" * 2000) == 1
    assert "998,000 characters left out" in dialog.text
    browser.find_element(By.ID, "example-close").click()
    assert browser.execute_script("return window.hacked") is None
    assert "\u202e" not in browser.page_source
    assert requests(browser) == []
    assert browser.get_log("browser") == []


def test_filters_and_sorting(browser, large):
    browser.get(large)
    assert status(browser) == "10,000 of 10,000 examples"
    # only the rows in view are in the document
    assert len(shown(browser)) < 100
    search(browser, "label=3 radius>0.2")
    assert set(shown(browser, 1)) == {"3"}
    assert all(float(text) > 0.2 for text in shown(browser, 4))
    search(browser, "prediction=4")
    browser.find_element(By.CSS_SELECTOR, "select[data-column=outcome] option[value=wrong]").click()
    assert set(shown(browser, 3)) == {"wrong"}
    assert set(shown(browser, 2)) == {"4"}
    browser.find_element(By.CSS_SELECTOR, "button[type=reset]").click()
    head = browser.find_element(By.XPATH, "//th/button[.='certified radius']")
    for direction in ("ascending", "descending"):
        head.click()
        values = [float(text) for text in shown(browser, 4)]
        assert values == sorted(values, reverse=direction == "descending")
        assert head.find_element(By.XPATH, "..").get_attribute("aria-sort") == direction
    browser.execute_script("document.querySelector('.rows').scrollTop = 1e9")
    assert float(shown(browser, 4)[-1]) == 0


def test_an_example_by_keyboard_alone(browser, pair):
    browser.get(pair)
    keys = webdriver.ActionChains(browser)

    def focused(what="innerText"):
        drawn(browser)
        return (browser.execute_script(f"return document.activeElement.{what}") or "").strip()

    for _ in range(200):
        keys.send_keys(Keys.TAB).perform()
        if focused("ariaLabel").startswith("Open example"):
            break
    assert focused() == "0"
    keys.send_keys(Keys.ARROW_DOWN, Keys.PAGE_DOWN, Keys.END).perform()
    assert focused() == "59"
    keys.send_keys(Keys.HOME).perform()
    keys.send_keys(Keys.ENTER).perform()
    assert browser.find_element(By.ID, "example-title").text == "Example 0"
    keys.send_keys(Keys.ARROW_RIGHT).perform()
    assert browser.find_element(By.ID, "example-title").text == "Example 1"
    keys.send_keys(Keys.ESCAPE).perform()
    assert not browser.find_element(By.ID, "example").is_displayed()
    assert focused() == "1"


def test_the_curves_are_read_out(browser, pair):
    browser.get(pair)
    range_ = browser.find_element(By.CSS_SELECTOR, "#s1-accuracy-readout input")
    before = range_.get_attribute("aria-valuetext")
    range_.send_keys(Keys.ARROW_RIGHT)
    after = range_.get_attribute("aria-valuetext")
    assert before != after
    assert "certified" in after
    assert "not broken" in after
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script("return document.documentElement.dataset.theme") == "light"


@pytest.fixture
def phone(browser):
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_phone_has_no_horizontal_scrolling(phone, pair, large, threats):
    for page in (pair, large, threats):
        phone.get(page)
        assert phone.execute_script("return document.documentElement.scrollWidth") <= 400


def test_labels_touch_no_tick_and_names_are_not_broken(phone, tmp_path):
    nets = {"Sequential": "zoo:digits-smooth-0.25", "ResNet18": "zoo:digits-ibp-0.10"}
    runs = [
        verify_dataset(load_model(net), load_data("digits"), epsilons=[0.01], max_images=5, model_name=name)
        for name, net in nets.items()
    ]
    write_page(tmp_path / "two.html", runs)
    phone.get((tmp_path / "two.html").as_uri())
    heights = [name.rect["height"] for name in phone.find_elements(By.CSS_SELECTOR, ".overview bdi")]
    assert len(heights) == 2
    assert max(heights) < 30  # one line
    assert set(phone.execute_script(_TOUCHED)) == {0}


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core (npm install axe-core; PYROBUST_AXE names axe.min.js)")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("page", "opens"), [("pair", None), ("pair", ".card"), ("threats", ".rows tbody button")])
def test_axe_finds_nothing_serious(browser, request, theme, page, opens):
    scheme = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get(request.getfixturevalue(page))
    browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    if opens:
        browser.find_element(By.CSS_SELECTOR, opens).click()
    browser.execute_script(AXE.read_text())
    browser.set_script_timeout(120)
    violations = browser.execute_async_script("axe.run().then(arguments[0])")["violations"]
    assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in violations] == []


def test_a_page_in_progress_reloads_itself_unless_it_is_used(browser, tmp_path):
    run = attack_dataset(
        DDN(load_model("zoo:digits-ibp-0.10"), steps=2), load_data("digits"), max_images=6, minimum=True
    )
    path = tmp_path / "live.html"
    path.write_text(page_html(run, live=Live("In progress.", "run.db: 6 of 9 images", 1)))
    browser.get(path.as_uri())
    wait = WebDriverWait(browser, 60)
    browser.execute_script("window.before = true")
    wait.until(lambda driver: not driver.execute_script("return window.before"))  # reloaded
    assert "In progress. run.db: 6 of 9 images" in browser.find_element(By.ID, "live").text
    browser.find_element(By.ID, "live-pause").click()
    browser.execute_script("window.before = true")
    time.sleep(2.5)
    assert browser.execute_script("return window.before")
    assert browser.find_element(By.ID, "live-pause").get_attribute("aria-pressed") == "true"
    path.write_text(page_html(run))
    browser.refresh()
    assert not browser.find_elements(By.ID, "live")
