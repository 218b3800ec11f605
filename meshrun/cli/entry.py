"""Owns: the first step of the command: until the program is imported, Ctrl-C ends it as it ends any program.
Must not: import anything at the top; whatever is imported before `main` can be interrupted with a traceback.
Called by: the `meshrun` command and `python -m meshrun`."""


def main() -> None:
    """Import the program, run it, and leave with its exit code, without the interpreter's own teardown: 15 ms in which
    a program that has ended still seems to run."""
    import gc
    import os
    import signal
    import sys

    gc.disable()  # imports leave no garbage, and looking for it takes a tenth of their time; what runs on enables it
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has it ignored (`&`)
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from meshrun.cli.main import main as run

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            pass  # nobody reads it any more
    os._exit(code)
