import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sorl.importing.dumps.json_streams import JsonStream
from sorl.importing.dumps.prime_rl_exports import PrimeRlExports
from sorl.importing.dumps.prime_rl_traces import PrimeRlTraces
from sorl.importing.dumps.rows import Sampler
from sorl.spec import InputError
from studies.dump_samples.prime_rl import (
    ENTROPY,
    FORK_BEHAVIOUR,
    FORK_OLD,
    fork_tokens,
    truth,
)

SAMPLES = Path(__file__).parent / "samples" / "prime_rl"
TRACES = Path("monitors") / "file" / "traces"
READER_OF_LAYOUT = {
    "rewards": PrimeRlExports,
    "exports": PrimeRlExports,
    "single_files": PrimeRlTraces,
    "chunks": PrimeRlTraces,
}
LAYOUTS = pytest.mark.parametrize("layout", READER_OF_LAYOUT)
JOINED = pytest.mark.parametrize("layout", ["exports", "single_files", "chunks"])


def read(folder, reader, **options):
    return list(reader(folder, Sampler()).steps(-1, **options))


def sample(layout):
    return read(SAMPLES / layout, READER_OF_LAYOUT[layout])


def trained_rollouts(layout, step):
    return [rollout for rollout in truth(layout)[step] if rollout.episode.is_in_loss]


def main_rows(layout, step):
    """The trained rows by the tokens of the rollout that they are of."""
    return {tuple(row.tokens): row for row in step.rows if row.mask.any()}


def copy(layout, tmp_path):
    shutil.copytree(SAMPLES / layout, tmp_path / layout)
    return tmp_path / layout


def change_line(file, change, line=0):
    lines = file.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[line])
    change(record)
    lines[line] = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    file.write_bytes(b"".join(lines))


# What is in the dumps


@LAYOUTS
def test_each_layout_is_known_by_one_reader(layout):
    for reader in (PrimeRlExports, PrimeRlTraces):
        assert reader.is_in(SAMPLES / layout) == (reader is READER_OF_LAYOUT[layout])


def test_a_folder_of_other_things_is_no_dump(tmp_path):
    (tmp_path / "token_exports" / "step_1").mkdir(parents=True)
    (tmp_path / "token_exports" / "step_1" / "rank_0.jsonl").write_text('{"loss": 1}\n')
    assert not PrimeRlExports.is_in(tmp_path)
    assert not PrimeRlTraces.is_in(tmp_path)


@LAYOUTS
def test_each_step_has_the_tokens_and_log_probs_that_were_written(layout):
    steps = sample(layout)
    tolerance = 6e-5 if layout == "chunks" else 1e-6  # chunks are rounded to 4 decimals
    assert [step.number for step in steps] == list(truth(layout))
    for step in steps:
        rows = main_rows(layout, step)
        for rollout in trained_rollouts(layout, step.number):
            episode = rollout.episode
            row = rows[tuple(episode.tokens)]
            mask = np.array(episode.written, bool)
            assert row.prompt_length == len(episode.prompt)
            assert row.written.tolist() == mask.tolist()
            assert row.mask.tolist() == mask.tolist()
            for name, values in (
                ("log_prob", episode.old),
                ("log_prob_old", episode.behaviour),
                ("log_prob_behaviour", episode.behaviour),
                ("advantages", episode.spread(episode.advantage)),
                ("entropy", episode.spread(ENTROPY)),
            ):
                got = row.columns[name][mask]
                np.testing.assert_allclose(got, np.array(values)[mask], atol=tolerance, err_msg=name)
                assert row.columns[name].dtype == np.float32


@LAYOUTS
def test_rewards_are_those_of_the_rollouts(layout):
    for step in sample(layout):
        rows = main_rows(layout, step)
        for rollout in trained_rollouts(layout, step.number):
            assert rows[tuple(rollout.episode.tokens)].reward == pytest.approx(rollout.episode.reward)


@JOINED
def test_rows_have_group_version_text_and_name_of_their_trace(layout):
    for step in sample(layout):
        rows = main_rows(layout, step)
        for rollout in trained_rollouts(layout, step.number):
            row = rows[tuple(rollout.episode.tokens)]
            assert row.trajectory == rollout.name
            assert row.group == rollout.group
            assert row.version == row.newest_version == rollout.version
            assert row.question == f"question {rollout.episode.group}"
            assert row.ended == "answer"
            if not rollout.has_fork:
                assert row.answer == f"turn {len(rollout.episode.turn_ends)}"


