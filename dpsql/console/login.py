"""login: the owner's password, and the open sessions.

Rule 1: the password is kept as a SCRAM verifier, and compared in constant time.
Rule 2: of a session, only the hash of its token is kept; it expires, or ends when the owner logs out.
Rule 3: memory is bounded for any number of visitors.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from dpsql.wire.scram import Verifier, make_verifier

_TOKEN_BYTES: Final = 32
_LIFE_SECONDS: Final = 8 * 3600.0
_IDLE_SECONDS: Final = 1800.0
_SESSIONS: Final = 20


class Password:
    """The owner's password.

    Args:
        password: The password; not empty.
    """

    def __init__(self, password: str) -> None:
        self._verifier = make_verifier(password)

    def is_it(self, guess: str) -> bool:
        """Whether a guess is the password."""
        known = Verifier.parse(self._verifier)
        guessed = make_verifier(guess, known.salt, known.iterations) if guess else ""
        return hmac.compare_digest(guessed.encode(), self._verifier.encode())


@dataclass(frozen=True, slots=True)
class _Session:
    begun: float
    seen: float


class Sessions:
    """The sessions of the owner.

    Args:
        clock: A monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[bytes, _Session] = {}

    def __len__(self) -> int:
        return len(self._known)

    def begin(self) -> str:
        """Return the token of a new session; if there are too many, the least recently used one ends."""
        token, now = secrets.token_urlsafe(_TOKEN_BYTES), self._clock()
        if len(self._known) >= _SESSIONS:
            del self._known[min(self._known, key=lambda known: self._known[known].seen)]
        self._known[_hash(token)] = _Session(now, now)
        return token

    def is_open(self, token: str | None) -> bool:
        """Return whether a token belongs to an open session, and extend that session."""
        if token is None:
            return False
        key, now = _hash(token), self._clock()
        session = self._known.get(key)
        if session is None:
            return False
        if now - session.begun > _LIFE_SECONDS or now - session.seen > _IDLE_SECONDS:
            del self._known[key]
            return False
        self._known[key] = replace(session, seen=now)
        return True

    def end(self, token: str | None) -> None:
        """End a session."""
        if token is not None:
            self._known.pop(_hash(token), None)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
