"""`sorl bench diagnose`, `attribution` and `warning`: what is said of runs against what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.cli.text import echo

LABELLED = ("fault_lab", "fault_lab_healthy")
CORPUS, PEER = "experiments/results/early_warning/corpus.parquet", "rldoctor.parquet"
FEWEST = 20  # runs of either kind
PLANTED = (500, 150, 200)  # faults, weak ones, batches without any


def scored(runs: Path, files: Sequence[Path] = (), output: Path | None = None) -> None:
    """Print rates and confusions of the labelled runs, or of the cases of files; write the cases to `output`.

    A run that is in several files counts once, as the last of them has it.
    """
    from workbench.cli.database import current
    from workbench.diagnosis import score
    from workbench.diagnosis.page import scores
    from workbench.spec import InputError

    told = [case for file in files for case in score.read(file)]
    found = told if files else list(score.cases(current(runs), LABELLED))
    found = list({(case.experiment, case.run_id): case for case in found}.values())
    if not found:
        told_by = " and ".join(f"experiments/{name}.toml" for name in LABELLED)
        raise InputError(f"no finished run of {' or '.join(LABELLED)} in '{runs}'; `sorl run` {told_by} first")
    echo(scores(found))
    if output is not None:
        score.write(found, output)


def attributed(shipped: Path | None = None, output: Path | None = None) -> None:
    """Print how often the turn and the span of planted faults are named, or of the shipped cases; write the cases."""
    from workbench.cli.database import note
    from workbench.diagnosis import planted

    if shipped is not None:
        found = planted.read(shipped)
    else:
        from workbench.cli.planted.trial import cases, plans

        found = list(cases(plans(*PLANTED), lambda done, of: note(f"{done} of {of} batches")))
    echo(planted.page(found))
    if output is not None:
        planted.write(found, output)


def warned(runs: Path, experiments: Sequence[str], files: Sequence[Path], output: Path | None = None) -> None:
    """Print how well the detectors warn, on the finished runs of experiments and files; write them as a corpus."""
    from workbench.analysis.early import corpus, page, peers
    from workbench.analysis.early.evaluate import Bench
    from workbench.cli.results import recorded
    from workbench.spec import InputError

    told = [corpus.read(file) for file in files]
    told += [corpus.of_results(one) for one in recorded(runs, experiments)]
    found = corpus.unique([run for part in told for run in part])
    counts = {kind: sum(getattr(run, kind) for run in found) for kind in ("collapsed", "healthy")}
    if min(counts.values()) < FEWEST:
        raise InputError(
            f"an evaluation takes at least {FEWEST} collapsed and {FEWEST} healthy runs, not {counts['collapsed']} and "
            f"{counts['healthy']}; name experiments, or --from {CORPUS}"
        )
    beside = [file.with_name(PEER) for file in files if file.with_name(PEER).is_file() and file.name != PEER]
    echo(page.everything(Bench(found), peers.read(beside[0]) if beside else None))
    if output is not None:
        corpus.write(found, output)