def test_the_second_group_is_a_step_stale():
    step = sample("chunks")[2]
    assert {row.group: step.number - row.version for row in step.rows} == {"group-3-0": 0, "group-3-1": 1}


@JOINED
def test_turns_are_those_of_the_messages(layout):
    for step in sample(layout):
        rows = main_rows(layout, step)
        for rollout in trained_rollouts(layout, step.number):
            row = rows[tuple(rollout.episode.tokens)]
            starts = [0, *rollout.episode.turn_ends[:-1]]
            for turn, (start, end) in enumerate(zip(starts, rollout.episode.turn_ends, strict=True), 1):
                turns = row.turn[start:end][row.written[start:end]]
                assert set(turns.tolist()) == {turn}


@JOINED
def test_a_fork_is_a_second_row_that_trains_its_own_tokens_alone(layout):
    step = sample(layout)[1]
    rows = [row for row in step.rows if row.trajectory == "trace-2-0"]
    rollout = truth(layout)[2][0]
    first_turn = rollout.episode.turn_ends[0]
    assert len(rows) == 2
    fork = rows[1]
    assert fork.tokens.tolist() == fork_tokens(rollout)
    assert fork.mask.tolist() == [False] * (first_turn + 2) + [True] * 2
    assert fork.written.tolist() == [True] * first_turn + [False] * 2 + [True] * 2
    assert fork.turn.tolist() == [1] * (first_turn + 2) + [2] * 2
    np.testing.assert_allclose(fork.columns["log_prob"][fork.mask], FORK_OLD)
    np.testing.assert_allclose(fork.columns["log_prob_behaviour"][fork.mask], FORK_BEHAVIOUR)


def test_a_row_that_the_loss_leaves_out_is_kept_with_no_trained_token():
    for step in sample("chunks"):
        row = next(row for row in step.rows if row.trajectory == f"trace-{step.number}-4")
        assert row.mask.sum() == 0
        assert row.written.sum() == sum(truth("chunks")[step.number][4].episode.written)
        assert "log_prob" not in row.columns


@JOINED
def test_coverage_counts_the_trained_tokens(layout):
    for step in sample(layout):
        expected = sum(sum(rollout.episode.written) for rollout in trained_rollouts(layout, step.number))
        if step.number == 2:
            expected += len(FORK_OLD)
        assert step.coverage.tokens == step.coverage.joined == expected


def test_evaluations_and_agents_that_are_not_trained_are_no_rows():
    for step in sample("chunks"):
        names = {row.trajectory for row in step.rows}
        assert names == {rollout.name for rollout in truth("chunks")[step.number]}


def test_of_steps_that_were_done_again_the_last_attempt_counts():
    dump = PrimeRlTraces(SAMPLES / "chunks", Sampler())
    assert [len(step.rows) for step in dump.steps(-1)] == [6, 7, 6]
    assert (
        "Rollouts of steps that a resumed run did again: 12; those of the last attempt count." in dump.notes
    )


def test_rounded_log_probs_are_noted_where_they_are_rounded():
    for layout, is_rounded in (("chunks", True), ("single_files", False)):
        dump = PrimeRlTraces(SAMPLES / layout, Sampler())
        list(dump.steps(-1))
        assert any("rounded to 4 decimals" in note for note in dump.notes) == is_rounded


def test_rows_without_rollouts_are_grouped_by_their_prompt():
    dump = PrimeRlExports(SAMPLES / "rewards", Sampler())
    steps = list(dump.steps(-1))
    assert steps[0].rows[0].group == steps[0].rows[1].group
    assert steps[0].rows[0].version is None
    assert steps[0].coverage is None
    assert any("rollouts of the batches are missing" in note for note in dump.notes)


# Sampling and following


@JOINED
def test_sampling_keeps_whole_groups_and_what_is_known_of_the_others(layout):
    dump = READER_OF_LAYOUT[layout](SAMPLES / layout, Sampler(bytes_a_step=1))
    for step in dump.steps(-1):
        assert len(step.rows) == len(sample(layout)[step.number - 1].rows)
        for row in step.rows:
            assert not row.is_measured
            assert len(row.tokens) == 0
            assert row.reward is not None
            assert row.group.startswith("group-")


