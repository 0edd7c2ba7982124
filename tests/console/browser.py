"""A headless Chromium, driven by chromedriver over the protocol of W3C WebDriver; no package is needed for that.

Reference: https://www.w3.org/TR/webdriver2/; for the logs https://chromedriver.chromium.org/logging.
"""

import base64
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.waiting import HANG_SECONDS, wait_for

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@cache
def chromium() -> tuple[str, str] | None:
    """Chromium and its driver, if this machine has both."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else (browser, driver)


class Browser:
    """A browser with one page.

    Args:
        driver: Where chromedriver listens.
        session: The path of the session there.
    """

    def __init__(self, driver: str, session: str) -> None:
        self._base = f"{driver}{session}"

    def call(self, method: str, path: str, **body: Any) -> Any:
        return call(method, self._base + path, body)

    def open(self, url: str) -> None:
        self.call("POST", "/url", url=url)

    @property
    def url(self) -> str:
        return str(self.call("GET", "/url"))

    def find(self, css: str) -> str:
        found = self.call("POST", "/element", using="css selector", value=css)
        return f"/element/{found[ELEMENT]}"

    def text(self, css: str) -> str:
        return str(self.call("GET", self.find(css) + "/text"))

    def type(self, css: str, text: str) -> None:
        self.call("POST", self.find(css) + "/value", text=text)

    def click(self, css: str) -> None:
        self.call("POST", self.find(css) + "/click")

    def leave(self, css: str) -> None:
        """Click on what leads to another page, and wait until that is there."""
        self.script("window.former = true")
        self.click(css)
        wait_for(self._is_elsewhere)

    def _is_elsewhere(self) -> bool:
        try:
            return bool(self.script("return !window.former && document.readyState === 'complete'"))
        except urllib.error.HTTPError as error:  # between the pages there is none
            error.close()
            return False

    def script(self, body: str, *arguments: object) -> Any:
        return self.call("POST", "/execute/sync", script=body, args=list(arguments))

    def media(self, width: int, height: int, scheme: str) -> None:
        """See the page as on a screen of this size whose owner likes it light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", {"features": features})

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self.call("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def shoot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def console(self) -> list[str]:
        """What the page has complained of since it was asked last; what breaks a Content-Security-Policy, too."""
        return [entry["message"] for entry in self.call("POST", "/se/log", type="browser")]

    def requested(self) -> list[str]:
        """What the page has asked for since it was asked last."""
        events = [json.loads(entry["message"])["message"] for entry in self.call("POST", "/se/log", type="performance")]
        return [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]


def call(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    data = json.dumps(body or {}).encode() if method == "POST" else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
        return json.load(answer)["value"]


@contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    """Open a browser that keeps its files in a folder."""
    found = chromium()
    assert found is not None
    browser, driver = found
    process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        said = next(line for line in process.stdout if "started successfully on port" in line)
        base = f"http://127.0.0.1:{said.rstrip().rstrip('.').rpartition(' ')[2]}"
        options = {
            "binary": browser,
            "args": [*FLAGS, f"--user-data-dir={profile}"],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "acceptInsecureCerts": True,
        }
        session = call("POST", f"{base}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        try:
            yield Browser(base, f"/session/{session}")
        finally:
            call("DELETE", f"{base}/session/{session}")
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(HANG_SECONDS)
