"""An interrupted run with a fault starts again, and nothing shows that it did."""

from collections.abc import Callable
from pathlib import Path

from pandas.testing import assert_frame_equal

from tests.learn.tiny import TINY, merged, rows, train
from workbench.agent.tokenizer import build_tokenizer
from workbench.learn.loop import Trainer
from workbench.learn.warmstart import ensure
from workbench.record.recorder import Recorder
from workbench.spec import RunSettings

STALE = {"kind": "stale_weights", "at_step": 2}
SHORT = {"iterations": 4, "algorithm": "grpo", "evaluation": {"every": 0, "episodes": 2}}


def test_an_interrupted_run_with_a_fault_ends_with_the_rows_of_one_that_was_not(
    new_run: Callable[..., Path], cache: Path
) -> None:
    whole, parts = (new_run(name, fault=STALE, **SHORT) for name in ("whole", "parts"))
    assert train(whole, cache) == 0
    settings = RunSettings.model_validate(merged(TINY, {**SHORT, "fault": STALE}))
    with Recorder(parts, "parts", settings) as recorder:
        trainer = Trainer(settings, ensure(settings, cache), recorder, build_tokenizer())
        for _ in trainer.steps():
            if trainer.step == 3:  # the frozen weights are in memory alone
                trainer.save(parts / "checkpoints")
                break
    assert train(parts, cache) == 0
    for table in ("step", "minibatch", "turn", "trajectory"):
        assert_frame_equal(rows(whole, table), rows(parts, table), check_exact=True, obj=table)
