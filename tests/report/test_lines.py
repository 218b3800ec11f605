"""Owns: any bytes in any pieces become whole prefixed lines; what a terminal gets.
Must not: touch a file or a screen.
Called by: pytest."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.report.lines import Prefixer, clean_line, clean_text, make_prefix
from tests.report.make import make_plan

# Few letters, so that newlines, returns and escapes fall on the borders of pieces.
TEXTS = st.text(alphabet="a\n\r\x1b[", max_size=60).map(str.encode) | st.binary(max_size=60)
FEEDS = st.lists(st.tuples(st.integers(0, 4), TEXTS), max_size=40)


def feed_all(prefixer: Prefixer, feeds: list[tuple[int, bytes]]) -> bytes:
    for rank in range(5):
        prefixer.name(rank, b"<%d>" % rank)
    return b"".join(prefixer.feed(rank, data) for rank, data in feeds) + prefixer.finish()


def expected_lines(feeds: list[tuple[int, bytes]]) -> dict[int, list[bytes]]:
    whole: dict[int, bytes] = defaultdict(bytes)
    for rank, data in feeds:
        whole[rank] += data
    lines = {rank: data.split(b"\n") for rank, data in whole.items()}
    return {rank: pieces if pieces[-1] else pieces[:-1] for rank, pieces in lines.items() if pieces != [b""]}


def shown_lines(shown: bytes) -> dict[int, list[bytes]]:
    lines: dict[int, list[bytes]] = defaultdict(list)
    for line in shown.split(b"\n")[:-1]:
        assert line[:1] == b"<" and line[2:3] == b">", line
        lines[int(line[1:2])].append(line[3:])
    return lines


@given(FEEDS)
def test_any_chopping_gives_whole_lines_in_order_and_unchanged(feeds: list[tuple[int, bytes]]) -> None:
    shown = feed_all(Prefixer(), feeds)
    assert shown_lines(shown) == expected_lines(feeds)
    assert not shown or shown.endswith(b"\n")


@given(FEEDS)
def test_with_a_tiny_limit_no_byte_is_lost_and_no_line_mixed(feeds: list[tuple[int, bytes]]) -> None:
    shown = feed_all(Prefixer(line_limit=4), feeds)
    joined = {rank: b"".join(lines) for rank, lines in shown_lines(shown).items()}
    wanted = {rank: b"".join(lines) for rank, lines in expected_lines(feeds).items()}
    assert {r: b for r, b in joined.items() if b} == {r: b for r, b in wanted.items() if b}


@given(FEEDS)
def test_a_terminal_gets_no_control_but_colours(feeds: list[tuple[int, bytes]]) -> None:
    shown = feed_all(Prefixer(terminal=True), feeds)
    rest = shown.replace(b"\x1b[0m", b"").replace(b"\x1b[m", b"")
    assert not set(rest) & (set(range(32)) - set(b"\n\t"))


@given(TEXTS, st.integers(0, 60))
def test_where_a_piece_ends_does_not_matter_on_a_terminal(data: bytes, at: int) -> None:
    whole, cut = Prefixer(terminal=True), Prefixer(terminal=True)
    lines = [whole.feed(0, data) + whole.finish()]
    lines.append(cut.feed(0, data[:at]) + cut.feed(0, data[at:]) + cut.finish())
    assert lines[0] == lines[1]


def test_lines_appear_at_once_and_a_partial_one_waits() -> None:
    prefixer = Prefixer()
    assert prefixer.feed(3, b"one\ntwo\nthr") == b"[3] one\n[3] two\n"
    assert prefixer.feed(2, b"other\n") == b"[2] other\n"
    assert prefixer.feed(3, b"ee\n") == b"[3] three\n"
    assert prefixer.finish() == b""


def test_a_line_of_megabytes_is_one_line() -> None:
    prefixer = Prefixer()
    piece = b"x" * 65536
    assert all(prefixer.feed(0, piece) == b"" for _ in range(160))
    assert prefixer.feed(0, b"\n") == b"[0] " + piece * 160 + b"\n"


def test_many_unfinished_lines_are_bounded_together() -> None:
    prefixer = Prefixer(total_limit=1024 * 1024)
    shown = [prefixer.feed(rank, b"x" * 100_000) for rank in range(20)]
    assert shown[0] == b"" and any(shown)
    assert all(line == b"" or line.endswith(b"x\n") for line in shown)


def test_the_prefix_has_host_rank_and_coordinates() -> None:
    workers = make_plan({"a": 2, "büro": 2}, dp=2, tp=2).workers
    assert make_prefix(workers[1]) == b"[a:1 dp=0,tp=1] "
    assert make_prefix(workers[2]) == "[büro:2 dp=1,tp=0] ".encode()


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b"plain\ttext", b"plain\ttext"),
        (b"\x1b[1;31mred\x1b[0m", b"\x1b[1;31mred\x1b[0m"),
        (b"\x1b[31mnever closed", b"\x1b[31mnever closed\x1b[0m"),
        (b"\x1b[2J\x1b[Hgone", b"gone"),
        (b"\x1b]0;title\x07text", b"text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", b"link"),
        (b"\x1bPq#0\x1b\\sixel", b"sixel"),
        (b"\x1bcreset \x07bell", b"reset bell"),
        (b"cut \x1b[", b"cut "),
        (b"c1 \xc2\x9b2J", b"c1 2J"),
        ("grüße ✓ 進捗".encode(), "grüße ✓ 進捗".encode()),
        (b"10%\r 50%\r100%", b"100%"),
        (b"dos line\r", b"dos line"),
        (b"bar \r          \rafter", b"after"),
    ],
)
def test_what_a_terminal_sees_of_a_line(line: bytes, seen: bytes) -> None:
    assert clean_line(line) == seen


def test_cleaning_text_keeps_its_lines() -> None:
    assert clean_text(b"a\x07\n\nb\x1b[2J\n") == b"a\n\nb\n"


def test_a_progress_bar_stays_one_line_and_small() -> None:
    prefixer = Prefixer(terminal=True)
    assert all(prefixer.feed(1, b"\r%3d%%|###" % n) == b"" for n in range(100))
    prefixer.feed(2, b"a prompt: ")
    assert prefixer.bars() == [b"[1]  99%|###"]
    assert prefixer.feed(1, b"\r100%|done\n") == b"[1] 100%|done\n"
    assert prefixer.bars() == []


def test_on_a_pipe_carriage_returns_stay_inside_their_line() -> None:
    assert Prefixer().feed(0, b"10%\r20%\r\nx\n") == b"[0] 10%\r20%\r\n[0] x\n"
