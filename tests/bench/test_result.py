"""Owns: what a benchmark says of what it measured: targets, table, straight lines, two results side by side, picture.
Must not: measure.
Called by: pytest."""

import getpass
import json
import socket
import xml.etree.ElementTree as ET

import pytest

from bench import __main__ as program
from bench.machine import describe_machine, render_machine
from bench.measure import Found
from bench.parts import PARTS
from bench.peers import DEEPSPEED, LOOP, MPIRUN, TORCHRUN, Peers
from bench.picture import render
from bench.result import OURS, Bound, Curve, Row, compare, describe, is_met, read_rows, render_curve, render_table

ROW = Row(
    "8 ranks", "s", {OURS: (1.0, 1.2, 1.1), TORCHRUN: (10.0, 11.0, 12.0)}, {DEEPSPEED: "not installed (--install)"}
)
RATE = Row("large writes through the agent to files", "MB/s", {OURS: (400.0,), "cat": (1000.0,)}, more_is_better=True)
CURVE = Curve("CPU", "hosts", "ms", {"stream": ((1.0, 25.0), (16.0, 175.0), (64.0, 655.0))})


@pytest.mark.parametrize(
    ("row", "bounds", "met"),
    [
        (ROW, [], None),
        (ROW, [Bound(0.2, TORCHRUN)], True),
        (ROW, [Bound(0.05, TORCHRUN)], False),
        (ROW, [Bound(0.05, TORCHRUN), Bound(1.2)], True),  # one of them is enough
        (ROW, [Bound(0.05, TORCHRUN, must=True), Bound(1.2)], False),
        (ROW, [Bound(0.5, DEEPSPEED)], None),  # nobody to compare with
        (ROW, [Bound(1.0)], False),
        (RATE, [Bound(300.0, must=True), Bound(0.5, "cat", must=True)], False),
        (RATE, [Bound(300.0, must=True), Bound(0.4, "cat", must=True)], True),
        (Row("x", "s", {}, {OURS: "needs root"}), [Bound(1.0)], None),
    ],
)
def test_targets(row, bounds, met):
    assert is_met(row, bounds) is met


def test_the_table_has_range_ratio_verdict_and_who_is_missing():
    table = render_table([ROW, Row("x", "s", {}, {OURS: "needs root"})], {"8 ranks": (Bound(0.2, TORCHRUN),)})
    head, first, second, third = table.split("\n")
    assert head.split()[:3] == ["what", "meshrun", "other"]
    assert "1.1 s (1-1.2)" in first and "11 s (10-12) torchrun" in first and "0.100" in first and first.endswith("ok")
    assert "deepspeed: not installed (--install)" in second and "meshrun: needs root" in third


def test_a_straight_line_is_told():
    assert "fit 10 each + 15" in render_curve(CURVE)


def test_a_result_comes_back_and_is_compared():
    kept = json.loads(json.dumps(describe([ROW, RATE], [CURVE])))
    assert read_rows(kept) == [ROW, RATE]
    slower = Row("8 ranks", "s", {OURS: (2.0, 2.1)})
    noisy = Row(RATE.what, "MB/s", {OURS: (390.0, 410.0)}, more_is_better=True)
    _, ranks, copy = compare([ROW, RATE], [slower, noisy, Row("new", "s", {OURS: (1.0,)})]).split("\n")
    assert "+86.4%" in ranks and ranks.endswith("WORSE") and copy.endswith("within the spread")


def test_the_picture_is_one_svg_with_every_ratio_and_curve():
    drawn = ET.fromstring(render([ROW, RATE], [CURVE], "on <this> & that"))
    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert {"0.100", "0.400", "on <this> & that", "CPU", "stream: 10 each + 15"} <= set(texts)


def test_what_it_ran_on_names_no_machine(tmp_path, monkeypatch):
    machine = describe_machine(Peers(tmp_path))
    said = json.dumps(machine) + render_machine(machine, "abc")
    assert machine["cores"] >= 1 and machine["memory_gib"] > 0 and machine["versions"]["torch"]
    assert (
        str(tmp_path) not in said and f'"{socket.gethostname()}"' not in said and f'"{getpass.getuser()}"' not in said
    )


def test_peers_that_are_missing_say_what_helps(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = Peers(tmp_path)
    assert set(found.missing([TORCHRUN, LOOP, MPIRUN, "pdsh"])) == {MPIRUN, "pdsh"}
    assert found.command(LOOP, 3)[-1] == "3"
    with pytest.raises(KeyError):
        found.command(MPIRUN, 2)


def test_the_command_keeps_a_result_and_compares_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PARTS, "help", lambda asked: program_found([ROW]))
    monkeypatch.setattr("sys.argv", ["bench", "--results", str(tmp_path), "help"])
    assert program.main() == 0
    (kept,) = tmp_path.glob("*.json")
    assert kept.with_suffix(".svg").exists() and json.loads(kept.read_text())["rows"][0]["what"] == "8 ranks"
    monkeypatch.setitem(PARTS, "help", lambda asked: program_found([RATE]))
    assert program.main() == 1  # half of cat is asked for
    assert [row["what"] for row in json.loads(kept.read_text())["rows"]] == ["8 ranks", RATE.what]
    monkeypatch.setattr("sys.argv", ["bench", "--compare", str(kept), str(kept)])
    assert program.main() == 0
    assert "within the spread" in capsys.readouterr().out


def test_an_unknown_part_is_refused(monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench", "nothing"])
    with pytest.raises(SystemExit) as raised:
        program.main()
    assert raised.value.code == 2


def program_found(rows):
    return Found(rows)
