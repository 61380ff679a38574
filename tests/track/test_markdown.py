"""What markdown is made of shows text as it is."""

from __future__ import annotations

from tracks_dagster.track.text.safe_text import bullets, plain, table


def test_a_cell_can_neither_end_its_row_nor_become_markup() -> None:
    assert plain("a|b\n<b>*c*</b> & `d`") == "a\\|b &lt;b>\\*c\\*&lt;/b> &amp; \\`d\\`"


def test_a_table_has_a_rule_under_its_columns() -> None:
    assert table(("x", "y"), [("1", "2")]) == "| x | y |\n| --- | --- |\n| 1 | 2 |"


def test_a_list_has_a_line_each() -> None:
    assert bullets(["a\nb", "c_d"]) == "- a b\n- c\\_d"
