"""A client of Search-R1's retrieval server: POST {"queries", "topk", "return_scores"}, a list of passages a query."""

import json
import logging
from collections.abc import Sequence

import urllib3

from workbench.agent.retrievers import Passage, RetrieverDown
from workbench.spec import InputError

log = logging.getLogger("sorl.retriever")
_AGAIN = (429, 500, 502, 503, 504)  # statuses after which the same request may succeed
_SHOWN = 200  # characters of a strange answer that a message quotes


class HTTPRetriever:
    """Asks the server at `url` in batches, again after a failure, each wait twice the one before with jitter.

    While the server is down each request is tried only once, or a run would wait for hours.
    """

    def __init__(self, url: str, timeout: float = 10.0, retries: int = 3, batch: int = 64) -> None:
        parsed = urllib3.util.parse_url(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InputError(f"'{url}' is no address of a retriever; write it like http://127.0.0.1:8000/retrieve")
        self.url = url if parsed.path not in (None, "", "/") else url.rstrip("/") + "/retrieve"
        self._retries, self._batch, self._down = retries, batch, False
        self._pool = urllib3.PoolManager(maxsize=8, timeout=urllib3.Timeout(total=timeout))

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return for each query at most `top_k` passages, best first. Raises RetrieverDown after the last retry."""
        starts = range(0, len(queries), self._batch)
        return [found for start in starts for found in self._ask(list(queries[start : start + self._batch]), top_k)]

    def _ask(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        body = json.dumps({"queries": queries, "topk": top_k, "return_scores": True}).encode()
        try:
            found = _passages(self._post(body), len(queries))
        except (RetrieverDown, urllib3.exceptions.HTTPError) as error:
            reason = str(error)
            if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason is not None:
                reason = str(error.reason).split(">: ", 1)[-1].split("): ", 1)[-1]
            if not self._down:
                log.warning("retriever %s is down: %s", self.url, reason)
            self._down = True
            raise RetrieverDown(f"retriever {self.url} is down: {reason}") from error
        if self._down:
            log.warning("retriever %s is back", self.url)
        self._down = False
        return found

    def _post(self, body: bytes) -> bytes:
        again = urllib3.Retry(
            total=0 if self._down else self._retries, backoff_factor=0.1, backoff_jitter=0.1, backoff_max=5.0,
            allowed_methods=None,  # a question changes nothing, so a POST may be sent again
            status_forcelist=_AGAIN, raise_on_status=False, redirect=0,
        )  # fmt: skip
        headers = {"Content-Type": "application/json"}
        response = self._pool.request("POST", self.url, body=body, headers=headers, retries=again)
        if response.status != 200:
            raise RetrieverDown(f"status {response.status}: {_quoted(response.data)}")
        return response.data


def _passages(answer: bytes, n: int) -> list[list[Passage]]:
    """Return the passages of an answer to `n` queries; RetrieverDown for anything that is not in the protocol."""
    found: list[list[Passage]] = []
    try:
        for result in json.loads(answer)["result"]:
            found.append([])
            for rank, entry in enumerate(result):  # {"document": {...}, "score": x}, or the document alone
                document = entry.get("document", entry)
                contents = document.get("contents")
                if contents is None:  # corpora with title and text apart; joined as Search-R1 prepares its own
                    contents = f'"{document["title"]}"\n{document["text"]}'
                score = float(entry.get("score", -rank))
                found[-1].append(Passage(str(document.get("id", rank)), str(contents), score))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RetrieverDown(f"not an answer of Search-R1's protocol ({error}): {_quoted(answer)}") from None
    if len(found) != n:
        raise RetrieverDown(f"{len(found)} results for {n} queries")
    return found


def _quoted(answer: bytes) -> str:
    return repr(answer[:_SHOWN].decode("utf-8", "replace"))
