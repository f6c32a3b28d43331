"""What the fork server imports first, and nobody else: it dies with its grid, and with nothing else.

Trainers die with the fork server (`process.tie_to_parent`), so it must not go before the grid does: a
terminal that closes and a service that is stopped send their signal to every process, and the trainers are to
write a checkpoint first. Once the grid is gone, a fork server that is stopped cannot see so itself, and is
killed.
"""

import signal

from sorl.grid.process import tie_to_parent

for number in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
tie_to_parent()
