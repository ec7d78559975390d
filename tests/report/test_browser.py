"""The page in a real browser: it works, stays quiet, keeps to itself and fits its window."""

import json
import shutil

import pytest
from tests.report.conftest import HOSTILE

from logn.measure.comparison import Comparison
from logn.report.page import write_report

# Without a sandbox, which neither root nor every container can have: the only page is ours.
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
CHROMIUM = next(filter(None, map(shutil.which, (*NAMES, MAC))), None)
DRIVER = shutil.which("chromedriver")
# No machine is that slow: only what would wait forever ends here.
HANG_SECONDS = 900

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Chromium and its driver")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(HANG_SECONDS)
    driver.set_script_timeout(HANG_SECONDS)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(run_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert write_report(run_folder, path, method="recommended").missing == {}
    return path.as_uri()


def resize(browser, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def move_mouse(browser, x, y):
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})


def wait_until(browser, condition):
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, HANG_SECONDS, poll_frequency=0.05).until(lambda _: condition())


@pytest.fixture
def page(browser, address):
    """The page, freshly loaded, in a browser that remembers nothing of the test before."""
    resize(browser, 1400)
    move_mouse(browser, 0, 0)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(address)
    return browser


def test_no_console_message_and_no_request_leaves_the_page(page, address):
    page.execute_script("document.querySelectorAll('th button').forEach((button) => button.click())")
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    # The browser may ask on its own account when it starts; the page may not.
    asked = [request["request"]["url"] for request in sent if request["documentURL"] == address]
    assert address in asked
    assert [url for url in asked if url != address and not url.startswith("data:")] == []
    assert page.get_log("browser") == []


ROWS = """
    return [...document.getElementById("method-table").tBodies[0].rows]
      .map((row) => [row.cells[0].textContent, Number(row.cells[1].dataset.value)]);
"""


def test_the_table_sorts_both_ways(page):
    before = page.execute_script(ROWS)
    assert before[0][0] == "none"
    header = page.find_elements("css selector", "#method-table th")[1]
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", header)
    header.find_element("tag name", "button").click()
    assert page.execute_script(ROWS) == sorted(before, key=lambda row: -row[1])
    assert header.get_attribute("aria-sort") == "descending"
    header.find_element("tag name", "button").click()
    assert [row[1] for row in page.execute_script(ROWS)] == sorted(row[1] for row in before)
    page.find_elements("css selector", "#method-table th button")[0].click()
    assert [row[0] for row in page.execute_script(ROWS)] == ["loga", "logn", "none", "norcal", "recommended"]


def test_the_bar_of_contents_leads_to_every_section(page):
    links = page.find_elements("css selector", "nav a")
    assert len(links) == len(page.find_elements("css selector", "main section"))
    links[-1].click()
    top = "return document.getElementById('provenance').getBoundingClientRect().top"
    wait_until(page, lambda: page.execute_script(top) < 900)


# Where the mark of the second class stands in the window, after scrolling to it.
SECOND_MARK = """
    const svg = document.querySelector('svg[data-points="mean"]');
    svg.scrollIntoView({block: "center", behavior: "instant"});
    const [x, before] = JSON.parse(document.getElementById("class-data").textContent).points.mean[1];
    const point = new DOMPoint(x, before).matrixTransform(svg.getScreenCTM());
    return [point.x, point.y];
"""


def test_pointing_at_a_mark_shows_its_class_as_text_and_escape_hides_it(page):
    move_mouse(page, *page.execute_script(SECOND_MARK))
    tip = page.find_element("id", "tip")
    wait_until(page, tip.is_displayed)
    assert tip.text.splitlines()[0] == HOSTILE
    assert "training images" in tip.text
    assert "AP " in tip.text
    assert len(page.find_elements("css selector", ".mark.ring")) == 4  # before and after, in both charts
    page.find_element("tag name", "body").send_keys("\ue00c")
    wait_until(page, lambda: not tip.is_displayed())


def test_the_gallery_has_pictures_that_can_be_decoded(page):
    script = """
        const done = arguments[0];
        const images = [...document.querySelectorAll("#gallery image")].map((image) => image.href.baseVal);
        Promise.all(images.map(async (source) => {
          const image = new Image();
          image.src = source;
          await image.decode();
          return image.naturalWidth;
        })).then(done, () => done([0]));
    """
    widths = page.execute_async_script(script)
    assert len(widths) >= 2
    assert all(width == 96 for width in widths)


OPEN = "document.querySelectorAll('details').forEach((element) => { element.open = true; })"
# What reaches beyond the window, apart from what scrolls sideways in a box of its own.
CUT_OFF = """
    const limit = arguments[0] + 1;
    return [...document.querySelectorAll("body *")].filter((element) => {
      if (element.parentElement.closest(".scroll, .gallery, nav")) return false;
      const box = element.getBoundingClientRect();
      return box.right > limit || box.left < -1;
    }).map((element) => element.outerHTML.slice(0, 120));
"""


