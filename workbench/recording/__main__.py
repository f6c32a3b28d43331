"""The process behind a ledger: `python -m sorl.recording FOLDER PIPE`, the pipe of the trainer's messages.

A thread takes them in from the first moment on, also while a step is measured: what has left the trainer's
process is not lost when that is killed.
"""

import logging
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

MOST = 2 * 10**9  # bytes that wait here; more waits in the trainer, which leaves out what is too much


class Inbox:
    """Messages of a pipe as they come, None at their end: it is closed, or the process behind it is gone."""

    def __init__(self, stream: int) -> None:
        self.pipe = Connection(stream, writable=False)
        self.parent = os.getppid()
        self._put = self._taken = 0  # bytes; each is counted by one thread
        self._queue: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._take, daemon=True).start()

    def get(self) -> bytes | None:
        """Return the next message; waits for it."""
        while True:
            with suppress(queue.Empty):
                message = self._queue.get(timeout=1.0)
                self._taken += len(message or b"")
                return message
            if os.getppid() != self.parent:  # a child of the trainer may still hold the pipe
                return None

    def _take(self) -> None:
        with suppress(EOFError, OSError):
            while message := self.pipe.recv_bytes():
                while self._put - self._taken > MOST:
                    time.sleep(0.1)
                self._put += len(message)
                self._queue.put(message)
        self._queue.put(None)


def main(folder: Path, stream: int) -> int:
    """Write the run in `folder` down until the trainer is gone; 1 where rows could not be written."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the trainer's end ends this process
    logging.basicConfig(format="sorl: %(message)s")
    inbox = Inbox(stream)
    with suppress(OSError):
        os.nice(10)
    import torch

    from sorl.recording.ledger import decode
    from sorl.recording.scribe import Scribe

    torch.set_num_threads(1)
    scribe = Scribe(folder)
    while (message := inbox.get()) is not None:
        scribe.take(*decode(message))
    return scribe.stop()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
