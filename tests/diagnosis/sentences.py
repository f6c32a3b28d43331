"""The sentences about a run, each with the SQL that says what its numbers, steps and names must be."""

import re
from collections.abc import Callable
from typing import Any

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]  # SQL and its parameters -> the one row of its answer

N = r"(?:\d+(?:\.\d+)?(?:e[-+]\d+)?|NaN)"
_CURVE = """
WITH r AS (SELECT * FROM run WHERE run_id = $run),
curve AS (SELECT step, success AS s FROM step WHERE run_id = $run AND isfinite(success)),
medians AS (SELECT step, median(s) OVER (ORDER BY step ROWS 4 PRECEDING) AS m,
                   row_number() OVER (ORDER BY step) AS n
            FROM curve WHERE step <= (SELECT coalesce(collapse_step, onset_low) FROM r)),
best AS (SELECT greatest(CASE WHEN outcome <> 'recovered' THEN peak_success END,
                         (SELECT max(m) FROM medians
                          WHERE n >= least(5, (SELECT count(*) FROM medians)))) AS best
         FROM r),
after AS (SELECT step, s FROM curve, r WHERE step > coalesce(onset_high, collapse_step)),
last AS (SELECT * FROM after ORDER BY step DESC LIMIT 10)
"""
_LAST = (
    "(SELECT avg(s) FROM last) AS mean, (SELECT min(step) FROM last) AS a, (SELECT max(step) FROM last) AS b"
)
_UP = (
    "experiment = (SELECT experiment FROM run WHERE run_id = $run) AND outcome IN ('healthy', 'no_learning')"
)
_BEFORE = r"(?:at|(?P<ahead>\d+) steps? before) the onset"
_ONSET = "(SELECT coalesce(collapse_step, onset_low) FROM run WHERE run_id = $run)"
_NAMED = """
WITH named AS (
    SELECT step, v FROM (UNPIVOT (SELECT step, ratio_max, grad_norm_max, reward FROM step WHERE run_id = $run)
                         ON ratio_max, grad_norm_max, reward INTO NAME name VALUE v) WHERE name = $name)
"""
# The pattern of a sentence, whose groups are what it names, and the SQL whose columns have the names of these
# groups.
CHECKS = {
    rf"fell from (?P<best>{N}) at its best to (?P<low>{N}) \(step (?P<lowest>\d+)\) and came back to"
    rf" (?P<mean>{N}) "
    rf"\((?:mean of steps (?P<a>\d+) to |step )(?P<b>\d+)\), (?P<share>\d+) % of its best": (
        f"{_CURVE} SELECT best, (SELECT min(s) FROM after) AS low, (SELECT arg_min(step, s) FROM after) AS"
        f" lowest, {_LAST}, 100 * (SELECT avg(s) FROM last) / best AS share FROM best"
    ),
    rf"fell from (?P<best>{N}) at its best to (?P<mean>{N}) "
    rf"\((?:mean of steps (?P<a>\d+) to |step )(?P<b>\d+)\)": (f"{_CURVE} SELECT best, {_LAST} FROM best"),
    r"The fall began after step (?P<onset>\d+)(?: \(95 %: (?P<low>\d+) to (?P<high>\d+)\))?"
    r"(?: and was certain at step (?P<seen>\d+), (?:by a rule "
    r"(?:set to one false collapse in 100 runs with independent noise|that often errs on [^.]*\.md\))"
    r"|against the noise of this curve \(docs/collapse\.md\)))?": (
        "SELECT coalesce(collapse_step, onset_low) AS onset, onset_low AS low, onset_high AS high, "
        "detection_step AS seen FROM run WHERE run_id = $run"
    ),
    r"The fall began between steps (?P<low>\d+) and (?P<high>\d+) \(95 %\)": (
        "SELECT onset_low AS low, onset_high AS high FROM run WHERE run_id = $run AND collapse_step IS NULL"
    ),
    rf"Climbing back since step (?P<since>\d+): (?P<mid>{N}) at the end \(median of 3 steps\), "
    rf"(?P<share>\d+) % of its": (
        f"{_CURVE}, tail AS (SELECT median(s) AS m FROM (SELECT s FROM curve ORDER BY step DESC LIMIT 3))"
        " SELECT (SELECT min(step) FROM curve WHERE step > (SELECT max(step) FROM curve WHERE s <= best /"
        " 2)) AS since, m AS mid, 100 * m / best AS share FROM best, tail"
    ),
    rf"Its success was (?P<mean>{N}) over (?:the last|its) (?P<n>\d+) steps?"
    rf"(?:, (?P<best>{N}) at its best \(median of 5\))?": (
        f"{_CURVE} SELECT avg(s) AS mean, count(*) AS n, (SELECT peak_success FROM r) AS best "
        "FROM (SELECT s FROM curve ORDER BY step DESC LIMIT 10)"
    ),
    r"Most causes need 8 rows to be looked for; this log has (?P<rows>\d+)": (
        "SELECT count(DISTINCT step) AS rows FROM step WHERE run_id = $run"
    ),
    # as recorded
    r"success fell from 0.800 \(steps 0 to 20\) to 0.500; the fall began after step (?P<step>20)": (
        "SELECT regexp_extract(message, '\\d+$') AS step FROM event WHERE run_id = $run AND kind = 'mild'"
    ),
    r"Critical: NaN or Inf at step (?P<step>\d+)": (
        "SELECT step FROM event WHERE run_id = $run AND kind = 'non_finite' AND severity = 'critical'"
    ),
    rf"rollouts are (?P<age>{N}) iterations old on average and used (?P<epochs>\d+) times?": (
        "SELECT avg(staleness) AS age, (SELECT max(epoch) + 1 FROM minibatch WHERE run_id = $run) AS epochs "
        "FROM step WHERE run_id = $run"
    ),
    rf"token ratios reach (?P<most>{N}) in step (?P<step>\d+), {_BEFORE}": (
        f"SELECT max(ratio_max) AS most, arg_max(step, ratio_max) AS step, {_ONSET} - $step AS ahead "
        "FROM minibatch WHERE run_id = $run AND step <= (SELECT onset_high FROM run WHERE run_id = $run)"
    ),
    rf"the gradient norm leaps from (?P<usual>{N}) to (?P<most>{N}) in step (?P<step>\d+), {_BEFORE}": (
        f"SELECT max(grad_norm) AS most, {_ONSET} - $step AS ahead, (SELECT median(grad_norm) FROM minibatch"
        " WHERE run_id = $run AND step < $step AND step >= $step - 8) AS usual FROM minibatch WHERE run_id ="
        " $run AND step = $step"
    ),
    rf"First alarm: (?P<name>\w+) at step (?P<step>\d+)(?:, {_BEFORE})?": (
        f"SELECT diagnostic AS name, step, {_ONSET} - step AS ahead FROM event "
        "WHERE run_id = $run AND kind = 'alarm' ORDER BY step LIMIT 1"
    ),
    r"Of the (?P<up>\d+) other runs? that stayed up, (?P<name>\w+) rang in (?P<rang>\d+)": (
        "SELECT count(*) AS up, count(*) FILTER (run_id IN (SELECT run_id FROM event WHERE kind = 'alarm'"
        f" AND diagnostic = $name)) AS rang FROM run WHERE {_UP} AND run_id <> $run"
    ),
    r"First NaN or Inf at step (?P<step>\d+), in (?P<name>\w+)": (
        "SELECT step, diagnostic AS name FROM event WHERE run_id = $run AND kind = 'non_finite' ORDER BY step"
        " LIMIT 1"
    ),
    rf"Held-out success: facts (?P<first>{N}) at step (?P<begun>\d+), (?P<last>{N}) at step (?P<ended>\d+)": (
        "SELECT arg_min(success, step) AS first, min(step) AS begun, arg_max(success, step) AS last, "
        "max(step) AS ended FROM evaluation WHERE run_id = $run"
    ),
    r"The sharpest step (?:at the fall \(after step (?P<onset>\d+)\)"
    r"|about the fall \(95 %: after steps (?P<low>\d+) to (?P<high>\d+)\)): "
    rf"step (?P<step>\d+), {_BEFORE}, with largest gradient norm (?P<most>{N})"
    rf"(?: \(its highest is (?P<top>{N}), at step (?P<farthest>\d+)\))?; "
    rf"trajectory (?P<worst>\d+) has (?P<share>\d+) % of this step's gradient, (?P<times>{N}) x an equal"
    r" share, "
    rf"the most of (?P<n>\d+)": (
        "WITH near AS (SELECT s.step, grad_norm_max FROM step s JOIN run USING (run_id) WHERE run_id = $run "
        "AND s.step BETWEEN onset_low AND onset_high) SELECT (SELECT max(grad_norm_max) FROM near) AS most, "
        f"(SELECT arg_max(step, grad_norm_max) FROM near) AS step, {_ONSET} - $step AS ahead, "
        f"{_ONSET} AS onset, (SELECT onset_low FROM run WHERE run_id = $run) AS low, "
        "(SELECT onset_high FROM run WHERE run_id = $run) AS high, "
        "(SELECT max(grad_norm_max) FROM step WHERE run_id = $run) AS top, "
        "(SELECT arg_max(step, grad_norm_max) FROM step WHERE run_id = $run) AS farthest, "
        "arg_max(trajectory, gradient_share) AS worst, 100 * max(gradient_share) AS share, count(*) AS n, "
        "max(gradient_share) * n AS times FROM trajectory WHERE run_id = $run AND step = $step"
    ),
    rf"No step stands out by its largest gradient norm: (?P<most>{N}) at step (?P<step>\d+), "
    rf"(?P<usual>{N}) as a rule": (
        "SELECT max(grad_norm_max) AS most, median(grad_norm_max) AS usual, arg_max(step, grad_norm_max) AS"
        " step FROM step WHERE run_id = $run"
    ),
    rf"(?P<name>ratio_max|grad_norm_max|reward) (?P<usual>{N}) -> (?P<value>{N}) \(step (?P<step>\d+)\)": (
        f"{_NAMED} SELECT (SELECT median(v) FROM named WHERE step < {_ONSET}) AS usual, v AS value "
        "FROM named WHERE step = $step"
    ),
    rf"(?P<name>ratio_max|grad_norm_max|reward) at step (?P<step>\d+) \((?P<usual>{N}) -> (?P<value>{N})"
    rf"(?:, {_BEFORE})?\)": (
        f"{_NAMED} SELECT (SELECT median(v) FROM named WHERE step < $step AND step >= $step - 8) AS usual, v"
        f" AS value, {_ONSET} - $step AS ahead FROM named WHERE step = $step"
    ),
}
# Numbers of the rules, and what is no claim about the run.
_FIXED = r"\d+ more kinds? of alarm|at least 20 times"


def checked(text: str, run: str, ask: Ask) -> int:
    """Check all that a text names by SQL, and that no number is left over; return how many sentences were
    checked.
    """
    count = 0
    for pattern, sql in CHECKS.items():
        for match in re.finditer(pattern, text):
            named = {key: value for key, value in match.groupdict().items() if value is not None}
            given = {
                key: int(value) if value.isdecimal() else value
                for key, value in named.items()
                if f"${key}" in sql
            }
            row = ask(sql, {"run": run} | given)
            assert {key: _written(value, named[key]) for key, value in row.items() if key in named} == {
                key: value for key, value in named.items() if key in row
            }, match[0]
            count += 1
        text = re.sub(pattern, "", text)
    assert not re.search(r"\d", re.sub(_FIXED, "", text)), text
    return count


def _written(value: Any, like: str) -> str:
    """The value as the sentence writes it: to the percent, or in two or three figures; else in
    three figures.
    """
    if not isinstance(value, float) or value != value:
        return str(value).replace("nan", "NaN")
    return (
        like if like in {f"{value:.0f}", f"{value:.1f}", f"{value:.2g}", f"{value:.3g}"} else f"{value:.3g}"
    )
