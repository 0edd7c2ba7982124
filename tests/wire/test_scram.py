"""SCRAM against the RFC's exchange, against libpq's verifiers, and against clients that cheat."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import pq

from dpsql.errors import AuthenticationFailed, Error, ProtocolViolation
from dpsql.wire.scram import PLAIN, PLUS, ScramServer, Verifier, make_decoy, make_verifier, prepare_password

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
UNPROVED = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FINAL = UNPROVED + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
VERIFIER = Verifier.parse(make_verifier("pencil", SALT))


def rfc_server(**options: object) -> ScramServer:
    return ScramServer(VERIFIER, nonce=SERVER_NONCE, **options)  # type: ignore[arg-type]


def test_the_exchange_of_the_rfc() -> None:
    server = rfc_server()
    assert server.mechanisms == (PLAIN,)
    assert server.challenge(PLAIN, CLIENT_FIRST) == SERVER_FIRST
    assert server.verify(CLIENT_FINAL) == SERVER_FINAL


def test_a_wrong_password_is_refused() -> None:
    server = ScramServer(Verifier.parse(make_verifier("pencils", SALT)), nonce=SERVER_NONCE)
    assert server.challenge(PLAIN, CLIENT_FIRST) == SERVER_FIRST
    with pytest.raises(AuthenticationFailed):
        server.verify(CLIENT_FINAL)


def test_a_decoy_refuses_even_the_right_proof() -> None:
    server = rfc_server(genuine=False)
    server.challenge(PLAIN, CLIENT_FIRST)
    with pytest.raises(AuthenticationFailed, match=r"^password authentication failed$"):
        server.verify(CLIENT_FINAL)


def test_a_decoy_is_the_same_each_time_and_differs_between_users_and_servers() -> None:
    decoy = make_decoy("bob", b"secret")
    assert decoy == make_decoy("bob", b"secret")
    assert decoy.salt != make_decoy("bo", b"secret").salt
    assert decoy.salt != make_decoy("bob", b"other").salt
    genuine = Verifier.parse(make_verifier("x"))
    assert (len(decoy.salt), decoy.iterations) == (len(genuine.salt), genuine.iterations)


def test_nonces_and_salts_are_fresh() -> None:
    challenges = {ScramServer(VERIFIER).challenge(PLAIN, CLIENT_FIRST) for _ in range(5)}
    assert len(challenges) == 5
    assert len({make_verifier("x") for _ in range(5)}) == 5


def test_the_channel_is_bound() -> None:
    for binding, matches in ((b"hash", True), (b"other", False)):
        server = rfc_server(channel_binding=b"hash")
        assert server.mechanisms == (PLUS, PLAIN)
        server.challenge(PLUS, b"p=tls-server-end-point,,n=,r=abc")
        channel = base64.b64encode(b"p=tls-server-end-point,," + binding)
        final = b"c=" + channel + b",r=abc" + SERVER_NONCE.encode() + b",p=" + base64.b64encode(bytes(32))
        # The proof is wrong in both; which check refuses it tells whether the channel was compared.
        with pytest.raises(AuthenticationFailed, match="password" if matches else "channel binding check"):
            server.verify(final)


@pytest.mark.parametrize(
    ("flag", "mechanism", "binding", "error"),
    [
        (b"n", PLAIN, None, None),
        (b"n", PLAIN, b"hash", None),
        (b"y", PLAIN, None, None),
        (b"y", PLAIN, b"hash", AuthenticationFailed),
        (b"p=tls-server-end-point", PLUS, b"hash", None),
        (b"p=tls-server-end-point", PLAIN, b"hash", ProtocolViolation),
        (b"p=tls-server-end-point", PLUS, None, ProtocolViolation),
        (b"p=tls-unique", PLUS, b"hash", ProtocolViolation),
        (b"n", PLUS, b"hash", ProtocolViolation),
        (b"y", PLUS, None, ProtocolViolation),
        (b"x", PLAIN, None, ProtocolViolation),
        (b"n", "SCRAM-SHA-1", None, ProtocolViolation),
    ],
)
def test_channel_binding_flags(
    flag: bytes, mechanism: str, binding: bytes | None, error: type[Exception] | None
) -> None:
    server = rfc_server(channel_binding=binding)
    if error is None:
        server.challenge(mechanism, flag + b",,n=,r=abc")
    else:
        with pytest.raises(error):
            server.challenge(mechanism, flag + b",,n=,r=abc")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,",
        b"n,,",
        b"n,a=x,n=,r=abc",
        b"n,,m=ext,n=,r=abc",
        b"n,,r=abc",
        b"n,,n=,r=",
        b"n,,n=,r=a\x07",
        b"\xff",
    ],
)
def test_malformed_first_messages(first: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        rfc_server().challenge(PLAIN, first)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        UNPROVED,
        UNPROVED + b",p=",
        UNPROVED + b",p=AAAA",
        UNPROVED + b",p=!",
        CLIENT_FINAL.replace(b"hNlF", b"hNlG"),
        CLIENT_FINAL.replace(b"r=", b"x="),
        b"\xff" + CLIENT_FINAL,
    ],
)
def test_malformed_last_messages(final: bytes) -> None:
    server = rfc_server()
    server.challenge(PLAIN, CLIENT_FIRST)
    with pytest.raises(ProtocolViolation):
        server.verify(final)


def test_a_changed_header_is_refused() -> None:
    server = rfc_server()
    server.challenge(PLAIN, CLIENT_FIRST)
    with pytest.raises(AuthenticationFailed, match="channel binding"):
        server.verify(CLIENT_FINAL.replace(b"biws", b"eSws"))


@given(st.binary(max_size=40), st.binary(max_size=60))
def test_any_bytes_are_refused_by_a_typed_error(first: bytes, final: bytes) -> None:
    server = rfc_server(channel_binding=b"hash")
    with pytest.raises(Error):
        server.challenge(PLUS, b"n,," + first)
    server = rfc_server()
    server.challenge(PLAIN, CLIENT_FIRST)
    with pytest.raises(Error):
        server.verify(final)


def test_a_verifier_is_what_libpq_makes() -> None:
    """libpq's verifier of a password and ours of the same password and salt are equal, SASLprep included."""
    libpq = pq.PGconn.connect(b"host=/nonexistent")
    for password in (
        "x",
        "pässwörd",
        "I\u00adX",
        "\u2168",
        "a\u00a0b",
        "é\u0007",
        "\u06271",
        "\ufeff",
        "\u0221",
        "\u1e9b\u0323",
    ):
        encrypted = libpq.encrypt_password(password.encode(), b"ana", b"scram-sha-256").decode()
        made = Verifier.parse(encrypted)
        assert make_verifier(password, made.salt, made.iterations) == encrypted, ascii(password)


