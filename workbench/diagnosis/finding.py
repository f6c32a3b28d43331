"""The parts of a diagnosis: a cause, the clue that its check returns, the reported finding."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from sorl.diagnosis.attribution import Culprit
from sorl.diagnosis.changepoint import SHORTEST, Evidence, Slump
from sorl.diagnosis.log import Log
from sorl.spec import first_paragraph
from sorl.spec.evidence import Removal

# How a clue was come by. proof: a recorded identity is broken (what is trained is not what was sampled).
# sign: the log shows what the cause leaves and hardly anything else does. pattern: it fits, other causes may
# as well. intervention, refuted: forks of the run without the cause stay up, or fall as it did (`sorl
# diagnose RUN --test`).
Grade = Literal["intervention", "proof", "sign", "pattern", "refuted"]
Severity = Literal["info", "warning", "critical"]


LEDGER = "a turn ledger"
LONG = 100  # steps, of which a tenth has a median to speak of


@dataclass(frozen=True)
class Clue:
    """What a look for one cause has found: how sure (0 to 1), since which step, a sentence, figures, the
    culprit.
    """

    grade: Grade
    confidence: float
    step: int
    says: str
    evidence: tuple[Evidence, ...] = ()
    trajectory: int | None = None
    turn: int | None = None
    _: KW_ONLY
    severity: Severity | None = None  # here, where it differs from that of the cause
    from_the_start: bool = False  # it may have begun before `step`: nothing earlier was looked at

    @property
    def shown(self) -> int:
        """The step at which to look: that of its first figure, whose trajectory it names."""
        return self.evidence[0].step if self.evidence else self.step

    @classmethod
    def of(cls, grade: Grade, confidence: float, shown: Evidence, says: str, *culprit: int | None) -> Self:
        """Return a clue whose evidence is one figure, at the step of the clue; `culprit`: trajectory and
        turn.
        """
        return cls(grade, confidence, shown.step, says, (shown,), *culprit)

    @classmethod
    def since(cls, grade: Grade, confidence: float, shown: Evidence, says: str, *culprit: int | None) -> Self:
        """Return the same of something that lasts: `from step 12 on ...`."""
        return cls.of(grade, confidence, shown, f"from step {shown.step} on {says}", *culprit)


@dataclass(frozen=True)
class Cause:
    """Something that goes wrong in training, and how a log shows it; `cause` declares it at its look
    function.

    `needs` are table.column of the log, or signals (`Log.columns`), without which the question cannot be
    answered; `change` says what to do about it; `test` is a command, an option or a sentence whose outcome
    would confirm or refute it. {run} and {step} in them are filled in. `without` is its counterfactual: the
    settings with which a fork of the run goes on without it, a value or a function of the old value. Empty
    where only a repair removes it.
    """

    name: str
    title: str
    # gets the log, and of a scalar cause each need as a curve
    look: Callable[..., Clue | None] = field(repr=False)
    _: KW_ONLY
    needs: tuple[str, ...]
    change: str
    test: str
    severity: Severity = "critical"
    options: tuple[str, ...] = ()  # settings that the advice is about, by names of `trainers.toml`
    needs_settings: tuple[str, ...] = ()
    needs_one_policy: bool = False  # sampler and trainer must have scored the tokens by the same policy
    without: Mapping[str, Any] = field(default_factory=dict)
    explains: tuple[str, ...] = ()  # causes whose trace it leaves as well, at the same time or later
    residual: bool = False  # any other finding explains it
    needs_ledger: bool = False  # its marks hold for our recorder: of a log of scalars they would say too much
    # A log of scalars shows it, by medians of tenths of a run; of a short run with a ledger finer causes know
    # more.
    scalar: bool = False
    # What a log of fewer rows than a curve needs may show: a level that matters whatever the noise.
    when_short: Callable[[Log], Clue | None] | None = field(default=None, repr=False)
    rewarded: bool = False  # the reward may rise with it, so a reward that holds does not make it harmless
    # Identities of an audit whose violation this cause explains: what the log shows of it is then proved.
    breaks: tuple[str, ...] = ()
    denied_by: str = ""  # an identity that cannot hold if this is the cause
    # An identity whose violation is this cause by definition, whatever else the log shows; and one that must
    # hold in the same step.
    defined_by: str = ""
    holds: str = ""
    arises: Callable[[Log], bool] = field(default=lambda log: True, repr=False)  # whether there is a question

    def missing(self, log: Log) -> list[str]:
        """Return what the log lacks for an answer."""
        if self.needs_ledger and not log.ledger:
            return [LEDGER]
        columns = [name for name in self.needs if not log.columns(name)]
        settings = [f"setting {key}" for key in self.needs_settings if key not in log.settings]
        apart = self.needs_one_policy and 2 * len(log.rescored) > log.steps
        return columns + settings + (["the trainer's log-probs of the policy that sampled"] if apart else [])

    def clue(self, log: Log) -> Clue | None:
        """Look for the cause in a log; None where a curve that it needs has too few points."""
        curves = [log.curve(name) for name in self.needs] if self.scalar else []
        if None not in curves:
            return self.look(log, *curves)
        is_short = not log.ledger and log.steps < SHORTEST
        return self.when_short(log) if is_short and self.when_short is not None else None


def cause(*needs: str, **declared: Any) -> Callable[[Callable[..., Clue | None]], Cause]:
    """Declare a function as the look for the cause that has its name; the first paragraph of its docstring is
    the title.
    """

    def declare(look: Callable[..., Clue | None]) -> Cause:
        title = first_paragraph(look).rstrip(".")
        if not title:
            raise TypeError(f"cause {look.__name__} has no docstring: its first paragraph is the title")
        return Cause(look.__name__, title, look, needs=needs, **declared)

    return declare


scalar = partial(cause, scalar=True)


def among(look: Callable[[Log], Mapping[str, Clue]], name: str, title: str, **declared: Any) -> Cause:
    """Declare a cause that a look tells apart from others like it: its clue is that under its name."""
    return Cause(name, title, lambda log: look(log).get(name), **declared)


def third(old: float) -> float:
    """Return a third of what was set."""
    return old / 3


def bounded(old: float | None) -> float:
    """Return a bound on the gradient norm: 0.5, or a quarter of the one that was set."""
    return 0.5 if old is None else old / 4


def rows_in_words(count: int, rows: int) -> str:
    """Say in how many rows at the end of a log something is seen."""
    if rows == 1:
        return "the only row"
    return f"all {rows:,} rows" if count == rows else f"the last {count:,} of {rows:,} rows"


def sql(select: str, rest: str = "", form: str = "") -> str:
    """Return the command that asks the database about the run, as the test of a cause."""
    query = f"{select} WHERE run_id = '{{run}}' {rest}".rstrip()
    return f'sorl sql "{query}"' + (f" --format {form}" if form else "")


class Finding(NamedTuple):
    """A cause that the log speaks for."""

    cause: Cause
    clue: Clue
    tested: Removal | None = None  # by forks of the run

    @property
    def severity(self) -> Severity:
        """How bad it is here: as the clue says, else as the cause is."""
        return self.clue.severity or self.cause.severity


@dataclass(frozen=True)
class Diagnosis:
    """All that can be said of one log."""

    log: Log
    findings: tuple[Finding, ...]
    moved: tuple[Evidence, ...]  # diagnostics that left their own past, earliest first
    unanswered: dict[str, list[str]]  # cause -> what the log lacks to tell
    slump: Slump | None = None  # success lost so much that few healthy runs ever do
    # step of a finding -> who stands out
    carriers: Mapping[int, tuple[Culprit, ...]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)  # cause, or a part of the report -> why
    withdrawn: Mapping[str, str] = field(default_factory=dict)  # cause -> identity that denies it