@LAYOUTS
def test_steps_after_a_number_alone_are_read(layout):
    dump = READER_OF_LAYOUT[layout](SAMPLES / layout, Sampler())
    assert [step.number for step in dump.steps(1)] == [number for number in truth(layout) if number > 1]


def test_a_growing_dump_yields_each_step_once_it_is_complete(tmp_path):
    names = ("stream.jsonl", "annotations/orch.jsonl", "annotations/trainer.jsonl")
    (tmp_path / TRACES / "annotations").mkdir(parents=True)
    dump = PrimeRlTraces(tmp_path, Sampler())
    complete = sample("single_files")
    steps = []
    for step in (1, 2):
        for name in names:
            lines = (SAMPLES / "single_files" / TRACES / name).read_bytes().splitlines(keepends=True)
            content = b"".join(line for line in lines if f"trace-{step}-".encode() in line)
            for start in range(0, len(content), 700):  # in parts, in the middle of lines
                assert [found.number for found in steps] == [1] * (step - 1)
                with (tmp_path / TRACES / name).open("ab") as handle:
                    handle.write(content[start : start + 700])
                steps += dump.steps(-1, is_live=True)
    assert [step.number for step in steps] == [1, 2]
    for step, expected in zip(steps, complete, strict=True):
        assert [row.tokens.tolist() for row in step.rows] == [row.tokens.tolist() for row in expected.rows]
        assert step.coverage == expected.coverage
    assert list(dump.steps(-1, is_live=True)) == []


def test_nothing_is_read_again_when_nothing_is_new(monkeypatch):
    dump = PrimeRlTraces(SAMPLES / "chunks", Sampler())
    list(dump.steps(-1, is_live=True))
    read_bytes = []
    line = JsonStream._line
    monkeypatch.setattr(JsonStream, "_line", lambda self: read_bytes.append(line(self)) or read_bytes[-1])
    assert list(dump.steps(-1, is_live=True)) == []
    assert sum(map(len, read_bytes)) == 0


def test_an_export_without_its_mark_is_waited_for_while_it_is_written(tmp_path):
    folder = copy("exports", tmp_path)
    (folder / "token_exports" / "step_2" / "STABLE").unlink()
    for file in (folder / "token_exports" / "step_2").iterdir():
        file.touch()
    dump = PrimeRlExports(folder, Sampler())
    assert [step.number for step in dump.steps(-1, is_live=True)] == [1]
    assert [step.number for step in dump.steps(1)] == [2]


def test_of_two_forms_of_a_chunk_the_plain_one_is_read(tmp_path):
    folder = copy("chunks", tmp_path)
    sealed = folder / TRACES / "annotations" / "orch" / "00000.jsonl.zst"
    stream = JsonStream(sealed.parent, b"{", lambda sentence: None)
    lines = []
    while len(lines) < 5:
        lines.append(json.dumps(stream.read(is_live=False).value).encode() + b"\n")
    stream.close()
    sealed.write_bytes(b"half a file")
    plain = sealed.with_name("00000.jsonl")
    rest = JsonStream(SAMPLES / "chunks" / TRACES / "annotations" / "orch", b"{", lambda sentence: None)
    with plain.open("wb") as handle:
        while (record := rest.read(is_live=False)) is not None and record.file.name == "00000.jsonl.zst":
            handle.write(json.dumps(record.value, separators=(",", ":")).encode() + b"\n")
    assert [len(step.rows) for step in read(folder, PrimeRlTraces)] == [6, 7, 6]


def test_a_plain_chunk_that_is_compressed_between_two_calls_goes_on_where_it_was(tmp_path):
    folder = copy("chunks", tmp_path) / TRACES / "annotations" / "trainer"
    names = sorted(path.name for path in folder.iterdir())
    sealed = folder / next(name for name in names if name.endswith(".zst"))
    import pyarrow as pa

    text = pa.CompressedInputStream(pa.OSFile(str(sealed)), "zstd").read()
    plain = sealed.with_suffix("")
    content = sealed.read_bytes()
    sealed.unlink()
    plain.write_bytes(text)
    stream = JsonStream(folder, b"{", lambda sentence: None)
    first = stream.read(is_live=True)
    stream.close()
    plain.unlink()
    sealed.write_bytes(content)
    second = stream.read(is_live=True)
    lines = text.splitlines()
    assert first.value == json.loads(lines[0])
    assert second.value == json.loads(lines[1])


