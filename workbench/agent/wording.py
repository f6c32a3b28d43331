"""The words around a question and an observation: plain for a policy that has learned the protocol, or Search-R1's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """`prompt` holds {question}, `information` holds {found}; `chat` puts the prompt into the tokenizer's template."""

    prompt: str
    information: str
    invalid: str
    chat: bool

    def asked(self, question: str) -> str:
        """Return what the policy reads first, before a chat template."""
        question = question.strip()
        return self.prompt.replace("{question}", question if question.endswith("?") else f"{question}?")

    def observed(self, found: str | None) -> str:
        """Return what the policy reads after a turn; None is an action that could not be read."""
        return self.invalid if found is None else self.information.replace("{found}", found.strip())


PLAIN = Wording("{question}", " <information> {found} </information> ", " <information> invalid </information> ", False)

# Word for word as PeterGriffinJin/Search-R1: make_prefix of scripts/data_process/nq_search.py, and
# execute_predictions of search_r1/llm_agent/generation.py.
SEARCH_R1 = Wording(
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query "
    "</search> and it will return the top searched results between <information> and </information>. You can search as "
    "many times as your want. If you find no further external knowledge needed, you can directly provide the answer "
    "inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. "
    "Question: {question}\n",
    "\n\n<information>{found}</information>\n\n",
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I "
    "want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n",
    True,
)

WORDINGS = {"plain": PLAIN, "search-r1": SEARCH_R1}
