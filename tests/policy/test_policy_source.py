"""Files that are no policy at all: refused with a reason, soon, and without exhausting anything."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsql.errors import InvalidPolicy
from dpsql.policy import load_policy
from dpsql.policy.lines import MAX_DEPTH, MAX_KEY_PARTS, MAX_WORD, key_lines
from dpsql.policy.source import MAX_BYTES


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    cases = [
        (tmp_path / "absent.toml", "no such file", "policy init"),
        (tmp_path / "a\0b", "no such file", "policy init"),
        (tmp_path, "this is a directory", "policy file"),
        (pipe, "not a regular file", "copy"),
        (Path("/dev/zero"), "not a regular file", "copy"),
    ]
    for path, what, hint in cases:
        with pytest.raises(InvalidPolicy) as caught:
            load_policy(path)
        assert what in caught.value.message
        assert hint in (caught.value.hint or "")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "policy.toml"
    file.touch()
    monkeypatch.setattr(Path, "open", refuse)  # root may read anything, so chmod would not do
    with pytest.raises(InvalidPolicy, match="cannot be read: Permission denied"):
        load_policy(file)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"version = 1\nname = '\xff'", ":2: not UTF-8 text"),
        (b"#" * (MAX_BYTES + 1), ": larger than 1024 KiB"),
        (b"\na = " + b"[" * (MAX_DEPTH + 1), ":2: brackets nested more than 16 deep"),
        (b"a = " + b"{a = " * (MAX_DEPTH + 1), ":1: brackets nested more than 16 deep"),
        (b".".join([b"a"] * (MAX_KEY_PARTS + 1)) + b" = 1", ":1: a key of more than 16 parts"),
        (b"[" + b" . ".join([b"'a'"] * (MAX_KEY_PARTS + 1)) + b"]", ":1: a key of more than 16 parts"),
        (b"a = " + b"1" * (MAX_WORD + 1), ":1: a word of more than 200 characters"),
        (b'"' + b"k" * 999 + b'" = 1', ':1: "kkkkk'),
        (b"k" * 99 + b" = 1", ':1: "kkkkk'),
        (b'"a\\u001b[31m" = 1', ':1: "a\\u001b[31m": unknown key'),
        (b'a = "', ":1: not valid TOML, at the end of the file: Unterminated string"),
        (b"a = 1\n[a]\nb = 1", ":2: not valid TOML, column 3"),
        (b"\n\na = \x01", ":3: not valid TOML, column 5"),
        (b"a = 2020-13-01", ":1: not valid TOML"),
        (b"", ": version is missing"),
    ],
)
def test_files_that_are_no_policy(tmp_path: Path, content: bytes, what: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidPolicy) as caught:
        load_policy(file)
    assert f"{file}{what}" in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1000
    assert caught.value.hint


def test_what_stays_within_the_limits(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    for text in (f"x = {'[' * MAX_DEPTH}{']' * MAX_DEPTH}", "x" + ".a" * (MAX_KEY_PARTS - 1) + " = 1"):
        file.write_text(text)
        with pytest.raises(InvalidPolicy, match="x: unknown key"):
            load_policy(file)


def test_key_lines() -> None:
    text = '''\
a = 1 # b = 2
"c.d" . 'e "' = """
f = 3
\\""" g = 4"""

[h."i\\u00e4"] # [j]
k = { l = 1, m.n = [1.5,
  "]", # o = 5
  {p = 1}], q = 2020-01-01 00:00:00 }
r = \'\'\'
s = 1\'\'\'\'
[[t]]
u = "[v"
'''
    assert dict(lines(text)) == {
        "a": 1,
        "c.d": 2,
        'c.d|e "': 2,
        "h": 6,
        "h|iä": 6,
        "h|iä|k": 7,
        "h|iä|k|l": 7,
        "h|iä|k|m": 7,
        "h|iä|k|m|n": 7,
        "h|iä|k|m|n|0": 7,
        "h|iä|k|m|n|1": 8,
        "h|iä|k|m|n|2": 9,
        "h|iä|k|m|n|2|p": 9,
        "h|iä|k|q": 9,
        "h|iä|r": 10,
        "t": 12,
        "t|u": 13,
    }


def lines(text: str) -> Iterator[tuple[str, int]]:
    for key, line in key_lines(text).items():
        yield "|".join(map(str, key)), line
