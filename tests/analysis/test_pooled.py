from __future__ import annotations

import pandas as pd
import pytest

from workbench.analysis.pooled import by_algorithm
from workbench.spec import LearnSettings, RunSettings


def arm(algorithm: object, staleness: int, *successes: float, status: str = "finished") -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "arm": f"{algorithm} {staleness}", "status": status, "final_success": success,
                "config": RunSettings(
                    algorithm=algorithm, seed=seed, learn=LearnSettings(staleness=staleness)
                ).model_dump_json(),
            }
            for seed, success in enumerate(successes)
        ]
    )  # fmt: skip


def test_algorithms_are_pooled_over_the_conditions_that_all_of_them_have() -> None:
    turn = {"base": "ppo", "ratio": {"level": "turn"}}
    frame = by_algorithm(
        pd.concat(
            [
                arm("ppo", 0, 0.8, 0.8), arm("ppo", 8, 0.1, 0.1),
                arm(turn, 0, 0.7, 0.9), arm(turn, 8, 0.6, 0.8),
                arm("grpo", 0, 0.99, 0.99),  # a control: it has one condition only
                arm("ppo", 4, 0.5, 0.5),  # a condition that one algorithm does not have
                arm("ppo", 8, 0.9, status="running"),
            ]
        )
    )  # fmt: skip
    assert frame["pooled"].tolist() == ["ppo", "ppo (ratio.level turn)"]
    assert frame["conditions"].tolist() == [2, 2]
    assert frame["pooled_runs"].tolist() == [4, 4]
    assert frame["pooled_final_iqm"].tolist() == pytest.approx([0.45, 0.75])
    assert frame["pooled_final_iqm_low"][0] == pytest.approx(0.45), "seeds of one condition do not differ"
    assert frame["pooled_final_iqm_low"][1] < 0.72


def test_where_nothing_is_crossed_nothing_is_pooled() -> None:
    assert by_algorithm(pd.concat([arm("ppo", 8, 0.1, 0.2), arm("grpo", 8, 0.7, 0.8)])).empty
    assert by_algorithm(pd.concat([arm("ppo", 8, 0.1, 0.2), arm("ppo", 0, 0.7, 0.8)])).empty
    assert by_algorithm(arm("ppo", 8, 0.1, status="running")).empty
