"""site: which request gets which answer.

Rule 1: a request that names another host is refused, so that no page of elsewhere reaches the console by a name of
    its own (DNS rebinding); one that sends a form must come from the console's own page.
Rule 2: without a session there is the form that asks for the password, its style and its icon, and nothing else.
Rule 3: GET changes nothing, and no request changes ledger or policy.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from dpsql.console.background import Background
from dpsql.console.facts import Gatherer, Health
from dpsql.console.health import EngineHealth, GatewayHealth, LedgerHealth
from dpsql.console.login import Password, Sessions
from dpsql.console.messages import HTML, Request, Response, redirect, sentence
from dpsql.console.pages import login_page, overview, trouble_page
from dpsql.errors import Error
from dpsql.wire.guesses import Guesses

_LOG: Final = logging.getLogger("dpsql.console")
_FIRST_FAILURE: Final = 0.5
_NUMBER: Final = re.compile("[0-9]{1,18}")
_STATIC: Final = {
    path: Response(HTTPStatus.OK, files("dpsql.console").joinpath(path[1:]).read_bytes(), kind)
    for path, kind in (("/style.css", "text/css; charset=utf-8"), ("/icon.svg", "image/svg+xml"))
}


@dataclass(frozen=True)
class Sources:
    """Where the page's contents come from.

    Attributes:
        gatherer: Policy and ledger.
        ledger: How the ledger is.
        engine: How the database is.
        gateway: Asks how the gateway is, on the dataset of a name; None where there is none to ask.
    """

    gatherer: Gatherer
    ledger: Background[LedgerHealth]
    engine: Background[EngineHealth]
    gateway: Callable[[str], Awaitable[GatewayHealth]] | None


class Site:
    """The console's answers.

    Args:
        sources: Where the page's contents come from.
        password: The owner's.
        names: The hosts that requests may name.
        secure: Whether browsers reach it by TLS.
        guesses: How long a wrong password waits.
    """

    def __init__(
        self,
        sources: Sources,
        password: Password,
        names: frozenset[str],
        *,
        secure: bool,
        guesses: Guesses | None = None,
    ) -> None:
        self._sources = sources
        self._password = password
        self._names = names
        self._scheme = "https" if secure else "http"
        self._cookie = "__Host-dpsql" if secure else "dpsql"
        self._flags = "; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
        self._guesses = guesses if guesses is not None else Guesses(_FIRST_FAILURE)
        self._sessions = Sessions()

    async def answer(self, request: Request, address: str) -> Response:
        """Answer a request that came from an address.

        Raises:
            TooManyConnections: Too many wrong passwords from the address are still to be told.
        """
        if _host(request.headers.get("host", "")) not in self._names:
            return sentence(
                HTTPStatus.MISDIRECTED_REQUEST, "this is not the name of the console; see dpsql console --name"
            )
        if request.method in ("GET", "HEAD"):
            return await self._get(request)
        if request.method != "POST" or request.path not in ("/login", "/logout"):
            return sentence(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        if request.headers.get("origin") != f"{self._scheme}://{request.headers['host']}":
            return sentence(HTTPStatus.FORBIDDEN, "the form is not the console's own")
        if request.path == "/logout":
            self._sessions.end(request.cookie(self._cookie))
            return redirect("/login", ("Set-Cookie", f"{self._cookie}={self._flags}; Max-Age=0"))
        return await self._log_in(request, address)

    async def _get(self, request: Request) -> Response:
        if request.path in _STATIC:
            return _STATIC[request.path]
        if request.path == "/login":
            return _page(HTTPStatus.OK, login_page(None))
        if request.path != "/":
            return sentence(HTTPStatus.NOT_FOUND, "there is one page: /")
        if not self._sessions.is_open(request.cookie(self._cookie)):
            return redirect("/login")
        return await self._overview(request.field("before"))

    async def _log_in(self, request: Request, address: str) -> Response:
        self._guesses.check(address)
        # Judged at once, on this thread: of guesses that come together only so many are judged before one is told.
        if self._password.is_it(request.form_field("password") or ""):
            _LOG.info("login from %s", address, extra={"fields": {"event": "login", "peer": address}})
            return redirect("/", ("Set-Cookie", f"{self._cookie}={self._sessions.begin()}{self._flags}"))
        with self._guesses.failed("", address) as seconds:
            _LOG.warning("wrong password from %s", address, extra={"fields": {"event": "login", "peer": address}})
            await asyncio.sleep(seconds)
        return _page(HTTPStatus.FORBIDDEN, login_page("This is not the password."))

    async def _overview(self, before: str | None) -> Response:
        if before is not None and not _NUMBER.fullmatch(before):
            return sentence(HTTPStatus.BAD_REQUEST, "before: the number of a release")
        number = None if before is None else int(before)
        try:
            facts = await asyncio.to_thread(self._sources.gatherer.gather, number)
        except Error as error:
            return _page(HTTPStatus.SERVICE_UNAVAILABLE, trouble_page(error.message, error.hint))
        asked = self._sources.gateway
        gateway = None if asked is None else await asked(facts.policy.dataset.name)
        health = Health(self._sources.ledger.latest(), self._sources.engine.latest(), gateway)
        return _page(HTTPStatus.OK, await asyncio.to_thread(overview, facts, health))


def _page(status: HTTPStatus, body: bytes) -> Response:
    return Response(status, body, HTML)


def _host(named: str) -> str | None:
    """The host of a Host header without its port, which may be another one where a container's is mapped."""
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]{1,5})?", named.lower())
    return None if found is None else found[1]
