"""`sorl run` over the scripted trainer: its table and answer, bad ends and their causes, edits, starting
over.
"""

from functools import partial
from threading import Thread

import pytest

from sorl.store.sync import sync
from tests.cli.command import FELL, IDLE, ONE_FALLS, STOOD, done, grid_file, refused, sorl, told
from tests.diagnosis.test_alerts import Inbox
from tests.store.processes import HOLD, python


def table_after(output: str, title: str) -> list[list[str]]:
    """The lines of the table under `title` without its header, split at two spaces."""
    lines = output.split(f"\n{title}\n", 1)[1].split("\n\n")[0].splitlines()
    return [[part.strip() for part in line.split("  ") if part.strip()] for line in lines if line][2:]


def test_a_grid_ends_with_its_table_and_an_answer_and_trains_nothing_twice(here):
    path = grid_file(here, **ONE_FALLS)
    result = done("run", path)
    header, _, *rows = result.stdout.splitlines()[:4]
    assert header.split("  ")[0] == "arm"
    assert [row.split()[0] for row in rows] == ["ppo", "st-ppo"]
    assert "2/2 [16 %, 100 %]" in rows[0]  # Clopper-Pearson of 2 in 2: 0.025 ** (1 / 2) = 0.158
    for words in ("0/2 [0 %, 84 %]", "0.72, 0.72", "2.50"):
        assert words in rows[1]
    assert "Which of the two arms stays up?" in result.stdout
    assert "Final: the mean of the last ten" in result.stderr
    assert "Collapsed: ppo in 2 of 2 (onset near step 12). Did not collapse: st-ppo." in result.stdout
    assert "may still do so in up to 84 % of runs" in result.stdout
    assert "finished  ppo" in result.stderr
    assert "finished  ppo" not in result.stdout, "progress is no result"
    assert "Ended badly" not in result.stdout
    look, see = (line.split("#")[0].split()[1:] for line in result.stderr.splitlines()[-2:])
    assert (look, see) == (["diagnose", "demo"], ["app"])
    assert "ppo-s0" in done(*look).stdout
    for form, cell in (("table", "2/2 [16 %, 100 %]"), ("latex", r"2/2 [16 \%, 100 \%] &")):
        assert cell in done("compare", "demo", "--format", form).stdout
    again = done("run", path)
    assert again.stdout == result.stdout
    assert "4 already finished; 0 to run" in again.stderr
    edited = "Edited: ppo seeds 0, 1; st-ppo seeds 0, 1 ran before with learn.policy.lr = 0.15, now 0.1;"
    assert edited in done("plan", path, "--set", "learn.policy.lr=0.1").stdout
    assert "2 cells; 2 to run" in sorl("run", path, "--set", "iterations=2", "--set", "seeds=[0]").stderr
    compared = done("compare", "demo").stdout
    assert "ppo #2: iterations = 2" in compared, "runs with other settings are no replicates"
    assert "different numbers of rollouts" in compared


def test_cells_that_ended_badly_are_named_with_their_causes_and_the_exit_code_says_so(here):
    bad = {"ppo": {"fail_at": 2}, "st-ppo": {"nan_at": 2}, "grpo": {"grow_at": 2}, "s-ppo": {"hang_at": 2}}
    path = grid_file(here, seeds="[0]", **bad)
    path.write_text(path.read_text().replace('"st-ppo"]', '"st-ppo", "grpo", "s-ppo"]'))
    result = sorl("run", path, "--memory", "0.6", "--hang-seconds", "3", "--workers", "2")
    assert result.exit_code == 1
    rows = table_after(result.stdout, "Ended badly")
    diverged = ["st-ppo", "0", "diverged", "loss or gradient is not finite in step 1"]
    assert rows[:2] == [["ppo", "0", "failed", "RuntimeError: scripted failure"], diverged]
    assert [row[2] for row in rows[2:]] == ["out of memory", "hang"]
    assert "over the limit of 0.6 GiB a cell (--memory)" in rows[2][3]
    assert "in step 1, in wait_for_an_answer_that_never_comes" in rows[3][3]
    assert "retry 1 of 1: ppo seed 0: RuntimeError: scripted failure" in result.stderr
    assert result.stderr.count("console.log, or `sorl show ") == 4
    assert "ppo 0 of 1" in result.stdout, "the answer says what it does not rest on"
    assert "wait_for_an_answer_that_never_comes" in done("show", "s-ppo").stdout.split("End of ")[1]
    shown = done("show", "ppo-s0").stdout
    assert "attempt         2" in shown
    assert (
        "attempt 2 starts from the checkpoint after 1 steps; before it: RuntimeError: scripted failure"
        in shown
    )
    assert "withdrawn" not in done("rescan", "demo").stdout, "no rule judges what happened to a process"
    again = sorl("run", path, "--arm", "st-ppo")
    assert diverged in table_after(again.stdout, "Ended badly"), "also when it ended before this call"


