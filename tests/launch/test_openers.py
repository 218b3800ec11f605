"""Owns: what the hosts of a job share while their lines are opened all at once.
Must not: open a line.
Called by: pytest."""

import threading

from meshrun.launch import openers


def test_threads_that_come_together_make_one_bundle(monkeypatch):
    made, second = [], threading.Event()

    def make():
        made.append(threading.get_ident())
        if len(made) > 1:
            second.set()
        second.wait(0.3)  # time for another thread to come in, if it can
        return b"zip"

    monkeypatch.setattr(openers, "bundle", make)
    openers._make_start_once.cache_clear()
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(openers._make_start("/usr/bin/python3", ""))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    openers._make_start_once.cache_clear()
    assert len(made) == 1 and len(set(got)) == 1 and len(got) == 4
