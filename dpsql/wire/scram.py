"""SCRAM-SHA-256 and SCRAM-SHA-256-PLUS, the server's side, as two steps: challenge and verify.

Rule 1: an unknown user goes through the same two steps, with a salt that does not change, and fails at the second.
Rule 2: secrets are compared in constant time.

Reference: RFC 5802 (SCRAM), RFC 7677 (SHA-256), RFC 5929 (tls-server-end-point), RFC 4013 (SASLprep).
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass
from typing import Final, Self

from dpsql.errors import AuthenticationFailed, ProtocolViolation

PLAIN: Final = "SCRAM-SHA-256"
PLUS: Final = "SCRAM-SHA-256-PLUS"
ITERATIONS: Final = 4096
_BINDING: Final = "tls-server-end-point"
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Verifier:
    """What the server keeps of a password: enough to check it, not enough to log in with."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        """Return PostgreSQL's text form (`pg_authid.rolpassword`)."""
        salt, stored, server = (base64.b64encode(part).decode() for part in self._parts())
        return f"{PLAIN}${self.iterations}:{salt}${stored}:{server}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the verifier that PostgreSQL's text form writes.

        Raises:
            ValueError: If the text is not one.
        """
        try:
            scheme, parameters, keys = text.split("$")
            (iterations, salt), (stored, server) = parameters.split(":"), keys.split(":")
            verifier = cls(int(iterations), *(base64.b64decode(part, validate=True) for part in (salt, stored, server)))
        except (ValueError, binascii.Error):
            raise ValueError("not a SCRAM-SHA-256 verifier") from None
        sizes = (len(verifier.stored_key), len(verifier.server_key))
        if scheme != PLAIN or verifier.iterations < 1 or not verifier.salt or sizes != (_KEY_BYTES, _KEY_BYTES):
            raise ValueError("not a SCRAM-SHA-256 verifier")
        return verifier

    def _parts(self) -> tuple[bytes, bytes, bytes]:
        return self.salt, self.stored_key, self.server_key


def make_verifier(password: str, salt: bytes | None = None, iterations: int = ITERATIONS) -> str:
    """Return a password's verifier in PostgreSQL's text form.

    Args:
        password: The password; the empty one is refused.
        salt: Random by default.
        iterations: How often the hash is repeated.

    Raises:
        ValueError: If the password is empty, or the number of iterations is not positive.
    """
    if not password or iterations < 1:
        raise ValueError("a password must not be empty, and its hash needs iterations")
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", prepare_password(password), salt, iterations)
    stored_key = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return str(Verifier(iterations, salt, stored_key, _hmac(salted, b"Server Key")))


def make_decoy(user: str, secret: bytes) -> Verifier:
    """Return the verifier that stands in for a user who does not exist: always the same, matched by no password."""
    name = user.encode("utf-8", "replace")
    salt = _hmac(secret, b"salt " + name)[:_SALT_BYTES]
    return Verifier(ITERATIONS, salt, _hmac(secret, b"stored " + name), _hmac(secret, b"server " + name))


class ScramServer:
    """One authentication exchange.

    Args:
        verifier: The user's verifier, or a decoy.
        genuine: False for a decoy: the proof is judged all the same, and fails.
        channel_binding: The hash of the server's certificate, under TLS; it makes the PLUS mechanism available.
        nonce: The server's share of the nonce; random but for tests against published vectors.
    """

    def __init__(
        self,
        verifier: Verifier,
        *,
        genuine: bool = True,
        channel_binding: bytes | None = None,
        nonce: str | None = None,
    ) -> None:
        self._verifier = verifier
        self._genuine = genuine
        self._channel_binding = channel_binding
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(18)).decode()
        self._bound = b""
        self._so_far = ""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms to offer, the strongest first."""
        return offered_mechanisms(self._channel_binding)

    def challenge(self, mechanism: str, client_first: bytes) -> bytes:
        """Return the server's first message.

        Raises:
            AuthenticationFailed: If somebody in between has hidden the PLUS mechanism from the client.
            ProtocolViolation: If the client's message is malformed or not of the mechanism.
        """
        if mechanism not in self.mechanisms:
            raise ProtocolViolation("client selected an invalid SASL authentication mechanism")
        flag, authorization, bare = _split_header(_text(client_first))
        self._check_binding_flag(flag, mechanism)
        if authorization:
            raise ProtocolViolation("client uses authorization identity, but it is not supported")
        self._bound = f"{flag},,".encode()
        if mechanism == PLUS:
            self._bound += self._channel_binding or b""
        # The user is the startup packet's; the name in n= is ignored, as PostgreSQL ignores it.
        _, nonce = _attributes(bare, "n", "r")
        if not nonce or not all(33 <= ord(character) <= 126 for character in nonce):
            raise ProtocolViolation("non-printable characters in SCRAM nonce")
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(self._verifier.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._so_far = f"{bare},{server_first}"
        return server_first.encode()

    def verify(self, client_final: bytes) -> bytes:
        """Return the server's last message, which proves to the client that the server knows the verifier.

        Raises:
            AuthenticationFailed: If the proof is wrong, the user a decoy, or the message bound to another channel.
            ProtocolViolation: If the message is malformed or of another exchange.
        """
        unproved, separator, proof = _text(client_final).rpartition(",p=")
        if not separator:
            raise ProtocolViolation("malformed SCRAM message")
        binding, nonce = _attributes(unproved, "c", "r")
        if _base64(binding) != self._bound:
            raise AuthenticationFailed("SCRAM channel binding check failed")
        if nonce != self._nonce:
            raise ProtocolViolation("invalid SCRAM response: nonce does not match")
        message = f"{self._so_far},{unproved}".encode()
        if not (self._proves(_base64(proof), message) & self._genuine):
            raise AuthenticationFailed("password authentication failed")
        return b"v=" + base64.b64encode(_hmac(self._verifier.server_key, message))

    def _check_binding_flag(self, flag: str, mechanism: str) -> None:
        if flag == "y" and self._channel_binding is not None:
            raise AuthenticationFailed(
                "SCRAM channel binding negotiation error",
                detail="The client supports SCRAM channel binding but thinks the server does not. "
                "However, this server does support channel binding.",
            )
        if flag.startswith("p=") and flag != f"p={_BINDING}":
            raise ProtocolViolation("unsupported SCRAM channel-binding type")
        if flag.startswith("p=") != (mechanism == PLUS):
            raise ProtocolViolation("SCRAM mechanism and channel-binding flag do not match")

    def _proves(self, proof: bytes, message: bytes) -> bool:
        if len(proof) != _KEY_BYTES:
            raise ProtocolViolation("malformed SCRAM message")
        signature = _hmac(self._verifier.stored_key, message)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key)


