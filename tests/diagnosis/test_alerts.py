"""Alerts: what is worth a message, said once for each run and kind, to a webhook that nothing waits for."""

import fcntl
import time
from collections.abc import Iterator
from email.header import decode_header, make_header
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sorl.diagnosis.alerts import Bell, alerts, falling
from sorl.diagnosis.changepoint import slumped
from sorl.spec import InputError
from sorl.spec.files import lock_file
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.store.fixture import Shape, write_run, write_segment, write_status

LOCKS: list[Any] = []  # held until the end
SMALL = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)


class Inbox(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], str]] = []
        self.status = 200
        self.pause = 0.0
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                inbox.got.append((self.path, dict(self.headers), body))
                time.sleep(inbox.pause)
                self.send_response(inbox.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with Inbox() as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def success(*values: float) -> pd.Series:
    return pd.Series(values, dtype=float)


def test_a_run_is_falling_now_by_the_causal_rule_while_it_is_still_down() -> None:
    up = [0.6] * 8
    low = [0.1] * 4
    assert falling(success(*up)) is None
    slump = falling(success(*up, *low))
    assert slump is not None
    assert slump == slumped(success(*up, *low))
    assert falling(success(*up, *low, *up)) is None, "it came back"
    assert slumped(success(*up, *low, *up)) is not None
    assert falling(success(*up, float("nan"))) is not None, "NaN is a fall, no missing value"
    assert falling(success()) is None
    curve = np.random.default_rng(0).uniform(0, 1, 60)
    # what is said of a prefix depends on nothing after it, and agrees with the whole rule
    for end in range(1, 60):
        now = falling(success(*curve[:end]))
        assert now is None or now == slumped(success(*curve[:end]))


def live(runs: Path, run: str, *curve: float, **row: Any) -> Path:
    """A run with this success; without `row` it is training, as its lock says."""
    folder = runs / "demo" / run
    columns: dict[str, list[Any]] = {"step": list(range(len(curve))), "success": list(curve)}
    write_segment(folder, "step", {"run_id": [run] * len(curve)} | columns)
    write_status(folder, **({"status": "running", "outcome": None, "ended_at": None} | row))
    if not row.get("status"):
        LOCKS.append(lock_file(folder / "lock"))
        fcntl.flock(LOCKS[-1], fcntl.LOCK_EX)
    return folder


def test_alerts_name_the_runs_that_fall_collapse_diverge_or_fail_and_no_other(tmp_path: Path) -> None:
    live(tmp_path, "up", *[0.6] * 12)
    live(tmp_path, "down", *[0.6] * 8, *[0.1] * 4)
    live(tmp_path, "ended", *[0.6] * 8, *[0.1] * 4, status="finished", outcome="falling")
    dead = live(tmp_path, "failed", 0.6, status="failed", reason="RuntimeError: <b>no</b>\x1b[31m")
    live(tmp_path, "gone", 0.6, status="failed", outcome="diverged", reason="loss is not finite")
    write_run(tmp_path, "demo", "fell", shape=SMALL, collapse=6)
    sync(tmp_path)
    found = {alert.run_id: alert for alert in alerts(Reader(tmp_path))}
    told = {run: alert.kind for run, alert in found.items()}
    assert told == {"down": "falling", "failed": "failed", "gone": "diverged", "fell": "collapsed"}
    # The third low value of three is the first whose median is low: step 9.
    assert (found["down"].step, "first at step 9; about one healthy run in twenty" in found["down"].says) == (
        9,
        True,
    )
    assert "\x1b" not in found["failed"].says
    assert dead.name == "failed"
    assert alerts(Reader(tmp_path), "other") == []


def test_every_alert_is_posted_once_and_what_happened_before_never(tmp_path: Path, inbox: Inbox) -> None:
    write_run(tmp_path, "demo", "before", shape=SMALL, collapse=6)
    sync(tmp_path)
    bell = Bell(f"{inbox.url}/topic", pytest.fail, "demo")
    bell.know(Reader(tmp_path))
    folder = live(tmp_path, "down", *[0.6] * 8, *[0.1] * 4, arm="ppo · größer", seed=1)
    for _ in range(3):
        sync(tmp_path)
        bell.look(Reader(tmp_path))
    write_status(folder, arm="ppo · größer", seed=1, status="failed", outcome=None, reason="killed")
    sync(tmp_path)
    bell.look(Reader(tmp_path))
    bell.close()
    titles = [str(make_header(decode_header(headers["Title"]))) for _, headers, _ in inbox.got]
    assert titles == [f"ppo · größer, seed 1, of demo: {kind}" for kind in ("falling", "failed")]
    path, headers, body = inbox.got[0]
    assert (path, headers["Content-Type"]) == ("/topic", "text/plain; charset=utf-8")
    assert body.startswith("The median of 3 steps of success is 55 % or more below its best, first at step 9")


def test_a_chat_gets_json(inbox: Inbox) -> None:
    hook = Bell(f"{inbox.url}/hooks/secret", pytest.fail)
    hook.post("ppo", 'It "fell".')
    hook.close()
    assert inbox.got[0][1]["Content-Type"] == "application/json"
    assert '"text": "ppo. It \\"fell\\"."' in inbox.got[0][2]


@pytest.mark.parametrize("why", ["refused", "error", "slow"])
def test_a_dead_webhook_is_said_once_raises_nothing_and_holds_nothing_up(
    why: str, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sorl.diagnosis.alerts._PATIENCE", 0.5)
    inbox.status, inbox.pause = {"refused": (200, 0.0), "error": (500, 0.0), "slow": (200, 3.0)}[why]
    said: list[str] = []
    hook = Bell("http://127.0.0.1:9/secret" if why == "refused" else f"{inbox.url}/secret", said.append)
    began = time.monotonic()
    for _ in range(50):
        hook.post("title\r\nX-Evil: 1", "text")
    assert time.monotonic() - began < 0.2, "a post returns at once"
    hook.close()
    assert time.monotonic() - began < 2
    assert len(said) == 1
    assert "127.0.0.1" in said[0]
    assert "secret" not in said[0], "the path of a webhook is its password"
    assert not any("X-Evil" in headers for _, headers, _ in inbox.got)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ntfy.sh/x",
        "file:///etc/passwd",
        "ftp://a/b",
        "http://",
        "http://a:b",
        "http://a:99999/",
        "http://a b/",
        "http://a/\n",
        "http://u:p@a/",
        "http://[::1",
        "javascript:alert(1)",
        "http://ä/",
    ],
)
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="--notify takes a webhook like"):
        Bell(url, pytest.fail)
