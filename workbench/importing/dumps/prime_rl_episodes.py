"""Episode records of prime-rl: traces of agents, each a graph of messages whose paths are training rows.

Records are those of `Episode.to_record` in verifiers (read in 0.4.0), where a field that was None is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sorl.importing.dumps.files import flags, floats, token_ids
from sorl.importing.dumps.rows import Row
from sorl.spec import InputError

LONGEST_QUESTION = 2_000  # characters
LONGEST_ANSWER = 500  # characters
MOST_BRANCH_TOKENS = 2**26  # of all branches of one trace: each holds the tokens that it shares again

# Conditions that stop a trace, as far as they say how it ended.
ENDINGS = {
    "max_turns": "max_turns",
    "max_input_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_total_tokens": "max_tokens",
}


@dataclass(frozen=True)
class Node:
    """One message: the tokens that it adds, and which of them the policy wrote."""

    parent: int | None
    tokens: np.ndarray  # int32
    written: np.ndarray  # bool, as long as `tokens`
    log_probs: np.ndarray  # float32, of the sampler, one for each token that was written
    is_rejected: bool  # a compaction that the agent did not go on from: its branch is not trained


@dataclass(frozen=True)
class Branch:
    """A path from a root to a leaf. All arrays are as long as `tokens`, prompt included."""

    index: int  # among all leaves, by the numbers of their nodes
    tokens: np.ndarray
    written: np.ndarray
    is_first: np.ndarray  # bool: no earlier branch has the token, so this one trains it
    turn: np.ndarray | None  # sampled messages so far, this one included; None: not known
    log_probs: np.ndarray  # of the sampler; 0 where nothing was written
    is_trainable: bool = True

    def cut(self, length: int) -> Branch:
        """The branch as a trainer with a shorter context sees it."""
        return replace(
            self,
            tokens=self.tokens[:length],
            written=self.written[:length],
            is_first=self.is_first[:length],
            turn=None if self.turn is None else self.turn[:length],
            log_probs=self.log_probs[:length],
        )

    @property
    def to_train(self) -> np.ndarray:
        """Where the trainer is asked to train: what was written, once for all branches that share it."""
        return self.written & self.is_first

    def row(self, rollout: Row, trained: np.ndarray, columns: Mapping[str, np.ndarray]) -> Row:
        """The training row; `rollout` holds what is known of its trace, `columns` are as long as `tokens`.

        The response begins at the first token that the policy wrote.
        """
        start = int(self.written.argmax()) if self.written.any() else len(self.tokens)
        return replace(
            rollout,
            tokens=self.tokens,
            prompt_length=start,
            written=self.written[start:],
            trained=trained[start:],
            turn=None if self.turn is None else self.turn[start:],
            columns={name: values[start:].astype(np.float32) for name, values in columns.items()},
            is_measured=True,
        )


@dataclass(frozen=True)
class Trace:
    """What one agent did in an episode."""

    rollout: Row  # what is known of it, without tokens; its versions are those of the policy span plus one
    nodes: Sequence[Node]
    is_training: bool  # of a training episode, by an agent that is trained
    arrival_time: float | None  # seconds

    def branches(self) -> list[Branch]:
        """All paths, in the order of their leaves: the numbers that annotations have."""
        parents = {node.parent for node in self.nodes}
        leaves = [number for number in range(len(self.nodes)) if number not in parents]
        trained_nodes: set[int] = set()
        branches = []
        for index, leaf in enumerate(leaves):
            branch = self._branch(index, self._path(leaf), trained_nodes)
            branches.append(branch)
            if branch.is_trainable:
                trained_nodes.update(self._path(leaf))
        return branches

    def _path(self, leaf: int) -> list[int]:
        path = []
        number: int | None = leaf
        while number is not None:
            path.append(number)
            number = self.nodes[number].parent
        return path[::-1]

    def _branch(self, index: int, path: list[int], trained_nodes: set[int]) -> Branch:
        nodes = [self.nodes[number] for number in path]
        lengths = [len(node.tokens) for node in nodes]
        is_turn = [bool(node.written.any()) for node in nodes]
        written = _joined([node.written for node in nodes], np.bool_)
        log_probs = np.zeros(len(written), np.float32)
        log_probs[written] = _joined([node.log_probs for node in nodes], np.float32)
        is_first = np.repeat([number not in trained_nodes for number in path], lengths)
        return Branch(
            index,
            tokens=_joined([node.tokens for node in nodes], np.int32),
            written=written,
            is_first=is_first.astype(bool),
            turn=np.repeat(np.cumsum(is_turn), lengths).astype(np.int32),
            log_probs=log_probs,
            is_trainable=not nodes[-1].is_rejected,
        )


def traces_of_episode(episode: Mapping[str, Any], file: Path) -> Iterator[Trace]:
    """Yield the traces of an episode record. Raises InputError where it has another form."""
    known = _versions(episode, file)
    group = _mapping(episode.get("group"), "group", file).get("id")
    for record in _list(episode.get("traces"), "traces", file):
        trace = _mapping(record, "a trace", file)
        name = trace.get("id")
        if not isinstance(name, str):
            raise InputError(f"'{file}': a trace of episode {episode.get('id')} has no id")
        info = _mapping(trace.get("info"), f"trace {name}: info", file)
        agent = _mapping(trace.get("agent"), f"trace {name}: agent", file)
        arrival = _mapping(info.get("arrival"), f"trace {name}: info.arrival", file)
        nodes = _nodes(trace, f"trace {name}", file)
        rollout = replace(
            known,
            trajectory=name,
            group=None if group is None else str(group),
            reward=_reward(trace, name, file),
            question=_question(trace, file),
            answer=_answer(trace),
            ended=_ending(trace, file),
        )
        is_training = info.get("kind", "train") == "train" and agent.get("trainable", True) is not False
        yield Trace(rollout, nodes, is_training, _number(arrival.get("time")))


def rollout_at(rollout: Row, step: int) -> Row:
    """The rollout as training step `step` sees it: never sampled by weights that came after."""
    if rollout.version is None:
        return rollout
    newest = rollout.version if rollout.newest_version is None else rollout.newest_version
    return replace(rollout, version=min(step, rollout.version), newest_version=min(step, newest))


def _versions(episode: Mapping[str, Any], file: Path) -> Row:
    """A row with the weights that sampled the episode.

    prime-rl calls the weights after k updates policy k, and step k + 1 trains them: that is the version here.
    """
    run = _mapping(episode.get("run"), "run", file)
    work = _mapping(run.get("work"), "run.work", file)
    policy = _mapping(work.get("policy"), "run.work.policy", file)
    start = _number(policy.get("start"))
    end = _number(policy.get("end"))
    return Row(
        "",
        np.zeros(0, np.int32),
        0,
        np.zeros(0, bool),
        version=None if start is None else int(start) + 1,
        newest_version=None if end is None else int(end) + 1,
        is_measured=False,
    )


def _nodes(trace: Mapping[str, Any], where: str, file: Path) -> list[Node]:
    records = _list(trace.get("nodes"), f"{where}: nodes", file)
    accepted = _accepted_compactions(records)
    nodes: list[Node] = []
    depth_tokens: list[int] = []  # tokens from the root to each node
    for number, record in enumerate(records):
        node = _node(record, number, f"{where}, node {number}", file, accepted)
        nodes.append(node)
        before = 0 if node.parent is None else depth_tokens[node.parent]
        depth_tokens.append(before + len(node.tokens))
    parents = {node.parent for node in nodes}
    total = sum(tokens for number, tokens in enumerate(depth_tokens) if number not in parents)
    if total > MOST_BRANCH_TOKENS:
        raise InputError(f"'{file}': {where}: its branches have {total} tokens, more than can be read")
    return nodes


def _node(record: Any, number: int, where: str, file: Path, accepted: set[int]) -> Node:
    fields = _mapping(record, where, file)
    parent = fields.get("parent")
    if parent is not None and not (type(parent) is int and 0 <= parent < number):
        raise InputError(f"'{file}': {where}: its parent {parent!r} is no earlier node")
    tokens = token_ids(fields.get("token_ids") or [], f"{where}: token_ids", file)
    written = flags(fields.get("mask") or [], f"{where}: mask", file)
    log_probs = floats(fields.get("logprobs") or [], f"{where}: logprobs", file)
    if len(written) != len(tokens):
        raise InputError(f"'{file}': {where}: mask has {len(written)} entries for {len(tokens)} tokens")
    if len(log_probs) != written.sum():
        problem = f"logprobs has {len(log_probs)} entries for {written.sum()} sampled tokens"
        raise InputError(f"'{file}': {where}: {problem}")
    types = {link.get("type") for link in _links(fields)}
    is_rejected = "compaction_attempt" in types and number not in accepted
    return Node(parent, tokens, written, log_probs, is_rejected)


def _accepted_compactions(records: Sequence[Any]) -> set[int]:
    """Nodes that a later message names as the compaction it goes on from."""
    accepted = set()
    for record in records:
        for link in _links(record):
            if link.get("type") == "compaction" and isinstance(link.get("node"), int):
                accepted.add(link["node"])
    return accepted


def _links(record: Any) -> list[Mapping[str, Any]]:
    links = record.get("semantic_parents") if isinstance(record, dict) else None
    return [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []


def _reward(trace: Mapping[str, Any], name: str, file: Path) -> float | None:
    """Sum of the rewards by their weights; None where nothing was scored."""
    total: float | None = None
    for reward, given in _mapping(trace.get("rewards"), f"trace {name}: rewards", file).items():
        if given is None:
            continue
        parts = _mapping(given, f"trace {name}: reward {reward}", file)
        score = _number(parts.get("score"))
        weight = _number(parts.get("weight", 1.0))
        if score is None or weight is None:
            raise InputError(f"'{file}': trace {name}: reward {reward} is no number")
        total = (total or 0.0) + score * weight
    return total


def _question(trace: Mapping[str, Any], file: Path) -> str | None:
    data = _mapping(trace.get("task"), "task", file).get("data")
    prompt = data.get("prompt") if isinstance(data, dict) else None
    return prompt if isinstance(prompt, str) and len(prompt) <= LONGEST_QUESTION else None


def _answer(trace: Mapping[str, Any]) -> str | None:
    """The last message of the assistant, if it is short text."""
    for node in reversed(trace.get("nodes") or []):
        message = node.get("message")
        if node.get("sampled") and isinstance(message, dict) and message.get("role") == "assistant":
            content = message.get("content")
            return content if isinstance(content, str) and len(content) <= LONGEST_ANSWER else None
    return None


def _ending(trace: Mapping[str, Any], file: Path) -> str | None:
    calls = _list(trace.get("calls"), "calls", file)
    last = calls[-1].get("finish_reason") if calls and isinstance(calls[-1], dict) else None
    stopped_by = trace.get("stop_condition")
    if isinstance(stopped_by, str) and stopped_by in ENDINGS:
        return ENDINGS[stopped_by]
    if last == "length":
        return "max_tokens"
    return "answer" if last == "stop" and trace.get("is_completed") is True else None


def _joined(arrays: Sequence[np.ndarray], kind: Any) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, kind)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and np.isfinite(value) else None


def _mapping(value: Any, what: str, file: Path) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"'{file}': {what} is no JSON object")
    return value


def _list(value: Any, what: str, file: Path) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError(f"'{file}': {what} is no list")
    return value
