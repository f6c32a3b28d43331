"""Rewrites the scores of squad_cases.json with torchmetrics' SQuAD metric, which shares no code with this
project.

    pip install torchmetrics; python tests/agent/data/record_squad.py

The answers are 70 hand-picked ones (case, articles, punctuation, accents, scripts) and 240 drawn from such
words.
"""

import json
from pathlib import Path

from torchmetrics.functional.text.squad import squad

if __name__ == "__main__":
    file = Path(__file__).with_name("squad_cases.json")
    cases = json.loads(file.read_text())
    for case in cases:
        target = {"answers": {"answer_start": [0] * len(case["golds"]), "text": case["golds"]}, "id": "0"}
        scores = squad([{"prediction_text": case["answer"], "id": "0"}], [target])
        case |= {"em": float(scores["exact_match"]) / 100, "f1": float(scores["f1"]) / 100}
    lines = ",\n".join(json.dumps(case) for case in cases)
    file.write_text(f"[\n{lines}\n]\n")
