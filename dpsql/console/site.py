"""site: routes requests to answers.

Rule 1: a request with another host name is refused, so that no foreign page reaches the console under a name of its own
    (DNS rebinding); a form must come from the console's own page.
Rule 2: without a session, only the login form, its style and its icon are served.
Rule 3: GET changes nothing, and no request changes ledger or policy.
Rule 4: every answer has the same headers: no scripts, no foreign content, no frames, no caching.

Reference: RFC 6265 (cookies), https://www.w3.org/TR/CSP3/.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from dpsql.console.background import Background
from dpsql.console.facts import Gatherer, Health
from dpsql.console.health import EngineHealth, GatewayHealth, LedgerHealth
from dpsql.console.login import Password, Sessions
from dpsql.console.pages import login_page, overview, trouble_page
from dpsql.console.search import read_search
from dpsql.errors import Error, InvalidParameter, TooManyConnections
from dpsql.wire.http import AsgiMessage, HttpBounds, HttpServer, Receive, Send
from dpsql.wire.login_throttle import LoginThrottle

_LOG: Final = logging.getLogger("dpsql.console")
_FIRST_FAILURE: Final = 0.5
_FORM: Final = "application/x-www-form-urlencoded"
_STATIC: Final = (("/style.css", "text/css"), ("/icon.svg", "image/svg+xml"))

_POLICY: Final = (
    b"default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = (
    (b"Content-Security-Policy", _POLICY),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Frame-Options", b"DENY"),
    # With "no-referrer", browsers would send `Origin: null` with the console's own forms. Other sites get no referrer.
    (b"Referrer-Policy", b"same-origin"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
    (b"Cache-Control", b"no-store"),
)


@dataclass(frozen=True)
class Sources:
    """The sources of the page's content.

    Attributes:
        gatherer: The facts of policy and ledger.
        ledger: The health of the ledger.
        engine: The health of the database.
        gateway: Returns the health of the gateway for a dataset; None if there is no gateway to query.
    """

    gatherer: Gatherer
    ledger: Background[LedgerHealth]
    engine: Background[EngineHealth]
    gateway: Callable[[str], Awaitable[GatewayHealth]] | None


class Site:
    """The console's answers: an ASGI application.

    Args:
        sources: The sources of the page's content.
        password: The owner's password.
        names: The host names that requests may use.
        secure: Whether browsers connect by TLS.
        throttle: The delays of wrong passwords.
    """

    def __init__(
        self,
        sources: Sources,
        password: Password,
        names: frozenset[str],
        *,
        secure: bool,
        throttle: LoginThrottle | None = None,
    ) -> None:
        self._sources = sources
        self._password = password
        self._names = names
        self._scheme = "https" if secure else "http"
        self._cookie = "__Host-dpsql" if secure else "dpsql"
        self._throttle = throttle if throttle is not None else LoginThrottle(_FIRST_FAILURE)
        self._sessions = Sessions()
        self._routes = Router(
            [
                Route("/", self._overview),
                Route("/login", self._form),
                Route("/login", self._log_in, methods=["POST"]),
                Route("/logout", self._log_out, methods=["POST"]),
                *(Route(path, _static(path, kind), methods=["GET"]) for path, kind in _STATIC),
            ],
            redirect_slashes=False,
        )

    def server(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, bounds: HttpBounds | None = None
    ) -> HttpServer:
        """The console as a server; the arguments are those of `HttpServer`."""
        return HttpServer(self, host, port, tls=tls, bounds=bounds, headers=HEADERS)

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        answer = self._refusal(request) or self._routes
        await answer(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request that is not from the console itself, by rule 1."""
        named = request.headers.get("host", "")
        if _host(named) not in self._names:
            return _sentence(
                HTTPStatus.MISDIRECTED_REQUEST, "unrecognized host name in request; see dpsql console --name"
            )
        if request.method == "POST" and request.headers.get("origin") != f"{self._scheme}://{named}":
            return _sentence(HTTPStatus.FORBIDDEN, "the form is not the console's own")
        return None

    async def _form(self, request: Request) -> Response:
        return HTMLResponse(login_page(None))

    async def _log_in(self, request: Request) -> Response:
        address = "" if request.client is None else request.client.host
        guess = await _field(request, "password")
        try:
            self._throttle.check("", address)
            # Checked at once, on this thread, so that simultaneous guesses cannot exceed the throttle.
            if self._password.is_it(guess):
                _LOG.info("login from %s", address, extra={"fields": {"event": "login", "peer": address}})
                return self._with_cookie("/", self._sessions.begin())
            with self._throttle.failed("", address) as seconds:
                _LOG.warning("wrong password from %s", address, extra={"fields": {"event": "login", "peer": address}})
                await asyncio.sleep(seconds)
        except TooManyConnections as error:
            return _sentence(HTTPStatus.TOO_MANY_REQUESTS, error.message)
        return HTMLResponse(login_page("This is not the password."), HTTPStatus.FORBIDDEN)

    async def _log_out(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(self._cookie))
        return self._with_cookie("/login", "", max_age=0)

    def _with_cookie(self, path: str, token: str, max_age: int | None = None) -> Response:
        """Send the client to a path by GET, with a token to keep until the browser is closed."""
        answer, secure = RedirectResponse(path, HTTPStatus.SEE_OTHER), self._scheme == "https"
        answer.set_cookie(self._cookie, token, max_age, secure=secure, httponly=True, samesite="strict")
        return answer

    async def _overview(self, request: Request) -> Response:
        if not self._sessions.is_open(request.cookies.get(self._cookie)):
            return RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        try:
            search = read_search(request.scope["query_string"].decode())
        except InvalidParameter as error:
            return HTMLResponse(trouble_page(error.message, error.hint), HTTPStatus.BAD_REQUEST)
        try:
            facts = await asyncio.to_thread(self._sources.gatherer.gather, search)
        except Error as error:
            return HTMLResponse(trouble_page(error.message, error.hint), HTTPStatus.SERVICE_UNAVAILABLE)
        asked = self._sources.gateway
        gateway = None if asked is None else await asked(facts.policy.dataset.name)
        health = Health(self._sources.ledger.latest(), self._sources.engine.latest(), gateway)
        return HTMLResponse(await asyncio.to_thread(overview, facts, health))


def _static(path: str, kind: str) -> Response:
    return Response(files("dpsql.console").joinpath(path[1:]).read_bytes(), media_type=kind)


def _sentence(status: HTTPStatus, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


def _host(named: str) -> str | None:
    """The host of a Host header without its port, which differs if a container's port is mapped."""
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]{1,5})?", named.lower())
    return None if found is None else found[1]


async def _field(request: Request, name: str) -> str:
    """A field of the submitted form; empty unless it occurs once. Starlette needs another package for forms."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return ""
    try:
        fields = parse_qsl((await request.body()).decode("ascii", "replace"), errors="strict", max_num_fields=10)
    except ValueError:  # not UTF-8, or too many
        return ""
    found = [value for key, value in fields if key == name]
    return found[0] if len(found) == 1 else ""
