"""The made-up rows that the samples of slime and miles hold, and how their ranks share them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from studies.dump_samples.episodes import Episode, episodes

STEPS = (0, 1, 2)
ONE_UPDATE = 1  # the step with one update; the others have two
SEVERAL_ROWS = 2  # the step where a rollout of several turns is two rows, as after a compaction
STALE_ROLLOUTS = (2, 5)  # begun one step earlier, from step 1 on
FIRST_UPDATE = 4  # rollouts of the first of two updates
SHARDS = 2  # data-parallel ranks
NEW_NOISE = 0.03  # nats


@dataclass(frozen=True)
class SampleRow:
    """What a sample of a dump holds, and what a reader must find; R tokens of the response."""

    rollout: int  # in the step
    index: int  # of the row in the run
    rollout_id: int | None  # of a rollout of several rows
    group: int  # in the run
    prompt: list[int]
    response: list[int]
    written: list[int]  # (R,) 1 where the policy wrote
    behaviour: list[float]  # (R,)
    old: list[float]
    reference: list[float]
    new: list[float]  # at its update
    turns: list[slice]  # of the policy, in the response
    weight_versions: list[str]  # one a turn, as the sampler counts: 1 at step 0
    reward: float
    advantage: float
    is_in_loss: bool
    update: int

    @property
    def tokens(self) -> list[int]:
        """Prompt and response."""
        return self.prompt + self.response

    @property
    def trained(self) -> list[int]:
        """(R,) 1 where the loss has the token."""
        return [flag * self.is_in_loss for flag in self.written]

    @property
    def trajectory(self) -> str:
        """Name of the rollout, as the reader makes it."""
        return f"sample-{self.index}" if self.rollout_id is None else f"rollout-{self.rollout_id}"

    @property
    def steps(self) -> list[int]:
        """Steps whose weights sampled it: the sampler's first version is of step 0."""
        return sorted({int(version) - 1 for version in self.weight_versions})


def truth(step: int) -> list[SampleRow]:
    """The rows of a step in the order of their sampling, always the same."""
    rows: list[SampleRow] = []
    for rollout, episode in enumerate(episodes(step + 1)):
        turns = _turns(episode)
        is_split = step == SEVERAL_ROWS and len(turns) > 1
        if not is_split:
            rows.append(_row(step, len(rows), rollout, episode, turns))
            continue
        rows.append(_row(step, len(rows), rollout, episode, turns[:1]))
        rows.append(_row(step, len(rows), rollout, episode, turns[1:]))
    return rows


def _turns(episode: Episode) -> list[slice]:
    """Where the policy wrote, turn by turn."""
    turns = []
    start = 0
    for end in episode.turn_ends:
        while not episode.written[start]:
            start += 1
        turns.append(slice(start, end))
        start = end
    return turns


def _row(step: int, number: int, rollout: int, episode: Episode, turns: list[slice]) -> SampleRow:
    # The first row of a rollout begins with its prompt; a later one with all that came before its turns.
    is_whole = turns[0].start == 0 and turns[-1].stop == len(episode.response)
    start = turns[0].start
    response = slice(start, turns[-1].stop)
    old = episode.old[response]
    noise = np.random.default_rng([7, step, number]).normal(0, NEW_NOISE, len(old))
    new = np.minimum(np.array(old) + noise, -1e-4).astype(np.float32)
    versions = [str(step + 1)] * len(turns)
    if rollout in STALE_ROLLOUTS and step > 0:
        versions[0] = str(step)
    return SampleRow(
        rollout=rollout,
        index=step * 100 + number,
        rollout_id=None if is_whole else 1000 + rollout,
        group=step * 2 + episode.group,
        prompt=episode.prompt + episode.response[:start],
        response=episode.response[response],
        written=episode.written[response],
        behaviour=episode.behaviour[response],
        old=old,
        reference=episode.reference[response],
        new=new.tolist(),
        turns=[slice(turn.start - start, turn.stop - start) for turn in turns],
        weight_versions=versions,
        reward=episode.reward,
        advantage=episode.advantage,
        is_in_loss=episode.is_in_loss,
        update=int(step != ONE_UPDATE and rollout >= FIRST_UPDATE),
    )


@dataclass(frozen=True)
class Shard:
    """The rows of a data-parallel rank, and the micro-batches it takes them in."""

    partition: list[int]  # positions in the step
    micro_batches: list[list[int]]  # numbers in `partition`
    micro_batch_counts: list[int]  # of each update


def shards(rows: list[SampleRow]) -> list[Shard]:
    """Deal the rows of each update in turn, the last one first: two micro-batches, one in a second update."""
    dealt = [Shard([], [], []) for _ in range(SHARDS)]
    for update in sorted({row.update for row in rows}):
        positions = [position for position, row in enumerate(rows) if row.update == update]
        for rank, shard in enumerate(dealt):
            first = len(shard.partition)
            shard.partition.extend(reversed(positions[rank::SHARDS]))
            local = list(range(first, len(shard.partition)))
            batches = [local[:1], local[1:]] if update == 0 else [local]
            shard.micro_batches.extend(batches)
            shard.micro_batch_counts.append(len(batches))
    return dealt
