"""Bytes are a request, or a typed refusal; every answer carries the same headers."""

from http import HTTPStatus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpsql.console.messages import Response, read_head, redirect, sentence
from dpsql.errors import ProtocolViolation

GET = b"GET /?before=7 HTTP/1.1\r\nHost: here:1\r\nCookie: a=1; dpsql=t ; dpsql2=x\r\nX-Any:\t\r\n\r\n"


def test_a_request_is_read() -> None:
    request = read_head(GET)
    assert (request.method, request.path, request.query) == ("GET", "/", "before=7")
    assert request.headers == {"host": "here:1", "cookie": "a=1; dpsql=t ; dpsql2=x", "x-any": ""}
    assert (request.cookie("dpsql"), request.cookie("none"), request.field("before")) == ("t", None, "7")
    assert (request.length, request.form_field("password")) == (0, None)


@given(st.binary(max_size=300))
@example(b"")
@example(b"GET / HTTP/1.1\r\n: x\r\n\r\n")
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for head in (data, GET[:-2] + data):
        try:
            request = read_head(head)
            assert request.length >= 0
            request.cookie("dpsql"), request.field("before"), request.form_field("password")
        except ProtocolViolation as error:
            assert error.message.isascii() and len(error.message) < 60


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/2.0\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET http://here/ HTTP/1.1\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\nb\r\n\r\n",
        b"GET / HTTP/1.1\r\nX:" + b" " * 16_000 + b"\0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(101)) + b"\r\n",
    ],
)
def test_what_is_not_plainly_a_request_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read_head(head)


@pytest.mark.parametrize("header", ["Content-Length: -1", "Content-Length: 1e3", "Transfer-Encoding: chunked"])
def test_a_length_that_is_not_plain_is_refused(header: str) -> None:
    with pytest.raises(ProtocolViolation):
        read_head(f"POST /login HTTP/1.1\r\n{header}\r\n\r\n".encode()).length  # noqa: B018


@pytest.mark.parametrize("query", ["before=1&before=2", "before=%ff", "&".join(["a=1"] * 20), "before", ""])
def test_a_field_that_is_not_there_once_is_none(query: str) -> None:
    assert read_head(f"GET /?{query} HTTP/1.1\r\n\r\n".encode()).field("before") is None
    assert read_head(b"GET / HTTP/1.1\r\nCookie: a=1; a=2\r\n\r\n").cookie("a") is None


@pytest.mark.parametrize(
    "response",
    [sentence(HTTPStatus.NOT_FOUND, "no"), redirect("/", ("Set-Cookie", "a=1")), Response(HTTPStatus.OK, b"x")],
)
def test_every_answer_is_closed_to_scripts_frames_and_caches(response: Response) -> None:
    head, _, body = response.encode().partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == f"HTTP/1.1 {response.status.value} {response.status.phrase}"
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert headers["Content-Security-Policy"] == (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    )
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert (headers["Referrer-Policy"], headers["X-Frame-Options"]) == ("same-origin", "DENY")
    assert int(headers["Content-Length"]) == len(body)
    assert response.encode(with_body=False).endswith(b"\r\n\r\n")