# Crashes


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "annotations" / "trainer.jsonl"
    with file.open("ab") as handle:
        handle.write(b'{"version":1,"trace_id":"trace-3')
    assert [step.number for step in read(folder, PrimeRlTraces)] == [1, 2]


def test_a_line_behind_a_torn_one_is_found(tmp_path):
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "annotations" / "trainer.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[0][:40] + lines[1]
    file.write_bytes(b"".join(lines))
    dump = PrimeRlTraces(folder, Sampler())
    steps = list(dump.steps(-1))
    assert [step.coverage.joined for step in steps] == [
        step.coverage.joined for step in sample("single_files")
    ]
    assert "Lines that a crash cut off: 1; they are left out." in dump.notes


def test_a_step_that_was_sent_twice_at_different_times_is_one_step(tmp_path):
    folder = copy("single_files", tmp_path)
    root = folder / TRACES
    for name in ("stream", "annotations/orch", "annotations/trainer"):
        file = root / f"{name}.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        of_step_2 = [line for line in lines if "trace-2-" in line]
        again = [line.replace("trace-2-", "trace-again-") for line in of_step_2]
        again = [line.replace('"time":17900000', '"time":17900009') for line in again]
        file.write_text("".join(lines + again))
    dump = PrimeRlTraces(folder, Sampler())
    steps = list(dump.steps(-1))
    assert [row.trajectory for row in steps[1].rows] == ["trace-again-0", "trace-again-0", "trace-again-1"]


def test_an_annotation_that_came_twice_counts_once(tmp_path):
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "annotations" / "trainer.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    newer = json.loads(lines[0])
    values = newer["branches"][0]["trainer_logprobs"]
    newer["branches"][0]["trainer_logprobs"] = [None if value is None else -4.5 for value in values]
    file.write_bytes(b"".join([lines[0], json.dumps(newer).encode() + b"\n", *lines[1:]]))
    dump = PrimeRlTraces(folder, Sampler())
    row = next(dump.steps(-1)).rows[0]
    assert set(row.columns["log_prob"][row.mask].tolist()) == {-4.5}
    assert "Annotations of a branch that came twice: 1; the newest counts." in dump.notes


def test_annotations_whose_episode_is_missing_are_counted_as_not_joined(tmp_path):
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "stream.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if b'"trace-1-1"' not in line))
    step = read(folder, PrimeRlTraces)[0]
    tokens = sum(truth("single_files")[1][1].episode.written)
    assert step.coverage.reasons == {"its episode is not in the stream": tokens}
    assert step.coverage.joined == step.coverage.tokens - tokens


def test_exported_rows_that_no_rollout_has_are_counted_as_not_joined(tmp_path):
    folder = copy("exports", tmp_path)
    file = folder / "token_exports" / "step_1" / "rank_0.jsonl"
    change_line(file, lambda record: record["token_ids"].__setitem__(0, 5))
    step = read(folder, PrimeRlExports)[0]
    tokens = sum(truth("exports")[1][0].episode.written)
    assert step.coverage.reasons == {"its tokens are in no rollout of the batch": tokens}
    assert step.rows[0].group is None


def test_an_export_that_the_context_cut_off_finds_its_rollout(tmp_path):
    folder = copy("exports", tmp_path)
    file = folder / "token_exports" / "step_1" / "rank_0.jsonl"
    kept = len(truth("exports")[1][0].episode.tokens) - 3

    def cut(record):
        for key, value in record.items():
            if isinstance(value, list):
                record[key] = value[:kept]

    change_line(file, cut)
    row = read(folder, PrimeRlExports)[0].rows[0]
    assert row.trajectory == "trace-1-0"
    assert len(row.tokens) == kept


def test_null_where_a_trained_log_prob_belongs_stays_not_a_number_in_an_export(tmp_path):
    folder = copy("exports", tmp_path)
    file = folder / "token_exports" / "step_1" / "rank_0.jsonl"
    prompt = len(truth("exports")[1][0].episode.prompt)
    change_line(file, lambda record: record["trainer_logprobs"].__setitem__(prompt, None))
    dump = PrimeRlExports(folder, Sampler())
    row = next(dump.steps(-1)).rows[0]
    assert np.isnan(row.columns["log_prob"]).tolist() == [True] + [False] * (len(row.written) - 1)
    assert "Trained tokens whose log-prob was not finite: 1; they stay NaN." in dump.notes


