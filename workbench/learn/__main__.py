"""`python -m sorl.learn RUN_FOLDER [--cache DIR]`: the process of one cell."""

import faulthandler
import signal
import sys
from pathlib import Path

from sorl.learn.run import HELD, WRONG_INPUT, Held, run
from sorl.spec import InputError


def main(arguments: list[str]) -> int:
    """Train a run; exit code 0 finished, 1 failed, 2 wrong input, 3 interrupted, 4 trained by another
    process.
    """
    # SIGUSR1 asks where every thread stands: the answer goes to the log of a run that hangs, before it is
    # killed.
    faulthandler.register(signal.SIGUSR1)
    folder = Path(arguments[0])
    cache = Path(arguments[2]) if arguments[1:2] == ["--cache"] else folder.parent.parent / ".cache"
    try:
        return run(folder, cache)
    except InputError as error:
        print(f"sorl: {error}", file=sys.stderr)
        return HELD if isinstance(error, Held) else WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
