"""The console in a real browser: it logs in, nothing is complained of, nothing is asked for elsewhere."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.console.browser import Browser, opened
from tests.console.world import (
    EVIL,
    HOSTILE,
    PASSWORD,
    Place,
    RunningConsole,
    ask,
    fill_hostile,
    hostile_engine,
    site,
)
from tests.waiting import wait_for

SCREENS = [(1280, 900, "light"), (1280, 900, "dark"), (400, 860, "light"), (400, 860, "dark")]
CONTRAST = """
function light(text) {
  const [r, g, b, a] = text.match(/[0-9.]+/g).map(Number);
  if (a === 0) return null;
  const [x, y, z] = [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}
function under(element) {
  for (; element; element = element.parentElement) {
    const found = light(getComputedStyle(element).backgroundColor);
    if (found !== null) return found;
  }
  return 1;
}
const low = [];
for (const element of document.querySelectorAll('h1,h2,h3,p,a,td,th,dt,dd,code,span,summary,button,label,strong')) {
  const [one, other] = [light(getComputedStyle(element).color), under(element)].sort((a, b) => b - a);
  if ((one + 0.05) / (other + 0.05) < 4.5) low.push(element.outerHTML.slice(0, 80));
}
return low;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("profile")) as browser:
        browser.open("about:blank")
        browser.console(), browser.requested()
        yield browser


@pytest.fixture
def overview(console: RunningConsole, browser: Browser) -> Iterator[Browser]:
    """The page, logged in."""
    browser.open(console.origin)
    assert browser.url == f"{console.origin}/login"
    browser.type("#password", PASSWORD)
    browser.leave("button")
    assert browser.url == f"{console.origin}/"
    yield browser
    browser.leave("header button")
    assert browser.url == f"{console.origin}/login"
    complaints, asked = browser.console(), browser.requested()
    assert complaints == []
    # The browser's own icons of its form fields are data; of the page's own ones it would have complained.
    assert len(asked) > 4 and all(url.startswith((f"{console.origin}/", "data:")) for url in asked)


def test_the_page_is_shown_and_no_text_in_it_is_obeyed(overview: Browser, console: RunningConsole) -> None:
    assert overview.text("h1") == "dpsql console"
    assert EVIL in overview.text("#budgets") and "</code><script>alert(1)</script>" in overview.text("#queries")
    assert overview.script("return document.scripts.length + document.images.length") == 0
    assert re.search(r"42501\s+PolicyViolation", overview.text("#refusals"))
    assert overview.script("return document.cookie") == ""  # no script can read the session
    overview.type("#find", "visits")
    overview.script("document.getElementById('sort').value = 'dearest'")
    overview.leave(".search button")
    assert overview.url == f"{console.origin}/?user=&day=&find=visits&sort=dearest#queries"
    assert "FROM visits" in overview.text("#queries") and "GROUP BY" not in overview.text("#queries")
    overview.click(".charges summary")
    assert re.search(r"ε 0\.\d+, .*record \d+, release \d+", overview.text(".charges"))
    overview.click("#policy summary")
    assert "0 to 110" in overview.text("#policy")


@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_it_can_be_read_on_every_screen(
    overview: Browser, width: int, height: int, scheme: str, tmp_path: Path
) -> None:
    overview.media(width, height, scheme)
    assert overview.script("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert overview.script(CONTRAST) == []
    assert overview.script("return matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
    overview.shoot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_a_wrong_password_says_so(console: RunningConsole, browser: Browser) -> None:
    browser.open(console.origin)
    browser.type("#password", "wrong")
    browser.leave("button")
    assert browser.text("[role=alert]") == "This is not the password."
    (complaint,) = browser.console()
    assert "the server responded with a status of 403" in complaint
    browser.requested()


RUNS = """
const found = [];
for (const element of document.querySelectorAll('*')) {
  for (const name of ['mouseover', 'focus', 'load', 'error']) element.dispatchEvent(new Event(name));
  for (const {name, value} of element.attributes)
    if (name.startsWith('on') || name.startsWith('auto') || /^\\s*javascript:/i.test(value)) found.push(name);
}
return [window.ran !== undefined, document.scripts.length + document.images.length, found];
"""


def test_nothing_that_somebody_has_named_is_run(tmp_path: Path, browser: Browser) -> None:
    """Names, texts and reasons are hostile wherever one can be chosen, and the page's second wall is taken away."""
    place = fill_hostile(tmp_path)
    running = RunningConsole(site(place, engine=hostile_engine))
    browser.devtools("Page.setBypassCSP", {"enabled": True})

    def section(name: str) -> str:
        return str(browser.script("return document.getElementById(arguments[0]).textContent", name))

    def is_checked() -> bool:
        browser.open(running.origin)
        return "look again" not in section("health")

    try:
        browser.open(f"data:text/html,{quote(HOSTILE)}")
        assert browser.script(RUNS)[0], "it would be run"
        browser.open(running.origin)
        browser.type("#password", PASSWORD)
        browser.leave("button")
        wait_for(is_checked)
        for name in ("budgets", "queries", "policy", "changes", "health"):
            assert HOSTILE in section(name)
        assert browser.script(RUNS) == [False, 0, []]
        for asked in (f"user={quote(HOSTILE)}", f"find={quote(HOSTILE)}", f"sort={quote(HOSTILE)}"):
            browser.open(f"{running.origin}/?{asked}")
            assert browser.script(RUNS) == [False, 0, []]
        place.policy.write_text(f"{json.dumps(HOSTILE)} = 1\n")
        browser.open(running.origin)
        assert HOSTILE in browser.script("return document.querySelector('.trouble').textContent")
        assert browser.script(RUNS) == [False, 0, []]
    finally:
        browser.devtools("Page.setBypassCSP", {"enabled": False})
        running.close()
    browser.console(), browser.requested()


def test_scripts_and_inline_styles_would_not_run(place: Place, browser: Browser) -> None:
    """The policy holds where the escaping does not: it is the second wall."""
    running = RunningConsole(site(place))
    try:
        browser.open(f"{running.origin}/login")
        browser.console()
        browser.script(
            "const image = document.createElement('img');"
            "image.src = 'http://127.0.0.1:1/x'; document.body.append(image);"
            "const code = document.createElement('script'); code.textContent = 'window.ran = 1';"
            "document.body.append(code); document.body.setAttribute('style', 'color: red');"
        )
        assert browser.script("return window.ran === undefined")
        complaints = browser.console()
        assert len(complaints) == 3 and all("Content Security Policy" in complaint for complaint in complaints)
        assert ask(running, "GET", "/login").status == 200
    finally:
        running.close()
    browser.requested()
