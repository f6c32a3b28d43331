"""A resumed run goes on with other data than it would have had."""

import pandas as pd

from sorl.diagnosis.changepoint import Evidence
from sorl.diagnosis.data_order import PassedOver, Reshuffled, SeenAgain, Visits, passed_over
from sorl.diagnosis.finding import Clue, cause, sql
from sorl.diagnosis.log import Log

RESUMES = ("resumed", "retried")  # events
NEAR = 1  # steps from a resume, within which it is the reason


@cause(
    "order of the data",
    severity="warning",
    change=(
        "Save the place in the data with the weights, at what was trained and not at what was fetched:"
        " prompts that are under way at a checkpoint are lost otherwise, the long ones first. After a resume"
        " compare the first prompts with the last ones before it."
    ),
    test=sql(
        "SELECT question, list(DISTINCT step) FROM trajectory",
        "GROUP BY 1 HAVING count(DISTINCT step) > 1",
    ),
)
def resume_skip(log: Log) -> Clue | None:
    """A resumed run skips data, or sees data twice."""
    resumes = resumed_at(log)
    frame = log.table("trajectory")
    if log.measured("trajectory", "sample"):
        skipped = passed_over(frame[["step", "sample"]])
        if skipped is not None:
            return _skipped(skipped, resumes)
    if not log.measured("trajectory", "question"):
        return None
    visits = Visits(_visits(frame))
    for stretch in visits.seen_again():
        if (clue := _again(stretch, resumes)) is not None:
            return clue
    for resume in resumes:
        drawn_again = visits.reshuffled(resume)
        if drawn_again is not None:
            return _reshuffled(drawn_again)
    return None


def resumed_at(log: Log) -> list[int]:
    """The steps at which a run is known to have gone on after a stop: by its events, or as the witnesses of
    the weights name the session.
    """
    events = [log.events(kind) for kind in RESUMES]
    steps: set[int] = set()
    for frame in events:
        if "step" in frame:
            steps |= set(frame["step"].dropna().astype(int).tolist())
    witness = log.table("witness")
    if "started_at" in witness:
        begins = witness.groupby("started_at")["step"].min().sort_values()
        steps |= set(begins.astype(int).tolist()[1:])
    return sorted(steps)


def _visits(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a prompt group, with its question."""
    names = ["step", "prompt_group", "question"]
    rows = frame.reindex(columns=names).dropna(subset=["step", "question"])
    return rows.drop_duplicates().rename(columns={"question": "key"})[["step", "key"]]


def _is_at(step: int, resumes: list[int]) -> bool:
    return any(abs(step - resume) <= NEAR for resume in resumes)


def _skipped(skipped: PassedOver, resumes: list[int]) -> Clue:
    is_at_resume = all(_is_at(step, resumes) for step in skipped.steps)
    share = 100 * skipped.missing / skipped.of
    step, *further = skipped.steps
    where = f"step {step}" if not further else f"steps {', '.join(map(str, skipped.steps))}"
    says = (
        f"{skipped.missing:,} sample ids before {where} were never trained, {share:.0f} % of all between the"
        f" first and the last; elsewhere at most {skipped.elsewhere:,} in a row are missing"
        f"{_place(is_at_resume)}. It rests on the trainer's own ids, which count up in the order of the data"
    )
    shown = Evidence("trajectory.sample", step, float(skipped.missing), float(skipped.elsewhere))
    return Clue.of("proof" if is_at_resume else "sign", 0.95 if is_at_resume else 0.8, shown, says)


def _again(stretch: SeenAgain, resumes: list[int]) -> Clue | None:
    """The clue of a stretch that was seen before; None where it may be a pass over the data."""
    is_at_resume = _is_at(stretch.first, resumes)
    is_pass = stretch.is_open and stretch.is_from_start
    if stretch.is_open and not is_at_resume:
        return None
    where = f"step {stretch.first}"
    if stretch.last > stretch.first:
        where = f"steps {stretch.first} to {stretch.last}"
    back = stretch.steps_back
    says = f"{where} train on the questions of {_steps(back)} before"
    if stretch.usual is None:
        says += ", and until then none had come twice"
    elif stretch.usual > back:
        says += f", where {stretch.usual} steps lie between two visits"
        ahead = stretch.usual - back
        if ahead < back:
            says += f": the order jumps ahead by {_steps(ahead)}, which were not seen"
    says += _place(is_at_resume)
    if is_pass:
        says += ". A pass over the data may have ended there, for the log ends before new questions come"
    says += ". It rests on the text of the questions"
    shown = Evidence("trajectory.question", stretch.first, float(stretch.questions))
    if is_pass:
        return Clue.of("pattern", 0.6, shown, says)
    if is_at_resume:
        return Clue.of("proof", 0.95, shown, says)
    return Clue.of("sign", 0.8, shown, says)


def _reshuffled(found: Reshuffled) -> Clue:
    says = (
        f"from step {found.first} on, where the run was resumed, {100 * found.seen_again:.0f} % of the"
        " questions had been seen before, among new ones; until then none had come twice. The order was drawn"
        " anew within a pass, so others of it will not be seen; or a pass ended there, and a filter that"
        " drops most questions let others through. It rests on the text of the questions"
    )
    shown = Evidence("trajectory.question", found.first, found.seen_again, 0.0)
    return Clue.of("pattern", 0.7, shown, says)


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _place(is_at_resume: bool) -> str:
    return ", where the run was resumed" if is_at_resume else "; no resume is recorded there"