def test_tokens_that_another_loss_trains_do_not_count_as_trained(tmp_path):
    folder = copy("exports", tmp_path)
    file = folder / "token_exports" / "step_1" / "rank_0.jsonl"
    change_line(file, lambda record: record.update(rl_weights=[0.0] * len(record["token_ids"])))
    assert read(folder, PrimeRlExports)[0].rows[0].mask.sum() == 0


def test_a_sampled_token_that_the_trainer_left_out_is_not_trained(tmp_path):
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "annotations" / "trainer.jsonl"
    prompt = len(truth("single_files")[1][0].episode.prompt)
    change_line(file, lambda record: record["branches"][0]["trainer_logprobs"].__setitem__(prompt, None))
    row = read(folder, PrimeRlTraces)[0].rows[0]
    assert not row.mask[0]
    assert row.written[0]
    assert row.columns["log_prob"][0] == 0


def test_a_rejected_compaction_is_no_row(tmp_path):
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "stream.jsonl"
    number = next(n for n, line in enumerate(file.read_bytes().splitlines()) if b"trace-2-0" in line)
    link = [{"node": 1, "type": "compaction_attempt"}]
    change_line(file, lambda record: record["traces"][0]["nodes"][-1].update(semantic_parents=link), number)
    (folder / TRACES / "annotations" / "trainer.jsonl").unlink()
    dump = PrimeRlTraces(folder, Sampler())
    rows = list(dump.steps(-1))[1].rows
    assert [row.trajectory for row in rows] == ["trace-2-0", "trace-2-1"]
    assert (
        "The trainer's annotations are missing, so its log-probs and entropies are not known." in dump.notes
    )
    assert "log_prob" not in rows[0].columns
    assert rows[0].mask.tolist() == rows[0].written.tolist()


# Hostile input


def one_line(error, file):
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)


def set_in(*path, value):
    def change(record):
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_in("token_ids", value=[1, 2]),
        set_in("token_ids", value=None),
        set_in("token_ids", 0, value=-1),
        set_in("token_ids", 0, value=2**40),
        set_in("token_ids", 0, value="a"),
        set_in("token_ids", 0, value=None),
        set_in("token_ids", value={"a": 1}),
        set_in("loss_mask", value=[[True]]),
        set_in("loss_mask", 0, value="yes"),
        set_in("trainer_logprobs", value=[-1.0]),
        set_in("inference_logprobs", 1, value=[1.0]),
        set_in("rl_weights", value=[1.0]),
        set_in("step", value=7),
    ],
)
def test_an_export_in_another_form_is_refused(tmp_path, change):
    folder = copy("exports", tmp_path)
    file = folder / "token_exports" / "step_1" / "rank_0.jsonl"
    change_line(file, change)
    with pytest.raises(InputError, match=r"row 0|no list") as error:
        read(folder, PrimeRlExports)
    one_line(error, file)


@pytest.mark.parametrize(
    "change",
    [
        set_in("traces", value={"a": 1}),
        set_in("traces", 0, value=7),
        set_in("traces", 0, "id", value=None),
        set_in("traces", 0, "info", value=[]),
        set_in("traces", 0, "nodes", value=3),
        set_in("traces", 0, "nodes", 0, value=4),
        set_in("traces", 0, "nodes", 1, "parent", value=1),
        set_in("traces", 0, "nodes", 1, "parent", value=-1),
        set_in("traces", 0, "nodes", 1, "parent", value=10**9),
        set_in("traces", 0, "nodes", 1, "parent", value="0"),
        set_in("traces", 0, "nodes", 1, "mask", value=[True]),
        set_in("traces", 0, "nodes", 1, "logprobs", value=[]),
        set_in("traces", 0, "nodes", 1, "token_ids", 0, value=-7),
        set_in("traces", 0, "rewards", value=[1.0]),
        set_in("traces", 0, "rewards", "correct", value={"score": "high"}),
        set_in("group", value="g"),
        set_in("run", value=1),
    ],
)
def test_an_episode_in_another_form_is_refused(tmp_path, change):
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "stream.jsonl"
    change_line(file, change)
    with pytest.raises(InputError) as error:
        read(folder, PrimeRlTraces)
    one_line(error, file)


