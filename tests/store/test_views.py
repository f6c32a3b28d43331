import pytest

from sorl.store.reader import Reader, saved, saved_query
from sorl.store.schema import views
from sorl.store.sync import sync
from tests.store.contents import rows as ask
from tests.store.fixture import write_segment, write_status

GRAIN = {
    "cell": "run_id",
    "outcome": "run_id",
    "compare": "experiment, algorithm, arm",
    "seed_band": "experiment, algorithm, arm, step",
    "turn_heat": "run_id, step, turn_index",
    "collapse": "run_id, detection_step",
    "lead_time": "run_id, diagnostic, alarm_step",
    "culprit": "run_id, step, epoch, trajectory, turn_index",
    "current_note": "run_id, note",
}
WRITTEN_BY_PEOPLE = "current_note"  # test_part_notes.py


def test_every_view_has_a_file_whose_first_line_states_the_grain():
    assert set(views()) == set(GRAIN)
    assert all(grain.startswith("One row per ") for grain, _ in views().values())


@pytest.mark.parametrize("view", sorted(set(GRAIN) - {WRITTEN_BY_PEOPLE}))
def test_a_view_runs_without_rows_and_keeps_its_grain_with_them(grid, runs, view):
    sync(runs)  # without the dictionary: only the columns that views need
    assert ask(runs, f"FROM {view}") == []
    assert ask(grid, f"SELECT count(*) > 0, count(*) = count(DISTINCT ({GRAIN[view]})) FROM {view}") == [
        (True, True)
    ]


@pytest.mark.parametrize("query", saved(), ids=lambda q: q.name)
def test_a_saved_query_runs_without_rows_and_finds_some_with_them(grid, runs, query):
    sync(runs)
    assert query.title
    assert Reader(runs).rows(query.sql).rows == []
    found = Reader(grid).rows(query.sql).rows
    assert found or query.name == "gradient_spikes"


def test_of_a_cell_that_was_started_over_only_the_newest_run_is_a_seed(runs):
    folders = [("a", 0, 1, 0.1), ("a-g2", 0, 2, 0.2), ("a-g10", 0, 10, 0.9), ("b", 1, None, 0.5)]
    for name, seed, generation, final in folders:
        folder = runs / "demo" / name
        write_status(folder, seed=seed, final_success=final, generation=generation)
        write_segment(folder, "step", {"step": 0, "success": final})
    other = runs / "demo" / "edited"
    write_status(other, arm="other", config_hash="other settings", generation=1)
    sync(runs)
    assert ask(runs, "SELECT run_id, generation FROM cell ORDER BY ALL") == [
        ("a-g10", 10),
        ("b", 1),
        ("edited", 1),
    ]
    compared = ask(runs, "SELECT arm, seeds, n, final_success_median FROM compare WHERE arm = 'ppo'")
    assert compared == [("ppo", 2, 2, 0.7)]
    assert ask(runs, "SELECT n, success_min FROM seed_band") == [(2, 0.5)]


def test_compare_counts_finished_runs_only_and_diverged_ones_among_the_collapsed(runs):
    for seed, (outcome, final) in enumerate(
        {"collapsed": 0.1, "diverged": 0.2, "healthy": 0.9, None: 0.5}.items()
    ):
        ended = {"outcome": outcome, "status": "finished" if outcome else "running", "final_success": final}
        step = 40 + seed if outcome == "collapsed" else None
        write_status(runs / "demo" / f"r{seed}", seed=seed, **ended, collapse_step=step)
    sync(runs)
    columns = "seeds, n, collapsed, collapse_step_median, final_success_median, final_success_min"
    assert ask(runs, f"SELECT {columns} FROM compare") == [(4, 3, 2, 40.0, 0.2, 0.1)]


def test_seed_band_leaves_out_what_was_not_measured(runs):
    for seed, success in enumerate(([0.1, 0.4], [0.2, None], [0.6, 0.8])):
        folder = runs / "demo" / f"r{seed}"
        write_status(folder, seed=seed)
        write_segment(folder, "step", {"step": range(2), "success": success})
    sync(runs)
    bands = "SELECT step, n, success_min, success_median, success_max FROM seed_band ORDER BY step"
    assert ask(runs, bands) == [(0, 3, 0.1, 0.2, 0.6), (1, 2, 0.4, pytest.approx(0.6), 0.8)]


