"""Every message survives encode and decode, and no other bytes pass for it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.errors import ProtocolViolation
from dpsql.wire.messages import backend, frontend
from dpsql.wire.messages.backend import BackendMessage
from dpsql.wire.messages.fields import Message, Reader, cstring
from dpsql.wire.messages.frontend import FrontendMessage, decode_startup
from tests.wire import replies

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
full_words = words.filter(bool)
names = st.binary(max_size=12).map(lambda raw: raw.replace(b"\0", b"x"))
blobs = st.binary(max_size=20)
values = st.lists(st.none() | blobs, max_size=5).map(tuple)
formats = st.lists(st.integers(0, 1), max_size=5).map(tuple)
oids = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)
kinds = st.sampled_from([b"S", b"P"])
uint32s = st.integers(0, 2**32 - 1)
reports = {
    "severity": full_words,
    "sqlstate": full_words,
    "message": words,
    "detail": st.none() | words,
    "hint": st.none() | words,
    "position": st.none() | st.integers(1, 10**6),
}
fields = st.builds(
    backend.FieldDescription,
    words,
    uint32s,
    st.integers(-1, 64),
    st.integers(0, 1),
    st.integers(-1, 2**31 - 1),
    uint32s,
    st.integers(0, 1600),
)

FRONTEND: dict[type[FrontendMessage], st.SearchStrategy[FrontendMessage]] = {
    frontend.SASLInitialResponse: st.builds(frontend.SASLInitialResponse, words, st.none() | blobs),
    frontend.SASLResponse: st.builds(frontend.SASLResponse, blobs),
    frontend.Query: st.builds(frontend.Query, names),
    frontend.Parse: st.builds(frontend.Parse, names, names, oids),
    frontend.Bind: st.builds(frontend.Bind, names, names, formats, values, formats),
    frontend.Describe: st.builds(frontend.Describe, kinds, names),
    frontend.Close: st.builds(frontend.Close, kinds, names),
    frontend.Execute: st.builds(frontend.Execute, names, st.integers(-(2**31), 2**31 - 1)),
    frontend.Sync: st.just(frontend.Sync()),
    frontend.Flush: st.just(frontend.Flush()),
    frontend.Terminate: st.just(frontend.Terminate()),
    frontend.FunctionCall: st.builds(frontend.FunctionCall, blobs),
    frontend.CopyData: st.builds(frontend.CopyData, blobs),
    frontend.CopyDone: st.builds(frontend.CopyDone, blobs),
    frontend.CopyFail: st.builds(frontend.CopyFail, blobs),
}
BACKEND: dict[type[BackendMessage], st.SearchStrategy[BackendMessage]] = {
    backend.AuthenticationOk: st.just(backend.AuthenticationOk()),
    backend.AuthenticationSASL: st.builds(backend.AuthenticationSASL, st.lists(full_words, max_size=3).map(tuple)),
    backend.AuthenticationSASLContinue: st.builds(backend.AuthenticationSASLContinue, blobs),
    backend.AuthenticationSASLFinal: st.builds(backend.AuthenticationSASLFinal, blobs),
    backend.NegotiateProtocolVersion: st.builds(
        backend.NegotiateProtocolVersion, uint32s, st.lists(words, max_size=3).map(tuple)
    ),
    backend.BackendKeyData: st.builds(backend.BackendKeyData, uint32s, blobs),
    backend.ParameterStatus: st.builds(backend.ParameterStatus, words, words),
    backend.ReadyForQuery: st.builds(backend.ReadyForQuery, st.sampled_from("ITE")),
    backend.RowDescription: st.builds(backend.RowDescription, st.lists(fields, max_size=4).map(tuple)),
    backend.DataRow: st.builds(backend.DataRow, values),
    backend.CommandComplete: st.builds(backend.CommandComplete, words),
    backend.ParameterDescription: st.builds(backend.ParameterDescription, oids),
    backend.EmptyQueryResponse: st.just(backend.EmptyQueryResponse()),
    backend.ParseComplete: st.just(backend.ParseComplete()),
    backend.BindComplete: st.just(backend.BindComplete()),
    backend.CloseComplete: st.just(backend.CloseComplete()),
    backend.NoData: st.just(backend.NoData()),
    backend.PortalSuspended: st.just(backend.PortalSuspended()),
    backend.CopyOutResponse: st.builds(backend.CopyOutResponse, st.integers(0, 1), st.integers(0, 20)),
    backend.CopyRow: st.builds(backend.CopyRow, blobs),
    backend.CopyEnd: st.just(backend.CopyEnd()),
    backend.ErrorResponse: st.builds(backend.ErrorResponse, **reports),
    backend.NoticeResponse: st.builds(backend.NoticeResponse, **reports),
}
startups = st.one_of(
    st.just(frontend.SSLRequest()),
    st.just(frontend.GSSENCRequest()),
    st.builds(frontend.CancelRequest, uint32s, blobs),
    st.builds(
        frontend.StartupMessage,
        st.just(3),
        st.integers(0, 9),
        st.lists(st.tuples(full_words, words), max_size=4).map(tuple),
    ),
)
coded: st.SearchStrategy[Message] = st.one_of([*FRONTEND.values(), *BACKEND.values()])


def test_every_message_is_tried() -> None:
    startup = {frontend.SSLRequest, frontend.GSSENCRequest, frontend.CancelRequest, frontend.StartupMessage}
    assert {*replies.FRONTEND} == {*FRONTEND} | startup
    assert {*replies.BACKEND} == {*BACKEND}


@given(coded)
def test_round_trip(message: Message) -> None:
    encoded = message.encode()
    assert encoded[:1] == message.code
    assert int.from_bytes(encoded[1:5], "big") == len(encoded) - 1
    assert type(message).decode(encoded[5:]) == message


@given(startups)
def test_startup_round_trip(message: FrontendMessage) -> None:
    encoded = message.encode()
    assert int.from_bytes(encoded[:4], "big") == len(encoded)
    assert decode_startup(encoded[4:]) == message


@given(coded.filter(lambda message: not isinstance(message, backend.BackendKeyData)), st.data())
def test_a_truncated_body_is_refused_or_is_another_message(message: Message, data: st.DataObject) -> None:
    body = message.encode()[5:]
    cut = body[: data.draw(st.integers(0, max(0, len(body) - 1)))]
    try:
        other = type(message).decode(cut)
    except ProtocolViolation:
        return
    assert other.encode()[5:] == cut


@given(coded, blobs.filter(bool))
def test_bytes_left_over_are_refused_or_belong_to_the_message(message: Message, more: bytes) -> None:
    body = message.encode()[5:] + more
    with contextlib.suppress(ProtocolViolation):
        assert type(message).decode(body).encode()[5:] == body


@given(st.sampled_from([*FRONTEND, *BACKEND]), st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(kind: type[Message], body: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        kind.decode(body)


@given(st.binary(max_size=60))
def test_any_startup_packet_decodes_or_is_refused(body: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        decode_startup(body)


@pytest.mark.parametrize("size", [-2, -(2**31), 5, 2**31 - 1])
def test_the_length_of_a_value_is_checked_before_use(size: int) -> None:
    body = cstring(b"") * 2 + bytes(2) + b"\0\1" + size.to_bytes(4, "big", signed=True) + b"abcd"
    with pytest.raises(ProtocolViolation):
        frontend.Bind.decode(body)


def test_text_of_any_kind_leaves_the_frame_whole() -> None:
    message = backend.CommandComplete("a\0b\ud800")
    assert backend.CommandComplete.decode(message.encode()[5:]) == backend.CommandComplete("a?b?")


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        Reader(b"\xff\0").text()
