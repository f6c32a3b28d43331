"""A proof beats a pattern: violated identities lead, those that hold withdraw causes, and a look that fails
costs itself alone.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Cause, Clue
from sorl.diagnosis.proofs import first_violations
from sorl.diagnosis.rank import in_order
from sorl.diagnosis.report import as_dict, markdown, text
from sorl.spec.evidence import Check
from tests.diagnosis.logs import healthy, log

STEP = 10
HOLDS = Check("behaviour_log_probs", STEP, gap=0.0, tolerance=1e-4, logged=1.0, expected=1.0)
BROKEN = Check(
    "loss",
    STEP,
    gap=1.0,
    tolerance=1e-4,
    logged=8.0,
    expected=1.0,
    says="8 times what it must be",
    means="scale",
)


def cause(name: str, step: int, grade: str = "sign", **declared: Any) -> Cause:
    """A cause that is always found."""
    clue = Clue(grade, 0.9, step, f"{name} shows")  # type: ignore[arg-type]
    return Cause(name, name.capitalize(), lambda log: clue, needs=(), change="Mend it.", test="", **declared)


def test_a_violated_identity_leads_and_what_began_later_is_its_consequence() -> None:
    found = diagnose(log(healthy()), [cause("early", STEP - 5), cause("late", STEP + 1)], [BROKEN])
    first, second, third = found.findings
    assert (first.cause.name, first.clue.grade, first.severity) == ("audit.loss", "proof", "critical")
    assert (
        "step 10 recomputed: `loss` is violated (logged 8, must be 1; 8 times what it must be)"
        in first.clue.says
    )
    assert (second.cause.name, second.clue.grade) == ("early", "sign")
    assert (third.cause.name, third.clue.grade) == ("late", "pattern")
    assert in_order(found)[0].cause.name == "audit.loss"
    assert "1. Scale  [audit.loss: critical, the record shows it" in text(found)
    assert "%" not in text(found).split("Cannot tell")[0].replace("95 %", "")


def test_an_identity_that_holds_withdraws_the_causes_that_it_denies_and_says_so() -> None:
    causes = [
        cause("stale_weights", STEP, denied_by="behaviour_log_probs"),
        cause("temperature", STEP - 3, denied_by="behaviour_log_probs"),
        cause("off_policy", STEP),
    ]
    assert len(diagnose(log(healthy()), causes).findings) == 3
    found = diagnose(log(healthy()), causes, [HOLDS])
    assert [finding.cause.name for finding in found.findings] == ["off_policy"]
    assert found.withdrawn == {"stale_weights": "behaviour_log_probs", "temperature": "behaviour_log_probs"}
    assert "Withdrawn: stale_weights fits the curves, but the audit's `behaviour_log_probs` holds." in text(
        found
    )
    assert as_dict(found)["withdrawn"]["temperature"] == "behaviour_log_probs"


@pytest.mark.parametrize(
    "check",
    [
        replace(HOLDS, step=STEP - 1),  # checked before the trace began
        replace(HOLDS, missing="needs the sampler's weights"),
        replace(HOLDS, gap=1.0),
    ],
)
def test_an_identity_withdraws_nothing_where_it_was_not_checked_since_or_is_violated(check: Check) -> None:
    found = diagnose(log(healthy()), [cause("stale_weights", STEP, denied_by="behaviour_log_probs")], [check])
    assert "stale_weights" in {finding.cause.name for finding in found.findings}


@pytest.mark.parametrize(("step", "names"), [(STEP, []), (STEP + 1, ["stale_weights"])])
def test_what_the_record_proves_of_a_step_is_withdrawn_by_a_check_of_that_step_alone(
    step: int, names: list[str]
) -> None:
    observed = cause("stale_weights", STEP, "proof", denied_by="behaviour_log_probs")
    found = diagnose(log(healthy()), [observed], [replace(HOLDS, step=step)])
    assert [finding.cause.name for finding in found.findings] == names


def test_a_violation_proves_the_surest_cause_that_explains_it_and_shows() -> None:
    causes = [
        cause("scaled", STEP, breaks=("loss", "gradient")),
        cause("guessed", STEP, "pattern", breaks=("loss",)),
        cause("much_later", STEP + 30, breaks=("loss",)),
    ]
    gradient = replace(BROKEN, identity="gradient")
    found = diagnose(log(healthy()), causes, [BROKEN, gradient])
    first = found.findings[0]
    assert (first.cause.name, first.clue.grade) == ("scaled", "proof")
    assert first.clue.says.startswith("scaled shows; step 10 recomputed: `loss` is violated")
    assert first.clue.says.endswith("; violated too: `gradient`")
    assert [finding.cause.name for finding in found.findings].count("audit.loss") == 0
    assert {finding.clue.grade for finding in found.findings[1:]} == {"pattern"}


def test_a_violation_leads_by_itself_where_only_a_mere_pattern_explains_it() -> None:
    found = diagnose(log(healthy()), [cause("guessed", STEP, "pattern", breaks=("loss",))], [BROKEN])
    assert [finding.cause.name for finding in found.findings] == ["audit.loss", "guessed"]


def test_within_a_step_the_audit_s_order_says_which_violation_is_nearest_to_the_bug() -> None:
    sampled = replace(BROKEN, identity="behaviour_log_probs", step=11)
    located = replace(sampled, step=10, holds_until=9)
    drawn = replace(BROKEN, identity="sampling", step=10)
    checks = [replace(HOLDS, identity="behaviour_log_probs", step=4), drawn, sampled, located]
    assert [one.identity for one in first_violations(checks)] == ["behaviour_log_probs", "sampling"]


@pytest.mark.parametrize("begins", [7, 10])
def test_what_only_several_steps_together_show_is_told_beside_a_violation_among_them(begins: int) -> None:
    single = replace(BROKEN, step=10, holds_until=9)
    pooled = replace(BROKEN, identity="independence", step=begins, is_pooled=True)
    (finding,) = diagnose(log(healthy()), [], [pooled, single]).findings
    assert finding.cause.name == "audit.loss"
    assert finding.clue.says.endswith("; violated too: `independence`")


def test_what_only_several_steps_together_show_leads_where_nothing_else_is_violated() -> None:
    pooled = replace(BROKEN, identity="independence", is_pooled=True)
    (finding,) = diagnose(log(healthy()), [], [pooled]).findings
    assert finding.cause.name == "audit.independence"


def test_the_first_broken_step_and_what_happened_there_are_told() -> None:
    located = replace(BROKEN, step=8, holds_until=7, changed="resumed with learn.epochs = 4")
    found = diagnose(log(healthy()), [], [BROKEN, located])
    (finding,) = found.findings
    assert finding.clue.step == 8
    assert finding.clue.says.endswith("; it holds until step 7, where resumed with learn.epochs = 4")


def test_every_identity_that_a_cause_names_exists() -> None:
    from sorl.audit import IDENTITIES

    for known in CAUSES:
        names = [*known.breaks, known.denied_by, known.defined_by, known.holds]
        assert {name for name in names if name} <= IDENTITIES.keys(), known.name


def test_a_look_that_fails_costs_its_own_cause_and_says_why() -> None:
    def fails(_: object) -> None:
        raise ValueError("96 flags\x1b[2J for 97 tokens")

    broken = replace(cause("broken", STEP), look=fails)
    found = diagnose(log(healthy()), [broken, cause("other", STEP)])
    assert [finding.cause.name for finding in found.findings] == ["other"]
    for told in (text(found), markdown(found)):
        assert "Could not be checked: broken (ValueError: 96 flags" in told
        assert "\x1b" not in told
    assert as_dict(found)["failed"] == {"broken": "ValueError: 96 flags\x1b[2J for 97 tokens"}


def test_a_transcript_with_more_flags_than_tokens_is_a_finding_and_silences_no_other() -> None:
    tables = healthy()
    tables["step"]["token_mismatches"] = 3.0
    flags = [np.ones(3, bool), np.ones(4, bool)]
    tables["token"] = pd.DataFrame(
        {"step": [0, 0], "trajectory": [0, 1], "token": [list("abc"), list("abc")], "trained": flags}
    )
    found = diagnose(log(tables))
    names = {finding.cause.name: finding for finding in found.findings}
    assert not found.failed
    assert (
        "in step 0 trajectory 1 has 3 tokens and 4 values of `trained`"
        in names["inconsistent_record"].clue.says
    )
    assert names["inconsistent_record"].clue.grade == "proof"
    assert len(names) > 1, "the mask is wrong too"
