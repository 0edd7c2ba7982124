"""messages: an HTTP request read from bytes, and an answer written as bytes; one of each on a connection.

Rule 1: what is not plainly a request is refused, and nothing of it is repeated.
Rule 2: every answer carries the same headers: no script, nothing from elsewhere, in no frame, kept by nobody.

Reference: RFC 9112 (HTTP/1.1), RFC 6265 (cookies), https://www.w3.org/TR/CSP3/.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from dpsql.errors import ProtocolViolation

HTML: Final = "text/html; charset=utf-8"
PLAIN: Final = "text/plain; charset=utf-8"
_FORM: Final = "application/x-www-form-urlencoded"

_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2000}) HTTP/1\.[01]")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):([\t -~\x80-\xff]*)")
_LENGTH: Final = re.compile("[0-9]{1,9}")
_MOST_FIELDS: Final = 100

_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_ALWAYS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    # "no-referrer" would have browsers send `Origin: null` with the console's own forms. Nothing is told elsewhere.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
    ("Connection", "close"),
)


@dataclass(frozen=True)
class Request:
    """What a client asks.

    Attributes:
        method: GET, POST or another.
        path: Without what comes after a question mark.
        query: What comes there.
        headers: By their names in lower case.
        body: What was sent along.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def length(self) -> int:
        """How many bytes of body are to come.

        Raises:
            ProtocolViolation: That is not said plainly.
        """
        text = self.headers.get("content-length", "0")
        if "transfer-encoding" in self.headers or not _LENGTH.fullmatch(text):
            raise ProtocolViolation("a body needs a Content-Length")
        return int(text)

    def cookie(self, name: str) -> str | None:
        """The value of a cookie; None if there is none, or more than one."""
        pairs = [pair.strip().partition("=") for pair in self.headers.get("cookie", "").split(";")]
        found = [value for key, _, value in pairs if key == name]
        return found[0] if len(found) == 1 else None

    def field(self, name: str) -> str | None:
        """A field of the query string; None if it is not there once."""
        return _field(self.query, name)

    def form_field(self, name: str) -> str | None:
        """A field of the form that was sent; None if it is not there once."""
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            return None
        return _field(self.body.decode("ascii", "replace"), name)


def _field(encoded: str, name: str) -> str | None:
    try:
        found = [value for key, value in parse_qsl(encoded, errors="strict", max_num_fields=10) if key == name]
    except ValueError:  # not UTF-8, or too many
        return None
    return found[0] if len(found) == 1 else None


def read_head(head: bytes) -> Request:
    """Return the request that a head begins; its body is still to be read.

    Raises:
        ProtocolViolation: The bytes are not the head of a request.
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    asked = _LINE.fullmatch(first)
    fields = [_FIELD.fullmatch(line) for line in lines]
    if asked is None or len(fields) > _MOST_FIELDS:
        raise ProtocolViolation("not a request")
    headers: dict[str, str] = {}
    for found in fields:
        name = "" if found is None else found[1].decode().lower()
        if found is None or name in headers:
            raise ProtocolViolation("not the headers of a request")
        headers[name] = found[2].decode("latin-1").strip(" \t")
    path, _, query = asked[2].decode().partition("?")
    return Request(asked[1].decode(), path, query, headers)


@dataclass(frozen=True)
class Response:
    """What is answered.

    Attributes:
        status: The status.
        body: The page, the file or the sentence.
        kind: Its content type.
        headers: Headers beside those that all answers carry.
    """

    status: HTTPStatus
    body: bytes
    kind: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, *, with_body: bool = True) -> bytes:
        """Return the answer as bytes."""
        told = (("Content-Type", self.kind), ("Content-Length", str(len(self.body))), *self.headers, *_ALWAYS)
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", *(f"{name}: {value}" for name, value in told)]
        return "\r\n".join((*lines, "", "")).encode() + (self.body if with_body else b"")


def sentence(status: HTTPStatus, text: str) -> Response:
    """A short answer."""
    return Response(status, f"{text}\n".encode())


def redirect(path: str, *headers: tuple[str, str]) -> Response:
    """Send the client to a path of this server, by GET."""
    return Response(HTTPStatus.SEE_OTHER, b"", PLAIN, (("Location", path), *headers))