def offered_mechanisms(channel_binding: bytes | None) -> tuple[str, ...]:
    """Return the mechanisms to offer on a channel, the strongest first."""
    return (PLAIN,) if channel_binding is None else (PLUS, PLAIN)


def prepare_password(password: str) -> bytes:
    """Return the bytes that are hashed: SASLprep of the password or, where that is not defined, its raw UTF-8.

    PostgreSQL and libpq do the same, so that every password works.
    """
    raw = password.encode("utf-8", "surrogateescape")
    if raw.isascii():
        return raw
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in password
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared or any(_prohibited(character) for character in prepared) or _mixes_directions(prepared):
        return raw
    return prepared.encode()


def _prohibited(character: str) -> bool:
    return any(
        table(character)
        for table in (
            stringprep.in_table_a1,
            stringprep.in_table_c12,
            stringprep.in_table_c21_c22,
            stringprep.in_table_c3,
            stringprep.in_table_c4,
            stringprep.in_table_c5,
            stringprep.in_table_c6,
            stringprep.in_table_c7,
            stringprep.in_table_c8,
            stringprep.in_table_c9,
        )
    )


def _mixes_directions(text: str) -> bool:
    if not any(map(stringprep.in_table_d1, text)):
        return False
    ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
    return not ends or any(map(stringprep.in_table_d2, text))


def _split_header(message: str) -> tuple[str, str, str]:
    """Return the channel-binding flag, the authorization identity and the rest of a client's first message."""
    flag, _, rest = message.partition(",")
    authorization, separator, bare = rest.partition(",")
    if not separator or not (flag in ("n", "y") or flag.startswith("p=")):
        raise ProtocolViolation("malformed SCRAM message")
    return flag, authorization, bare


def _attributes(message: str, first: str, second: str) -> tuple[str, str]:
    """Return the values of the two attributes a message begins with; optional extensions behind them are ignored."""
    parts = message.split(",")
    if len(parts) < 2 or not parts[0].startswith(f"{first}=") or not parts[1].startswith(f"{second}="):
        raise ProtocolViolation("malformed SCRAM message")
    return parts[0][2:], parts[1][2:]


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ProtocolViolation("malformed SCRAM message") from None


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ProtocolViolation("malformed SCRAM message") from None


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
