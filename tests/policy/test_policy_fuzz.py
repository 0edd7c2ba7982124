"""Whatever the file holds, load_policy returns a policy or raises InvalidPolicy, and soon."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsql.errors import InvalidPolicy
from dpsql.policy import load_policy
from dpsql.policy.lines import key_lines

CLINIC = (Path(__file__).parent.parent.parent / "policies" / "clinic.toml").read_text(encoding="utf-8")
WORDS = sorted({word for line in CLINIC.splitlines() for word in line.partition("#")[0].split()})
PIECES = [
    *WORDS,
    *(
        '"""',
        "'''",
        '"',
        "'",
        "\\",
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        "=",
        ".",
        ",",
        "\n",
        "#",
        "${X}",
        "\0",
        "ä",
        "\u2028",
    ),
    *("nan", "-inf", "1e-400", "1e308", "1e999999999999999999", "0x" + "f" * 99, "-1", "0", "1_0", "2020-01-01"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "12:00:00", "true", '"a.b"', '"uuid"', "[[[[]]]]"),
]
FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def attempt(folder: Path, content: bytes) -> None:
    file = folder / "policy.toml"
    file.write_bytes(content)
    try:
        load_policy(file)
    except InvalidPolicy as error:
        assert error.message.startswith(str(file))
        assert "\n" not in error.message
        assert error.hint


@FUZZ
@given(content=st.binary(max_size=300))
def test_bytes(tmp_path: Path, content: bytes) -> None:
    attempt(tmp_path, content)


@FUZZ
@given(text=st.lists(st.sampled_from(PIECES), max_size=60).flatmap(lambda pieces: st.just(" ".join(pieces))))
def test_pieces(tmp_path: Path, text: str) -> None:
    attempt(tmp_path, text.encode())


@FUZZ
@given(data=st.data())
def test_a_policy_with_some_words_replaced(tmp_path: Path, data: st.DataObject) -> None:
    text = CLINIC
    for _ in range(data.draw(st.integers(1, 3))):
        old = data.draw(st.sampled_from(WORDS))
        new = data.draw(st.sampled_from(PIECES) | st.text(max_size=5))
        if data.draw(st.booleans()):
            text = text.replace(old, new, 1)
        else:
            text = text[: text.rindex(old)] + new + text[text.rindex(old) + len(old) :] if old in text else text
    attempt(tmp_path, text.encode(errors="replace"))


@FUZZ
@given(data=st.data())
def test_a_policy_with_lines_lost_doubled_and_swapped(tmp_path: Path, data: st.DataObject) -> None:
    lines = [line for line in CLINIC.splitlines() if line and not line.startswith("#")]
    for _ in range(data.draw(st.integers(1, 3))):
        here, there = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        lines[here : here + 1] = data.draw(st.sampled_from([[], [lines[there]], [lines[here], lines[there]]]))
    attempt(tmp_path, "\n".join(lines).encode())


KEYS = st.sampled_from(["a", '"b.c"', "'d e'", '"\\u00e9"', "f . g"])
VALUES = st.recursive(
    st.sampled_from(["1", "1.5", '"x = 1"', "'''\n[y]\n'''", '"""\n# "z\\""""', "true", "2020-01-01 00:00:00"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[\n" + ",\n".join(items) + "]")
        | st.lists(inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"k{n} = {item}" for n, item in enumerate(items)) + "}"
        )
    ),
    max_leaves=6,
)


@FUZZ
@given(entries=st.lists(st.tuples(st.booleans(), KEYS, VALUES), max_size=6))
def test_every_key_of_a_toml_text_has_its_line(entries: list[tuple[bool, str, str]]) -> None:
    text = "".join(
        f"[t{number}.{key}]\nx = {value}\n" if header else f"n{number} . {key} = {value}\n"
        for number, (header, key, value) in enumerate(entries)
    )
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        pytest.fail(text)
    lines = key_lines(text)
    assert set(lines) == set(keys_of(data, ()))
    for number, (header, _, _) in enumerate(entries):
        top = next(line for key, line in lines.items() if key[-1] in (f"n{number}", f"t{number}"))
        assert text.splitlines()[top - 1].startswith(f"[t{number}" if header else f"n{number}") or not header


def keys_of(value: object, key: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [longer for part, inner in items for longer in ((*key, part), *keys_of(inner, (*key, part)))]