@pytest.mark.usefixtures("here")
def test_cells_that_ended_while_another_process_holds_the_database_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr("sorl.cli.run.sync", partial(sync, seconds=0.1))
    (tmp_path / "runs").mkdir()
    holder = python(HOLD, tmp_path / "runs" / "sorl.duckdb")
    try:
        assert holder.stdout.readline() == "open\n"
        result = done("run", grid_file(tmp_path, seeds="[0]"), runs=tmp_path / "runs")
    finally:
        holder.communicate(timeout=60)
    assert f"is held open by PID {holder.pid}" in result.stderr
    assert result.stdout.count("finished") == 2
    assert "`sorl compare demo` shows it then" in result.stderr


def test_fresh_starts_over_and_the_tables_show_the_newest_start_only(here):
    path = grid_file(here, **ONE_FALLS)
    assert "Collapsed: ppo in 2 of 2" in done("run", path).stdout
    grid_file(here, **{"ppo": STOOD, "st-ppo": STOOD})
    result = done("run", path, "--fresh")
    assert "No arm collapsed (4 runs)." in result.stdout
    assert "No arm collapsed (4 runs)." in done("compare", "demo").stdout
    assert done("run", path).stdout == result.stdout, "the plain command stays with the newest start"
    listed = done("ls", "demo").stdout
    everything = done("ls", "demo", "--all").stdout
    assert listed.startswith("demo: 4 runs, 4 finished\n")
    assert everything.startswith("demo: 8 runs, 8 finished, 2 collapsed\n")
    assert listed.count("-g2") == everything.count("-g2") == 4
    shown = done("show", "ppo-s0").stdout
    newest = shown.splitlines()[0]
    assert newest.endswith("-g2"), "of one cell's starts the newest is meant"
    assert "generation      2" in shown
    old = newest.removesuffix("-g2")
    assert done("show", old).stdout.splitlines()[0] == old
    grid_file(here, **{"ppo": {"fail_at": 1}, "st-ppo": STOOD})
    assert sorl("run", path, "--fresh", "--retries", "0").exit_code == 1
    assert "4 cells (2 arms x 2 seeds), 2 finished; about" in done("plan", path).stdout


def test_a_violation_is_a_warning_before_training_and_an_event_of_its_runs(here):
    path = grid_file(here, **{"ppo": FELL})
    path.write_text(f'question = "Which of the arms stays up?"\n[base]\niterations = 2\n{IDLE}')
    warning = "Warning: ppo · clip.high 0.2 and ppo · clip.high 0.4 are one arm under 2 names"
    for attempt in ("first", "again"):
        result = done("run", path, "--workers", "2")
        assert result.stderr.startswith(warning), attempt
        assert warning in result.stdout
    rows = told("sql", "SELECT run_id, kind, severity, step FROM event ORDER BY 1")
    assert [(row["kind"], row["severity"], row["step"]) for row in rows] == [
        ("guard_idle_ratio", "warning", None)
    ] * 2
    assert "one arm under 2 names" in done("show", rows[0]["run_id"]).stdout
    assert "withdrawn" not in done("rescan").stdout, "no rule over recorded columns judges it"
    assert len([*here.glob("runs/demo/*/segments/event/*.parquet")]) == 2, (
        "the same finding is not written twice"
    )


def test_a_webhook_hears_of_a_failed_cell_a_dead_one_stops_nothing_and_a_bad_one_starts_nothing(here):
    path = grid_file(here, seeds="[0]", **{"ppo": {"fail_at": 2}, "st-ppo": STOOD})
    refused("--notify takes a webhook like", "run", path, "--notify", "ntfy.sh/topic")
    assert not list((here / "runs").glob("demo*")), "before anything starts"
    refused("--notify takes a webhook like", "app", "--notify", "file:///etc/passwd")
    with Inbox() as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"{server.url}/topic"
        assert sorl("run", path, "--retries", "0", "--notify", url).exit_code == 1
        assert [headers["Title"] for _, headers, _ in server.got] == ["ppo, seed 0, of demo: failed"]
        grid_file(here, seeds="[0]", **ONE_FALLS)
        done("run", path, "--notify", url)
        assert len(server.got) == 1, "what happened before this call is no news"
        server.shutdown()
    grid_file(here, seeds="[1]", **{"ppo": {"fail_at": 2}, "st-ppo": STOOD})
    dead = sorl("run", path, "--retries", "0", "--notify", url)
    assert (dead.exit_code, dead.stderr.count("127.0.0.1 took no message")) == (1, 1)
    assert "1/1" in dead.stdout or "0/1" in dead.stdout, "the table is there all the same"