def test_collapse_measures_the_depth_until_the_recovery_and_knows_only_the_first_onset(runs):
    folder = runs / "demo" / "a"
    curve = [0.8] * 10 + [0.2] * 10 + [0.7] * 10 + [0.1] * 10
    write_status(folder, outcome="collapsed", collapse_step=9, detection_step=16)
    write_segment(folder, "step", {"step": range(40), "success": curve})
    kinds = ["collapse", "recovered", "collapse"]
    told = {"step": [16, 26, 36], "kind": kinds, "severity": ["critical", "info", "critical"]}
    write_segment(folder, "event", told | {"diagnostic": "success"})
    sync(runs)
    columns = "onset_step, detection_step, steps_to_detection, peak, depth, drop_frac, recovered_step"
    rows = ask(runs, f"SELECT {columns} FROM collapse ORDER BY detection_step")
    assert rows[0] == (9, 16, 7, 0.8, 0.2, pytest.approx(0.75), 26)
    assert rows[1] == (None, 36, None, 0.8, 0.1, pytest.approx(0.875), None)


def test_lead_time_counts_from_alarm_to_onset_and_is_null_without_a_collapse(runs):
    for name, onset in (("a", 20), ("b", None)):
        folder = runs / "demo" / name
        write_status(folder, collapse_step=onset, detection_step=onset and onset + 4)
        alarms = {"step": [12, 22], "kind": "alarm", "severity": "warning", "diagnostic": "entropy"}
        write_segment(folder, "event", alarms)
    sync(runs)
    rows = ask(runs, "SELECT run_id, alarm_step, lead, lead_to_detection FROM lead_time ORDER BY ALL")
    assert rows == [("a", 12, 8, 12), ("a", 22, -2, 2), ("b", 12, None, None), ("b", 22, None, None)]


def test_culprit_ranks_nan_first_and_the_unmeasured_last(runs):
    mass = [0.2, float("nan"), None, 0.7]
    rows = {"step": 3, "epoch": 0, "trajectory": 0, "turn_index": [1, 2, 3, 4]}
    drift = [0.5, -2.0, 0.0, 1.0]
    write_segment(runs / "demo" / "a", "turn", rows | {"ratio_mass_frac": mass, "log_ratio_sum": drift})
    sync(runs)
    assert ask(runs, "SELECT turn_index FROM culprit ORDER BY mass_rank") == [(2,), (4,), (1,), (3,)]
    assert ask(runs, "SELECT turn_index FROM culprit ORDER BY drift_rank") == [(2,), (4,), (1,), (3,)]


def test_the_planted_turn_and_alarm_are_found_and_steps_are_counted_from_the_collapse(grid):
    of = "culprit JOIN run USING (run_id) WHERE mass_rank = 1 AND outcome = 'collapsed'"
    assert ask(grid, f"SELECT mode(turn_index) FROM {of}") == [(3,)]
    where = "WHERE run_id = 'ppo-s0-aaaa0000'"
    ((onset,),) = ask(grid, f"SELECT collapse_step FROM run {where}")
    heat = f"SELECT DISTINCT steps_after_collapse FROM turn_heat {where} AND step = {onset - 4}"
    assert ask(grid, heat) == [(-4,)]
    assert ask(grid, f"SELECT first_alarm, alarms FROM outcome {where}") == [("ess_frac_min", 2)]


def test_explained_variance_by_turn_is_one_for_a_perfect_critic_and_zero_for_a_constant(runs):
    folder = runs / "demo" / "a"
    write_status(folder)
    returns = [0.0, 1.0, 0.0, 1.0]
    for turn, values in ((1, returns), (2, [0.5] * 4)):
        rows = {"step": 0, "epoch": 0, "trajectory": range(4), "turn_index": turn, "value": values}
        write_segment(
            folder, "turn", rows | {"value_error": [v - g for v, g in zip(values, returns, strict=True)]}
        )
    sync(runs)
    rows = Reader(runs).rows(saved_query("explained_variance_by_turn").sql)
    at = rows.columns.index("explained_variance")
    assert [row[at] for row in rows.rows] == [1.0, 0.0]
