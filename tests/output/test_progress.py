"""The line that says that something is at work."""

import io
import sys

import pytest

from keras_tpu_ext.output.progress import Progress

pytestmark = pytest.mark.gate_on("keras3_jax")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(file, *seconds, **options):
    with Progress("compiling", file=file, **options) as progress:
        for second in seconds:
            progress.update(second)
    return file.getvalue()


def test_a_terminals_line_is_written_over_once_a_second():
    assert shown(Terminal(), 0.2, 1.0, 1.4, 2.9, 3.0) == ("\rcompiling, 1 s \rcompiling, 2 s \rcompiling, 3 s \n")


def test_elsewhere_the_text_stands_once():
    assert shown(io.StringIO(), 0.2, 1.0, 2.9, 3.0) == "compiling ...\n"


def test_what_takes_less_than_a_second_shows_nothing():
    assert shown(Terminal(), 0.0, 0.5, 0.99) == ""


def test_nothing_is_shown_where_nothing_is_wanted():
    assert shown(Terminal(), 1.0, 2.0, shown=False) == ""


def test_it_goes_to_stderr_where_nothing_else_is_said(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with Progress("compiling") as progress:
        progress.update(1.0)
    assert file.getvalue() == "compiling ...\n"


def test_the_line_ends_where_what_was_at_work_failed():
    file = Terminal()
    try:
        with Progress("compiling", file=file) as progress:
            progress.update(1.0)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert file.getvalue() == "\rcompiling, 1 s \n"
