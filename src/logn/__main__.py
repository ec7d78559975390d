"""What the `logn` command and `python -m logn` start."""

from __future__ import annotations

import signal


def main() -> None:
    """Load the command line and run it."""
    # Until it is loaded there is nothing to lose and nothing to say: an interrupt ends the process without a
    # traceback. In the background of a shell interrupts are ignored, and stay so.
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from logn.cli.main import run

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
