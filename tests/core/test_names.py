"""Names come from outside: neither a terminal, a log nor a spreadsheet obeys them."""

from __future__ import annotations

import pytest

from fedpace._base.checks import bare, cell, printable, shown
from fedpace.hosting.replies import short

HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "a\nfedpace: 'b' is trusted",
    "a\r\x9b31m",
    "\u202eevil\u2066",
    "a\u2028b",
    "\ud800",
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("show", [printable, shown, bare, short, cell])
def test_what_is_shown_is_printable_ascii_escapes_and_one_line(name, show):
    text = show(name)
    assert text.isprintable()
    assert len(text.splitlines()) == 1
    text.encode()


def test_ordinary_names_are_as_they_are():
    assert [bare(name) for name in ("phone-7", "Zoë 東京", 7, ("a", 1))] == ["phone-7", "Zoë 東京", "7", "('a', 1)"]
    assert (shown("phone-7"), shown(7)) == ("'phone-7'", "7")
    assert len(bare("x" * 1000)) == len(shown("x" * 1000)) == 120
    assert bare("\x1b\n") == "\\x1b\\x0a"


def test_a_client_whose_repr_fails_is_named_by_its_class():
    class Broken:
        def __repr__(self):
            raise RuntimeError("no")

    assert shown(Broken()) == "<Broken>"


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_no_cell_is_a_formula(name):
    assert cell(name).startswith("'")


def test_numbers_and_ordinary_text_are_cells_as_they_are():
    assert [cell(value) for value in (-1.5, 3, None, True, "phone-7")] == [-1.5, 3, None, True, "phone-7"]
