"""Writes squad_cases.json: answers, gold answers, and what torchmetrics' SQuAD metric gives them.

    pip install torchmetrics; python tests/agent/data/record_squad.py

torchmetrics (Apache-2.0) is an implementation of SQuAD's evaluation that shares no code with this project.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

HAND_PICKED: list[tuple[str, list[str]]] = [
    ("Lima", ["Lima"]), ("lima", ["LIMA"]), ("Lima.", ["Lima"]), ("the Lima", ["Lima"]), ("Lima", ["Cusco"]),
    ("Lima, Peru", ["Lima"]), ("Lima", ["Lima, Peru"]), ("", ["Lima"]), ("Lima", ["Cusco", "Lima"]),
    ("the", ["a"]), ("The The", ["the"]), ("a an the", ["Lima"]), ("  Lima\t\n", ["Lima"]), ("Lima Lima", ["Lima"]),
    ("1,969", ["1969"]), ("1969", ["1969.0"]), ("3.14", ["3,14"]), ("$5", ["5"]), ("5 %", ["5%"]), ("-5", ["5"]),
    ("10 July 1856", ["July 10, 1856"]), ("São Tomé", ["Sao Tome"]), ("São Tomé", ["são tomé"]),
    ("STRASSE", ["straße"]), ("ﬁn", ["fin"]), ("İstanbul", ["istanbul"]), ("Ωmega", ["ωMEGA"]),
    ("东京", ["東京"]), ("東京", ["東京"]), ("東京 都", ["東京都"]), ("café", ["café"]), ("naïve", ["naive"]),
    ("O'Brien", ["OBrien"]), ("O’Brien", ["O'Brien"]), ("well-known", ["well known"]), ("wellknown", ["well-known"]),
    ("U.S.", ["US"]), ("U. S.", ["US"]), ("AC/DC", ["ACDC"]), ("C++", ["C"]), ("C#", ["C++"]), ("…", ["..."]),
    ("A", ["A"]), ("B", ["b"]), ("vitamin A", ["vitamin"]), ("theatre", ["the atre"]), ("an apple", ["apple"]),
    ("yes", ["no"]), ("yes", ["Yes."]), ("no answer", ["no"]), ("John F. Kennedy", ["John Kennedy"]),
    ("Kennedy John", ["John Kennedy"]), ("John John Kennedy", ["John Kennedy Kennedy"]),
    ("it is Lima which is in Peru", ["Lima"]), ("Lima and Cusco", ["Lima", "Cusco", "Lima Cusco"]),
    ("Paris", ["Lima", "Paris, France", "The Paris."]), ("x", ["x y z", "x y", "y z"]), ("\u00a0Lima\u00a0", ["Lima"]),
    ("Lima\u200b", ["Lima"]), ("😀 Lima", ["Lima"]), ("123 abc", ["abc 123"]), ("<b>Lima</b>", ["bLimab"]),
    ("'", ["\""]), ("the.", ["."]), ("one two three four", ["two four six eight"]), ("0", ["O"]), ("00", ["0"]),
]  # fmt: skip
WORDS = (
    "the", "a", "an", "Lima", "lima", "Peru", "of", "São", "1,969", "12", "Jr.", "O'Hara", "東京", "-", "U.S.", "x",
)  # fmt: skip


def generated(n: int, seed: int) -> list[tuple[str, list[str]]]:
    """Answers and gold answers that share words, with articles, punctuation, accents and repetitions in them."""
    stream = random.Random(seed)

    def text(most: int) -> str:
        words = [stream.choice(WORDS) for _ in range(stream.randint(0, most))]
        spoken = stream.choice((" ", "  ", ", ")).join(words)
        return stream.choice((str.upper, str.lower, str))(spoken) + stream.choice(("", ".", "!", " "))

    return [(text(5), [text(4) for _ in range(stream.randint(1, 3))]) for _ in range(n)]


def judged(answer: str, golds: list[str]) -> dict[str, Any]:
    """The case with its reference scores in [0, 1]."""
    from torchmetrics.functional.text.squad import squad

    target = {"answers": {"answer_start": [0] * len(golds), "text": golds}, "id": "0"}
    scores = squad([{"prediction_text": answer, "id": "0"}], [target])
    return {"answer": answer, "golds": golds, "em": float(scores["exact_match"]) / 100, "f1": float(scores["f1"]) / 100}


if __name__ == "__main__":
    cases = [judged(answer, golds) for answer, golds in [*HAND_PICKED, *generated(240, seed=0)]]
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    Path(__file__).with_name("squad_cases.json").write_text(f"[\n{lines}\n]\n")
