"""What is worth a message about a run that nobody watches, and a webhook for it that nothing waits for."""

import json
import queue
from collections.abc import Callable, Iterator, Mapping
from email.header import Header
from itertools import chain
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd

from sorl.diagnosis.changepoint import LOST, SMOOTH, Slump, slumped, smoothed
from sorl.spec import InputError
from sorl.store.text import visible

if TYPE_CHECKING:
    from sorl.store.reader import Reader

RATE = "about one healthy run in twenty ever does, and one in five of all that do not collapse"
# that a webhook may take to answer; at the end for what is not sent yet
_SECONDS = 10.0
_PATIENCE = 5.0
_RUNS = """
    SELECT run_id, experiment, arm, seed, status, reason, fell, gone, outcome
    FROM run LEFT JOIN (
        SELECT run_id, min(step) FILTER (kind = 'collapse') AS fell,
               min(step) FILTER (kind IN ('non_finite', 'diverged')) AS gone
        FROM event GROUP BY run_id
    ) USING (run_id)
    WHERE experiment = coalesce($experiment, experiment) ORDER BY started_at, run_id
"""
_SUCCESS = "SELECT run_id, step, success FROM step WHERE list_contains($runs, run_id) ORDER BY run_id, step"


class Alert(NamedTuple):
    """Something that happened to a run: `kind` is falling, collapsed, diverged or failed; `says` is a
    sentence.
    """

    run_id: str
    kind: str
    title: str
    says: str
    step: int | None = None
    experiment: str = ""


def falling(success: pd.Series) -> Slump | None:
    """Return where success, by step, slumped if it is still down at the last step: `slumped`, which is
    causal, now.
    """
    values = success.to_numpy(float)
    smooth = smoothed(values[np.isfinite(values)])
    up = len(values) and np.isfinite(values[-1]) and smooth[-1] > (1 - LOST) * smooth.max()
    return None if up else slumped(success)


def alerts(reader: "Reader", experiment: str | None = None) -> list[Alert]:
    """Return what has happened to the runs of an experiment (default: all) that a person would
    want to know.
    """
    answer = reader.rows(_RUNS, {"experiment": experiment})
    runs = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    live = [r["run_id"] for r in runs if r["status"] == "running" and r["fell"] is None and r["gone"] is None]
    points = reader.query(_SUCCESS, {"runs": live}) if live else pd.DataFrame({"run_id": []})
    curves = {str(run): part.set_index("step")["success"].dropna() for run, part in points.groupby("run_id")}
    return list(chain.from_iterable(_of(run, curves.get(run["run_id"])) for run in runs))


def _of(run: Mapping[str, Any], curve: pd.Series | None) -> Iterator[Alert]:
    name = f"{run['arm']}, seed {run['seed']}, of {run['experiment']}"
    gone = run["gone"]
    fell = run["fell"]

    def alert(kind: str, step: int | None, says: str) -> Alert:
        return Alert(run["run_id"], kind, f"{visible(name)}: {kind}", says, step, run["experiment"])

    if gone is not None or run["outcome"] == "diverged":
        at = "" if gone is None else f" at step {gone}"
        yield alert("diverged", gone, f"Training cannot go on: NaN or Inf, or a crashed engine{at}.")
    elif run["status"] == "failed":
        yield alert("failed", None, visible(run["reason"] or "It ended without a message."))
    if fell is not None:
        yield alert("collapsed", fell, f"The collapse rule holds since step {fell}.")
    elif curve is not None and (slump := falling(curve)) is not None:
        lost = f"The median of {SMOOTH} steps of success is {100 * LOST:.0f} % or more below its best"
        yield alert("falling", slump.step, f"{lost}, first at step {slump.step}; {RATE}.")


class Bell:
    """Posts texts to a URL from a thread of its own; the first failure is said, no failure is raised.

    Every alert of a runs folder (of one experiment) is posted once: per run and kind.
    """

    def __init__(self, url: str, say: Callable[[str], None], experiment: str | None = None) -> None:
        """Raise InputError for what is no http or https address."""
        try:
            parts = urlsplit(url)
            bad = (
                parts.scheme not in ("http", "https")
                or not parts.hostname
                or parts.port == 0
                or parts.username
            )
        except ValueError:
            bad = True
        if bad or not url.isascii() or not url.isprintable() or " " in url:
            takes = "--notify takes a webhook like https://ntfy.sh/TOPIC"
            raise InputError(f"'{visible(url)}' is no address to post to; {takes}")
        self.url = url
        self.experiment = experiment
        self._say = say
        self._told = False
        self._known: set[tuple[str, str]] = set()
        self.host = parts.hostname  # a webhook's path is its password: only the host is ever shown
        self._waiting: queue.Queue[tuple[str, str] | None] = queue.Queue()
        self._thread = Thread(target=self._work, name="sorl notify", daemon=True)
        self._thread.start()

    def post(self, title: str, text: str) -> None:
        """Send a text as soon as possible; returns at once."""
        self._waiting.put((title, text))

    def close(self) -> None:
        """Wait a few seconds for what is not sent yet."""
        self._waiting.put(None)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive() and not self._told:
            self._say(f"not every message reached {self.host} in time")

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                with urlopen(self._request(*message), timeout=_SECONDS):
                    pass
            except Exception as error:  # noqa: BLE001 - whatever a server does, training goes on
                if not self._told:
                    why = visible(str(error)).replace(self.url, "")
                    later = "training continues, later messages are still sent"
                    self._say(f"the webhook at {self.host} took no message ({why}); {later}")
                self._told = True

    def _request(self, title: str, text: str) -> Request:
        if "hook" in self.url:  # of a chat: Slack and Mattermost read `text`, Discord reads `content`
            both = f"{title}. {text}"
            body = json.dumps({"title": title, "text": both, "content": both}).encode()
            return Request(self.url, body, {"Content-Type": "application/json"})
        title = " ".join(title.split())  # in a header, as ntfy takes it
        named = title if title.isascii() else Header(title, "utf-8", maxlinelen=10**6).encode()
        return Request(self.url, text.encode(), {"Title": named, "Content-Type": "text/plain; charset=utf-8"})

    def know(self, reader: "Reader") -> list[Alert]:
        """Return the alerts that are new; they are no news any more. Raises what the reader raises."""
        new = [one for one in alerts(reader, self.experiment) if (one.run_id, one.kind) not in self._known]
        self._known |= {(one.run_id, one.kind) for one in new}
        return new

    def look(self, reader: "Reader") -> None:
        """Post the alerts that are new."""
        for alert in self.know(reader):
            self.post(alert.title, alert.says)
