"""What this machine has of the browser that the console is tried in; pip cannot bring it."""

from tests.console.browser import chromium


def missing() -> dict[str, str]:
    """The test files that cannot be collected here, and what each of them lacks."""
    return {} if chromium() is not None else {"test_browser.py": "Chromium (chromium and chromium-driver)"}
