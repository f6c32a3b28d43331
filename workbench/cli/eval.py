"""`sorl eval`: evaluate a run's policy on a benchmark or a file of questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.spec import InputError

if TYPE_CHECKING:
    from workbench.spec import RunSettings, WorldSettings

_METAVAR = "NAME|FILE"


def eval(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id or a unique prefix of one.", show_default=False)],
    data: Annotated[
        str,
        typer.Option(
            metavar=_METAVAR, help="A benchmark name, or a .jsonl or .parquet file of questions.", show_default=False
        ),
    ],
    split: Annotated[
        str | None,
        typer.Option(help="Split of the benchmark; default: the one that papers report.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask only the first N questions.", show_default=False)
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Search these passages with BM25.", show_default=False)
    ] = None,
    retriever: Annotated[
        str | None, typer.Option(metavar="URL", help="Search with this retrieval server.", show_default=False)
    ] = None,
    search: Annotated[bool, typer.Option(help="With --no-search the retriever returns nothing.")] = True,
    topk: Annotated[int, typer.Option(min=1, max=5, help="Passages per search.")] = 3,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Turns per episode; default: as trained.", show_default=False)
    ] = None,
    max_turn_tokens: Annotated[
        int | None, typer.Option(min=4, help="Tokens per turn; default: as trained.", show_default=False)
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Step of the checkpoint; default: the newest one.", show_default=False)
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most likely token instead of sampling.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Episodes per batch.")] = 64,
) -> None:
    """Evaluate a run's policy on a data set: exact match, F1 or choice accuracy with 95 % intervals.

    The result is printed and written to table `evaluation`.
    """
    from workbench.agent.data import load
    from workbench.agent.worlds.dataset import Dataset
    from workbench.cli.replay import folder_of
    from workbench.cli.shared import current, note
    from workbench.cli.show import find
    from workbench.cli.tables import print_table
    from workbench.learn import evaluate
    from workbench.record.segments import append

    runs = Path(ctx.obj)
    run_id = find(current(runs), run)
    folder = folder_of(runs, run_id)
    chosen = evaluate.examined(folder, step)
    questions = load(data, split, limit)
    if questions.left_out:
        note(f"{questions.left_out} rows of {data} have no gold answer and are skipped")
    settings = _world(chosen.settings, corpus, retriever, topk if search else 0, max_turns, max_turn_tokens)
    world = Dataset(settings, items=questions.items)
    name = questions.name if search else f"{questions.name}-no-search"
    row = evaluate.examine(
        chosen, _tokenizer(chosen.folder, runs, chosen.settings), world, name, greedy=greedy, batch=batch,
        say=lambda done, of: note(f"{done:,} of {of:,} questions"),
    )  # fmt: skip
    append(folder, run_id, "evaluation", row)
    current(runs)
    print_table(list(row), [list(row.values())])


def _world(
    settings: RunSettings, corpus: Path | None, url: str | None, top_k: int, turns: int | None, tokens: int | None
) -> WorldSettings:
    """Return the world to ask in: as trained, with the retriever of the options."""
    from workbench.spec import RetrieverSettings, WorldSettings

    trained = settings.world
    if corpus is not None and url is not None:
        raise InputError("--corpus and --retriever both name a retriever; give one of them")
    if url is not None:
        retriever = RetrieverSettings(kind="http", url=url)
    elif corpus is not None:
        retriever = RetrieverSettings(kind="bm25", corpus=str(corpus))
    elif trained.retriever.kind != "memory":
        retriever = trained.retriever
    elif top_k == 0:
        retriever = RetrieverSettings(kind="bm25", corpus="-")  # never read: nothing is searched
    else:
        raise InputError(
            f'this run searched its own world ("{trained.kind}"), which has no passages for other questions; '
            "name some: --corpus FILE.jsonl or --retriever URL, or add --no-search"
        )
    return WorldSettings(
        kind="dataset",
        data="-",
        retriever=retriever,
        top_k=top_k,
        max_turns=turns or trained.max_turns,
        max_turn_tokens=tokens or trained.max_turn_tokens,
    )


def _tokenizer(folder: Path, runs: Path, settings: RunSettings) -> Any:
    """Return the tokenizer of the initial weights; a checkpoint holds weights only."""
    from transformers import AutoTokenizer

    from workbench.learn.warmstart import ensure

    saved = folder / "policy"
    known = (saved / "tokenizer.json").is_file()
    return AutoTokenizer.from_pretrained(saved if known else ensure(settings, runs / ".cache"))
