"""The line of each key of a TOML text, and limits on what the parser is given.

tomllib gives no lines. Its time and memory grow with the square of a key's parts (a 400 kB key exhausts the machine),
and its stack with nesting. The limits hold for any text, TOML or not; the lines are right for valid TOML.
"""

import re
from dataclasses import dataclass, field

Key = tuple[str | int, ...]

MAX_DEPTH = 16
MAX_KEY_PARTS = 16
MAX_WORD = 200

# Every alternative matches all it can and never gives back (possessive), so scanning takes linear time; strings that
# do not end match to the end, for tomllib to complain of.
_TOKEN = re.compile(
    r"""
    (?P<string> \"\"\"(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?
              | '''(?:[^']++|'(?!''))*+(?:'{3,5})?
              | "(?:[^"\\\n]++|\\[^\n])*+"?
              | '[^'\n]*+'? )
  | (?P<mark>   [\[\]{}=,.\n] )
  | (?P<space>  [ \t\r]++ | \#[^\n]*+ )
  | (?P<word>   [^\s\#"'\[\]{}=,.]++ | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([btnfr"\\]))')
_SHORT_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


class Oversized(Exception):
    """The text exceeds a limit.

    Attributes:
        line: The line.
        hint: A way to stay within the limit.
    """

    def __init__(self, line: int, what: str, hint: str) -> None:
        super().__init__(what)
        self.line = line
        self.hint = hint


def check_size(text: str) -> None:
    """Refuse a text that tomllib might not survive; it need not be TOML.

    Raises:
        Oversized: If brackets, keys or words go beyond the limits.
    """
    line, depth, dots = 1, 0, 0
    for token in _TOKEN.finditer(text):
        piece = token[0]
        if token.lastgroup == "word" and len(piece) > MAX_WORD:
            raise Oversized(
                line, f"a word of more than {MAX_WORD} characters", "Shorten it: no key or number is that long."
            )
        if token.lastgroup == "mark":
            dots = dots + 1 if piece == "." else 0
            depth = max(0, depth + (piece in "[{") - (piece in "]}"))
        if dots >= MAX_KEY_PARTS:
            raise Oversized(line, f"a key of more than {MAX_KEY_PARTS} parts", "No key of a policy has so many parts.")
        if depth > MAX_DEPTH:
            raise Oversized(
                line, f"brackets nested more than {MAX_DEPTH} deep", "No value of a policy is nested so deeply."
            )
        line += piece.count("\n")


def key_lines(text: str) -> dict[Key, int]:
    r"""Return the line on which each key, table header and array element of a valid TOML text starts.

    Example:
        >>> key_lines('[roles]\na = { "b.c" = [1,\n2] }')[("roles", "a", "b.c", 1)]
        3
    """
    locator = _Locator()
    line = 1
    for token in _TOKEN.finditer(text):
        if token.lastgroup != "space":
            locator.see(line, token.lastgroup == "mark", token[0])
        line += token[0].count("\n")
    return locator.lines


@dataclass
class _Frame:
    """An open bracket, or the whole text.

    Attributes:
        prefix: The key of the bracket.
        index: In an array, the index of the current element; else None.
        parts: The parts of the current key.
        key: The key whose value is being read; None while a key is read.
    """

    prefix: Key
    index: int | None = None
    parts: list[str] = field(default_factory=list)
    key: Key | None = None


@dataclass
class _Locator:
    """Reads the tokens of a TOML text and notes the line of each key."""

    lines: dict[Key, int] = field(default_factory=dict)
    frames: list[_Frame] = field(default_factory=lambda: [_Frame(())])
    header: bool = False

    def see(self, line: int, mark: bool, piece: str) -> None:
        frame = self.frames[-1]
        if not mark:
            self._name(line, frame, piece)
        elif piece == "=":
            self._end_key(line, frame)
        elif piece in ("[", "{"):
            self._open(line, frame, piece)
        elif piece in ("]", "}"):
            self._close(line)
        elif piece == "," or (piece == "\n" and len(self.frames) == 1):
            self._next(frame)

    def _name(self, line: int, frame: _Frame, piece: str) -> None:
        if frame.index is not None:
            self.lines.setdefault((*frame.prefix, frame.index), line)
        elif frame.key is None:
            frame.parts.append(_name_of(piece))

    def _end_key(self, line: int, frame: _Frame) -> None:
        frame.key = (*frame.prefix, *frame.parts)
        for end in range(len(frame.prefix) + 1, len(frame.key) + 1):
            self.lines.setdefault(frame.key[:end], line)

    def _open(self, line: int, frame: _Frame, piece: str) -> None:
        if frame.index is not None:
            key: Key = (*frame.prefix, frame.index)
            self.lines.setdefault(key, line)
        elif frame.key is not None:
            key = frame.key
        else:  # a table's header, or the second bracket of one
            self.header = True
            return
        self.frames.append(_Frame(key, index=0 if piece == "[" else None))

    def _close(self, line: int) -> None:
        if self.header:
            root = self.frames[0]
            root.prefix = ()
            self._end_key(line, root)
            root.prefix = root.key or ()
            self._next(root)
            self.header = False
        elif len(self.frames) > 1:
            self.frames.pop()

    def _next(self, frame: _Frame) -> None:
        frame.parts, frame.key = [], None
        if frame.index is not None:
            frame.index += 1


def _name_of(piece: str) -> str:
    if piece[0] == '"':
        return _ESCAPE.sub(_unescape, piece[1:-1])
    return piece[1:-1] if piece[0] == "'" else piece


def _unescape(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _SHORT_ESCAPES[found[3]]
