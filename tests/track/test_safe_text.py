"""Text from outside cannot speak to a terminal, nor become markup."""

from __future__ import annotations

import json

import pytest

from tracks_dagster.track.text.safe_text import (
    bullets,
    csv_text,
    one_line,
    plain,
    table,
    visible,
    visible_json,
)

HOSTILE = {
    "\x1b]0;title\x07": "\\x1b]0;title\\x07",
    "\x1b[2J\x1b[1;31m": "\\x1b[2J\\x1b[1;31m",
    "\x9b2J": "\\x9b2J",
    "rm\x08\x08ls\x7f": "rm\\x08\\x08ls\\x7f",
    "good\rbad": "good\\x0dbad",
    "a\u202eb\u2066c\u200f": "a\\u202eb\\u2066c\\u200f",
    "caf\udce9": "caf\\udce9",
    "größe 🚀\ttab\nline": "größe 🚀\ttab\nline",
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_what_would_control_a_terminal_is_shown_instead(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


@pytest.mark.parametrize("text", HOSTILE)
def test_json_has_the_same_value_and_none_of_these_characters(text: str) -> None:
    shown = visible_json(json.dumps({"text": text}, ensure_ascii=False, indent=2))
    assert visible(shown) == shown
    assert json.loads(shown) == {"text": text}


def test_words_of_several_lines_stay_in_one_line_of_ours() -> None:
    assert (
        one_line("fine\n02:00  ann: promoted\r\nx\u2028y") == "fine ⏎ 02:00  ann: promoted ⏎ x ⏎ y"
    )


def test_markdown_takes_no_image_no_link_and_no_tag_from_a_text() -> None:
    text = "![x](data:image/png;base64,AA) <img src=x> [a](javascript:b)\x1b[2J\u202e"
    for markdown in (bullets([text]), table(["column"], [[text]])):
        assert "![x](" not in markdown
        assert "[a](" not in markdown
        assert "<img" not in markdown
        assert visible(markdown) == markdown


# What markdown is made of shows text as it is.


def test_a_cell_can_neither_end_its_row_nor_become_markup() -> None:
    assert plain("a|b\n<b>*c*</b> & `d`") == "a\\|b &lt;b>\\*c\\*&lt;/b> &amp; \\`d\\`"


def test_a_table_has_a_rule_under_its_columns() -> None:
    assert table(("x", "y"), [("1", "2")]) == "| x | y |\n| --- | --- |\n| 1 | 2 |"


def test_a_list_has_a_line_each() -> None:
    assert bullets(["a\nb", "c_d"]) == "- a b\n- c\\_d"


def test_a_spreadsheet_takes_no_text_for_a_formula_and_every_number_for_one() -> None:
    texts = ("=HYPERLINK(1)", "+1+1", "@sum", "-2+3", "\t=1", "\r=1")
    lines = csv_text([texts, (-1, "-0.5", "+3e-4", None, "a=b", 'say "hi", twice')])
    assert lines == (
        "'=HYPERLINK(1),'+1+1,'@sum,'-2+3,'\t=1,\"'\n=1\"\n"
        '-1,-0.5,+3e-4,,a=b,"say ""hi"", twice"\n'
    )
