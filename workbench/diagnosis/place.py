"""Where the app shows the evidence of a finding."""

from collections.abc import Collection, Sequence
from urllib.parse import urlencode

from sorl.diagnosis.finding import Diagnosis, Finding


def opened(
    step: int, ranked: Sequence[int], with_tokens: Collection[int], wanted: int | None = None
) -> dict[str, int]:
    """Choose where a link to a step leads: to the trajectory `wanted`, else to the first, if its tokens were
    kept.

    `ranked` are the step's trajectories, most of the gradient first. Where neither has any tokens the link
    names the step alone; where nothing of the step was recorded there is none: an empty answer.
    """
    if not ranked:
        return {}
    for trajectory in (wanted, ranked[0]):
        if trajectory is not None and trajectory in with_tokens:
            return {"step": step, "trajectory": trajectory}
    return {"step": step}


def place(d: Diagnosis, finding: Finding) -> str:
    """Address of the evidence in the app, relative to its start; empty where the store has nothing to show of
    it.
    """
    run = d.log.run
    clue = finding.clue
    rows = d.log.load("trajectory", clue.shown)
    tokens = d.log.load("token", clue.shown)
    if run.get("run_id") is None or "trajectory" not in rows:
        return ""
    if "gradient_share" in rows:
        rows = rows.sort_values("gradient_share", key=abs, ascending=False, kind="stable")
    with_tokens = tokens["trajectory"].tolist() if "trajectory" in tokens else []
    where = opened(clue.shown, rows["trajectory"].tolist(), with_tokens, clue.trajectory)
    if not where:
        return ""
    return "episode?" + urlencode({"experiment": run.get("experiment"), "run": run["run_id"], **where})
