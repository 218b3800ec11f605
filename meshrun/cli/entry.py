"""Owns: the first step of the command: until the program is imported, Ctrl-C ends it as it ends any program.
Must not: import anything at the top; whatever is imported before `main` can be interrupted with a traceback.
Called by: the `meshrun` command and `python -m meshrun`."""


def main() -> int:
    """Import the program and run it. Returns its exit code."""
    import signal

    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has it ignored (`&`)
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from meshrun.cli.main import main as run

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()