@pytest.mark.parametrize(
    ("password", "prepared"),
    [
        ("user", b"user"),
        ("USER", b"USER"),
        ("I\u00adX", b"IX"),
        ("\u00aa", b"a"),
        ("\u2168", b"IX"),
        ("a\u00a0b", b"a b"),
        ("a\x07", b"a\x07"),
        ("é\x07", "é\x07".encode()),
        ("\u06271", "\u06271".encode()),
        ("\u0627a\u0628", "\u0627a\u0628".encode()),
        ("\u0627\u0628", "\u0627\u0628".encode()),
        ("\u00ad", "\u00ad".encode()),
        ("\udcff", b"\xff"),
    ],
)
def test_saslprep(password: str, prepared: bytes) -> None:
    assert prepare_password(password) == prepared


def test_a_verifier_needs_a_password_and_iterations() -> None:
    with pytest.raises(ValueError, match="password"):
        make_verifier("")
    with pytest.raises(ValueError, match="iterations"):
        make_verifier("x", iterations=0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "md5abc",
        "SCRAM-SHA-256$4096:c2FsdA==$" + "AA==:AA==",
        "SCRAM-SHA-1" + str(VERIFIER).removeprefix(PLAIN),
        str(VERIFIER).replace("4096", "0"),
        str(VERIFIER).replace("4096", "x"),
        str(VERIFIER).replace("$", "!"),
        str(VERIFIER) + "$",
        str(VERIFIER).replace("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
        str(VERIFIER).replace("W22Z", "W2 Z"),
    ],
)
def test_what_is_not_a_verifier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a SCRAM"):
        Verifier.parse(text)