@pytest.mark.parametrize(
    ("producer", "change"),
    [
        ("orch", set_in("info", "ship", value={"step": "1"})),
        ("orch", set_in("info", "ship", value={"step": -3})),
        ("orch", set_in("info", "ship", value=3)),
        ("orch", set_in("trace_id", value=3)),
        ("orch", set_in("branches", value={"a": 1})),
        ("orch", set_in("branches", 0, value=1)),
        ("orch", set_in("branches", 0, "index", value=-1)),
        ("orch", set_in("branches", 0, "advantages", value=[[1.0]])),
        ("orch", set_in("branches", 0, "advantages", value=[0.5] * 10_000)),
        ("trainer", set_in("branches", 0, "trainer_logprobs", value=["a"])),
        ("trainer", set_in("branches", 0, "trainer_logprobs", value=[-0.5] * 10_000)),
        ("trainer", set_in("branches", 0, "entropies", value=[0.5])),
    ],
)
def test_an_annotation_in_another_form_is_refused(tmp_path, producer, change):
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "annotations" / f"{producer}.jsonl"
    change_line(file, change)
    with pytest.raises(InputError) as error:
        read(folder, PrimeRlTraces)
    one_line(error, folder)


def test_a_branch_that_the_rollout_lacks_is_not_joined(tmp_path):
    folder = copy("single_files", tmp_path)
    change_line(
        folder / TRACES / "annotations" / "trainer.jsonl", set_in("branches", 0, "index", value=10**12)
    )
    tokens = sum(truth("single_files")[1][0].episode.written)
    step = read(folder, PrimeRlTraces)[0]
    assert step.coverage.reasons == {"its rollout has no branch of that number": tokens}


@pytest.mark.parametrize("content", [b"no compression", b"\x00" * 100, b"\x28\xb5\x2f\xfd" + b"\xff" * 50])
def test_a_damaged_chunk_is_refused(tmp_path, content):
    folder = copy("chunks", tmp_path)
    file = folder / TRACES / "stream" / "00000.jsonl.zst"
    file.write_bytes(content)
    with pytest.raises(InputError) as error:
        read(folder, PrimeRlTraces)
    one_line(error, file)


def test_a_chunk_cut_in_half_is_refused(tmp_path):
    folder = copy("chunks", tmp_path)
    file = folder / TRACES / "stream" / "00000.jsonl.zst"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(InputError) as error:
        read(folder, PrimeRlTraces)
    one_line(error, file)


@pytest.mark.parametrize("line", [b"garbage\n", b"{broken\n", b"[1]\n", b"[" * 100_000 + b"\n"])
def test_a_line_that_is_no_object_is_refused(tmp_path, line):
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "annotations" / "trainer.jsonl"
    file.write_bytes(line + file.read_bytes())
    with pytest.raises(InputError) as error:
        read(folder, PrimeRlTraces)
    one_line(error, file)


def test_a_trace_whose_branches_repeat_a_huge_prefix_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sorl.importing.dumps.prime_rl_episodes.MOST_BRANCH_TOKENS", 1000)
    folder = copy("single_files", tmp_path)
    file = folder / TRACES / "stream.jsonl"

    def repeat(record):
        nodes = record["traces"][0]["nodes"]
        nodes[0].update(token_ids=[1] * 100, mask=[False] * 100)
        nodes.extend({**nodes[1], "parent": 0} for _ in range(20))

    change_line(file, repeat)
    with pytest.raises(InputError, match="more than can be read") as error:
        read(folder, PrimeRlTraces)
    one_line(error, file)


def test_streams_without_the_orchestrator_are_refused_with_the_version_that_has_it(tmp_path):
    folder = copy("single_files", tmp_path)
    (folder / TRACES / "annotations" / "orch.jsonl").unlink()
    with pytest.raises(InputError, match="#3444"):
        read(folder, PrimeRlTraces)


def test_one_file_for_all_steps_is_refused_with_the_version_that_writes_folders(tmp_path):
    folder = copy("rewards", tmp_path)
    shutil.move(folder / "token_exports" / "step_1" / "rank_0.jsonl", folder / "token_exports")
    for step in (1, 2):
        shutil.rmtree(folder / "token_exports" / f"step_{step}")
    assert PrimeRlExports.is_in(folder)
    with pytest.raises(InputError, match="badd2b0fe"):
        read(folder, PrimeRlExports)


def test_reading_does_not_load_torch():
    script = (
        "import sys; from pathlib import Path; from sorl.importing.dumps.rows import Sampler;"
        " from sorl.importing.dumps.prime_rl_traces import PrimeRlTraces;"
        f" list(PrimeRlTraces(Path({str(SAMPLES / 'chunks')!r}), Sampler()).steps(-1));"
        " assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