@pytest.mark.parametrize("width", [380, 800, 1400])
@pytest.mark.parametrize("task", ["detection", "classification"])
def test_nothing_overflows_and_tables_scroll_sideways(page, classifier_folder, width, task):
    if task == "classification":
        page.get((classifier_folder / "report.html").as_uri())
    resize(page, width)
    page.execute_script(OPEN)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.execute_script(CUT_OFF, width) == []
    script = """
        const box = document.querySelector(arguments[0]).closest(".scroll"), name = box.querySelector("tbody td");
        const before = name.getBoundingClientRect().left, reach = box.scrollWidth - box.clientWidth;
        box.scrollLeft = reach;
        return [reach, name.getBoundingClientRect().left - before];
    """
    for table in ("#method-table", "#number-table", "#strength-table") if task == "detection" else ("#method-table",):
        reach, shift = page.execute_script(script, table)
        assert abs(shift) < 5  # the names of the methods stay
        assert (reach > 0) == (width == 380) or width == 800


def test_paper_gets_what_is_folded_and_nothing_beyond_its_edge(page):
    resize(page, 794)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 794
        page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        folded = "return document.querySelectorAll('details:not([open])').length"
        assert page.execute_script(folded) == 0
        assert page.execute_script(CUT_OFF, 794) == []
        page.execute_script("window.dispatchEvent(new Event('afterprint'))")
        assert page.execute_script(folded) > 0
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_the_list_of_classes_can_be_searched(page):
    page.execute_script(OPEN)
    names = page.execute_script("return [...document.querySelectorAll('#all td.name')].map((cell) => cell.textContent)")
    assert names[:3] == ["cup", HOSTILE, 'a "quoted" & <b>bold</b> name']
    page.find_element("css selector", "input[type=search]").send_keys("Spoo")
    shown = page.execute_script(
        "return [...document.querySelectorAll('#all tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => row.cells[0].textContent)"
    )
    assert shown == ["spoon"]


def test_everything_is_there_without_script(page, address):
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.get(address)
        assert page.find_element("tag name", "h1").text.startswith("Rare classes: recall ")
        assert len(page.find_elements("css selector", "#method-table tbody tr")) == 5
        assert all(element.is_displayed() for element in page.find_elements("css selector", "section h2"))
        assert len(page.find_elements("css selector", "#gallery image")) >= 2
        assert not page.find_elements("css selector", "th button")
        assert not page.find_element("id", "strength").is_displayed()
        assert len(page.find_elements("css selector", "#strengths svg.chart path.line-after")) == 6
        assert len(page.find_elements("css selector", "#strength-table tbody tr")) == 6
        assert "recommended:strength=0.5" in page.find_element("id", "strength-command").text
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


STRENGTH = """
    return [document.getElementById("strength-name").textContent, document.getElementById("strength-text").textContent,
      document.getElementById("strength-command").textContent,
      [...document.querySelectorAll("#strength-table tr.focus td")].map((cell) => cell.textContent),
      [...document.querySelectorAll("[data-strength]")].map((ring) => Number(ring.getAttribute("cx"))),
      document.getElementById("strength").getAttribute("aria-valuetext")];
"""


@pytest.mark.parametrize("task", ["detection", "classification"])
def test_the_slider_moves_through_the_strengths_by_keys(page, run_folder, classifier_folder, task):
    folder = run_folder if task == "detection" else classifier_folder
    if task == "classification":
        page.get((folder / "report.html").as_uri())
    strengths = Comparison.load(folder).strengths
    slider = page.find_element("id", "strength")
    assert slider.is_displayed()
    slider.send_keys("\ue011")  # Home
    seen = []
    for point in strengths:
        name, text, command, row, rings, spoken = page.execute_script(STRENGTH)
        assert name == row[0] == spoken == f"{point.strength:g}"
        assert point.method in command
        assert command.startswith("logn correct MODEL --images TRAIN_IMAGES --method ")
        assert all(f"→ {value}" in text for value in row[1:])
        if point.threshold is not None:
            assert f"Score threshold {point.threshold:.2g}." in text
        assert len(set(rings)) == 1
        seen.append(rings[0])
        slider.send_keys("\ue014")  # arrow to the right
    assert seen == sorted(set(seen))
    assert page.get_log("browser") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(page, scheme):
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
    script = """
        const light = (colour) => {
          const [r, g, b] = colour.match(/[0-9.]+/g).map((part) => Number(part) / 255)
            .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = light(getComputedStyle(document.querySelector("section")).backgroundColor);
        return [...document.querySelectorAll("h2, .lead, .up, .down, .note")].map((element) => {
          const text = light(getComputedStyle(element).color);
          return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
        });
    """
    assert min(page.execute_script(script)) >= 4.5
