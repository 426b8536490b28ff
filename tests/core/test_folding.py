"""Tables in a narrow terminal."""

from __future__ import annotations

from benchmarker.core.table_wrapping import folded

WIDE = """\
| variant | runtime | latency s |  tok/s | peak GiB | bound by |
| :------ | :------ | --------: | -----: | -------: | :------- |
| fp16    | eager   |     1.389 |  36.01 |     7.54 | host     |
| a\\|b    | compile |     1.267 |  39.48 |     3.18 | –        |"""


def test_a_wide_table_becomes_two_with_the_names_in_both():
    assert folded(WIDE, 60) == (
        """\
| variant | runtime | latency s |  tok/s | peak GiB |
| :------ | :------ | --------: | -----: | -------: |
| fp16    | eager   |     1.389 |  36.01 |     7.54 |
| a\\|b    | compile |     1.267 |  39.48 |     3.18 |

| variant | runtime | bound by |
| :------ | :------ | :------- |
| fp16    | eager   | host     |
| a\\|b    | compile | –        |"""
    )


def test_a_table_that_fits_is_left_alone():
    assert folded(WIDE, 80) == WIDE


def test_a_table_whose_names_take_all_the_room_is_left_alone():
    only_names = "| variant |\n| :------ |\n| a-very-long-name-of-a-variant |"
    assert folded(only_names, 10) == only_names


def test_the_first_columns_of_a_grid_are_its_names():
    grid = (
        "| prompt | variant | tok/s | peak |\n| -----: | :------ | ----: | ---: |\n|     26 | fp16    |  36.0 | 7.54 |"
    )
    assert folded(grid, 30).splitlines()[2::4] == ["|     26 | fp16    |  36.0 |", "|     26 | fp16    | 7.54 |"]


def test_prose_breaks_between_words_and_bullets_keep_their_indent():
    text = "- unstable_warmup: the last three warm-ups still differed"
    assert folded(text, 40) == "- unstable_warmup: the last three\n  warm-ups still differed"
    assert folded("short\n\n**bold**", 40) == "short\n\n**bold**"


def test_wide_letters_count_twice():
    table = "| name | a | b |\n| :--- | -: | -: |\n| 模型模型 | 1 | 2 |"
    assert all(line.count("|") == 3 for line in folded(table, 15).splitlines() if line)
