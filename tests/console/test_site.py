"""Over a socket: nothing without the password, nothing by another name, nothing from another page."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from dpsql.ledger import SqliteLedger
from dpsql.wire.login_throttle import LoginThrottle
from tests.console.world import EVIL, PASSWORD, Answer, Place, RunningConsole, ask, logged_in, site, words
from tests.waiting import wait_for

STATIC = ("/style.css", "/icon.svg")


def test_before_the_password_there_is_only_the_form(console: RunningConsole) -> None:
    form = ask(console, "GET", "/login")
    assert form.status == 200 and 'type="password"' in form.text
    told = form.body
    for path in ("/", "/?user=ana", "/?day=x"):
        answer = ask(console, "GET", path)
        assert (answer.status, answer.headers["location"], answer.body) == (303, "/login", b"")
        assert ask(console, "GET", path, Cookie="dpsql=guessed").status == 303
    for path in STATIC:
        answer = ask(console, "GET", path)
        assert answer.status == 200
        told += answer.body
    for word in (b"ana", b"clinic", b"patients", b"SELECT"):
        assert word not in told


def test_the_owner_sees_the_page_and_leaves_it(console: RunningConsole) -> None:
    cookie = logged_in(console)
    page = ask(console, "GET", "/", Cookie=f"other=1; {cookie}")
    assert page.status == 200 and EVIL in words(page.text) and EVIL not in page.text
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert ask(console, "HEAD", "/", Cookie=cookie).body == b""
    left = ask(console, "POST", "/logout", "", Cookie=cookie)
    assert (left.status, left.headers["location"]) == (303, "/login")
    assert "Max-Age=0" in left.headers["set-cookie"]
    assert ask(console, "GET", "/", Cookie=cookie).status == 303


def test_the_cookie_is_for_this_page_alone(console: RunningConsole, place: Place) -> None:
    answer = ask(console, "POST", "/login", f"password={quote(PASSWORD)}")
    name, *flags = answer.headers["set-cookie"].split("; ")
    assert (len(name) > 40, sorted(flags)) == (True, ["HttpOnly", "Path=/", "SameSite=strict"])
    assert logged_in(console) != answer.cookie
    secure = RunningConsole(site(place, secure=True))
    try:
        headers = {"Origin": f"https://127.0.0.1:{secure.port}"}
        answer = ask(secure, "POST", "/login", "password=the+%C3%B6wner%27s+%26+secret", **headers)
        assert answer.headers["set-cookie"].startswith("__Host-dpsql=")
        flags = answer.headers["set-cookie"].split("; ")[1:]
        assert sorted(flags) == ["HttpOnly", "Path=/", "SameSite=strict", "Secure"]
    finally:
        secure.close()


def test_a_wrong_password_is_told_after_a_while_and_logged(
    console: RunningConsole, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dpsql.console"):
        for body in (
            "password=wrong",
            "password=",
            "",
            "passwort=x",
            "password=the&password=the",
            "%ff=%ff&password=%ff",
        ):
            answer = ask(console, "POST", "/login", body)
            assert (answer.status, "set-cookie" in answer.headers) == (403, False)
            assert "This is not the password." in words(answer.text)
    assert [record.getMessage() for record in caplog.records] == ["wrong password from 127.0.0.1"] * 6
    right = "password=the+%C3%B6wner%27s+%26+secret"
    assert ask(console, "POST", "/login", right, Content_Type="text/plain").status == 403
    assert ask(console, "POST", "/login", right, Content_Type="Application/X-www-form-urlencoded; a=b").status == 303


@pytest.fixture
def slow(place: Place) -> Iterator[RunningConsole]:
    """A console at which a failure waits for long."""
    running = RunningConsole(site(place, throttle=LoginThrottle(60, most=60, at_once=3)))
    yield running
    running.close()


def test_only_so_many_guesses_are_judged_at_once(slow: RunningConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    told = asyncio.Event()
    sleep = asyncio.sleep

    async def wait(seconds: float) -> None:
        await (told.wait() if seconds == 60 else sleep(seconds))

    monkeypatch.setattr("dpsql.console.site.asyncio.sleep", wait)
    with ThreadPoolExecutor(8) as pool:
        guesses = [pool.submit(ask, slow, "POST", "/login", f"password={number}") for number in range(8)]
        wait_for(lambda: sum(guess.done() for guess in guesses) == 5)
        assert ask(slow, "POST", "/login", "password=the+%C3%B6wner%27s+%26+secret").status == 429
        slow.run(_set(told))
    answers = sorted(guess.result().status for guess in guesses)
    assert answers == [403] * 3 + [429] * 5
    assert logged_in(slow)  # a right password waits for nobody


async def _set(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "[::1", "a b", "127.0.0.1:x"])
def test_another_name_is_refused(console: RunningConsole, cookie: str, host: str) -> None:
    for path in ("/", "/login", *STATIC):
        answer = ask(console, "GET", path, Cookie=cookie, Host=host)
        assert answer.status == 421 and len(answer.body) < 100
    body = "password=the+%C3%B6wner%27s+%26+secret"
    assert ask(console, "POST", "/login", body, Host=host, Origin=f"http://{host}").status == 421


def test_no_name_is_none_even_where_it_was_given(place: Place) -> None:
    running = RunningConsole(site(place, names=frozenset({"", "here"})))
    try:
        assert ask(running, "GET", "/login", Host="").status == 421
        assert ask(running, "GET", "/login", Host=None).status == 400
    finally:
        running.close()


def test_a_name_of_this_host_is_taken_by_any_port(console: RunningConsole) -> None:
    for host in ("localhost:1", "LOCALHOST", "127.0.0.1"):
        assert ask(console, "GET", "/login", Host=host).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1", None]
)
def test_a_form_of_another_page_is_refused(console: RunningConsole, cookie: str, origin: str | None) -> None:
    told = None if origin is None else origin.format(port=console.port)
    for path, body in (("/login", "password=the+%C3%B6wner%27s+%26+secret"), ("/logout", "")):
        answer = ask(console, "POST", path, body, Cookie=cookie, Origin=told)
        assert (answer.status, "set-cookie" in answer.headers) == (403, False)
    assert ask(console, "GET", "/", Cookie=cookie).status == 200


def asked(console: RunningConsole, cookie: str) -> Iterator[tuple[int, Answer]]:
    """One of each kind of answer, with the status that it is to have."""
    for path, status in (("/", 200), ("/login", 200), ("/style.css", 200), ("/nothing", 404), ("/?day=x", 400)):
        yield status, ask(console, "GET", path, Cookie=cookie)
    yield 400, ask(console, "GET", f"/?page={'9' * 30}", Cookie=cookie)
    yield 200, ask(console, "GET", "/?user=ana&find=sex&sort=dearest&page=999999", Cookie=cookie)
    yield 303, ask(console, "GET", "/")
    for path in ("/../style.css", "/%2e%2e/style.css", "/style.css/", "//evil.example/"):
        yield 404, ask(console, "GET", path, Cookie=cookie)
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
        yield 405, ask(console, method, "/", Cookie=cookie)
    for path in ("/", "/style.css"):
        yield 405, ask(console, "POST", path, "x=1", Cookie=cookie)
    yield 413, ask(console, "POST", "/login", "x" * 5000)
    yield 403, ask(console, "POST", "/login", "password=x")
    yield 421, ask(console, "GET", "/", Host="evil.example")


def test_every_answer_has_the_headers_and_is_short_where_it_refuses(console: RunningConsole, cookie: str) -> None:
    for status, answer in asked(console, cookie):
        assert answer.status == status
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; "
            "base-uri 'none'"
        )
        assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
        assert (answer.headers["referrer-policy"], answer.headers["x-frame-options"]) == ("same-origin", "DENY")
        assert int(answer.headers["content-length"]) == len(answer.body)
        assert "server" not in answer.headers and "Traceback" not in answer.text
        assert len(answer.body) < 200 or status == 200 or 'role="alert"' in answer.text


def test_an_address_that_is_no_search_says_what_one_is(console: RunningConsole, cookie: str) -> None:
    answer = ask(console, "GET", "/?day=%3Cscript%3E", Cookie=cookie)
    assert answer.status == 400 and "script" not in answer.text
    assert "day is a day of the calendar, as 2026-01-31" in words(answer.text)
    assert ask(console, "GET", "/?user=ana&day=2026-01-31", Cookie=cookie).status == 200


def test_nothing_is_written(console: RunningConsole, cookie: str, place: Place) -> None:
    def records() -> list[object]:
        ledger = SqliteLedger(place.ledger)
        try:
            return [list(ledger.export()), ledger.accounts()]
        finally:
            ledger.close()

    before, policy = records(), place.policy.read_bytes()
    for _ in asked(console, cookie):
        pass
    assert (records(), place.policy.read_bytes()) == (before, policy)


def test_a_ledger_that_is_gone_is_told_to_the_owner_with_what_to_do(place: Place) -> None:
    running = RunningConsole(site(Place(place.policy, place.ledger.with_name("gone.sqlite"))))
    try:
        page = ask(running, "GET", "/", Cookie=logged_in(running))
        assert (
            page.status == 503 and "there is no ledger" in words(page.text) and "dpsql ledger init" in words(page.text)
        )
        assert ask(running, "GET", "/").status == 303
    finally:
        running.close()


def test_a_fault_of_the_console_is_one_sentence(
    console: RunningConsole, cookie: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bytes:
        raise RuntimeError("secret")

    monkeypatch.setattr("dpsql.console.site.overview", broken)
    answer = ask(console, "GET", "/", Cookie=cookie)
    assert (answer.status, answer.body) == (500, b"the server failed; its log says where\n")
    assert "unexpected RuntimeError" in caplog.text and "secret" not in caplog.text
