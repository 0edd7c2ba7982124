"""Whatever a text says, it is shown, and never obeyed."""

from hypothesis import given
from hypothesis import strategies as st

from dpsql.console.markup import document, element, joined
from tests.console.world import EVIL, Outline

TEXTS = st.text() | st.sampled_from([EVIL, '" onload="alert(1)', "'", "&lt;", "</title><script>", "\0", "\ud800", "‮"])


@given(TEXTS, TEXTS)
def test_a_text_is_no_element_and_an_attribute_no_other(text: str, value: str) -> None:
    found = Outline(element("p", text, title=value).text)
    assert found.tags == [("p", "title")]
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    assert "".join(found.texts) == shown


def test_characters_that_hide_or_turn_others_are_spelt_out() -> None:
    shown = joined("a\0b\x1b[31mc‮d\ud800e\N{NO-BREAK SPACE}f\ng").text
    assert shown == "a\\x00b\\x1b[31mc\\u202ed\\ud800e\\xa0f\ng"
    assert document(shown, joined(shown))  # it can be encoded


def test_elements_are_not_escaped_again_and_nothing_is_left_out() -> None:
    inner = element("b", "1 < 2", None, class_="x", aria_label=None)
    assert element("p", inner, "&").text == '<p><b class="x">1 &lt; 2</b>&amp;</p>'
    assert element("input", name="n").text == '<input name="n">'
