"""The command `fer-vit`, also as `python -m fer_vit`."""

import signal


def main() -> None:
    """Runs the command line.

    While the command line is imported, there are no files to remove. So Ctrl-C ends the process at
    once, without the traceback that Python would print.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fer_vit.cli import main as run

    run()


if __name__ == "__main__":
    main()
