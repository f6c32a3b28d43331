"""`sorl eval`: evaluate a run's policy on a benchmark or a file of questions."""

from pathlib import Path

from typer import Context, Option

from sorl.cli.shared import RUN, current, find, folder_of, number
from sorl.cli.tables import note, print_table
from sorl.learn.run import settings_of
from sorl.recording.segments import append
from sorl.spec import InputError, RetrieverSettings, WorldSettings
from sorl.spec.names import refuse_outside


def eval(
    ctx: Context,
    run: str = RUN,
    data: str = Option(
        ..., metavar="NAME|FILE", help="A benchmark name, or a .jsonl or .parquet file of questions."
    ),
    split: str | None = Option(None, help="Split of the benchmark; default: the one that papers report."),
    limit: int | None = number(
        None,
        "--limit",
        least=1,
        most=10**9,
        why="without --limit every question is asked",
        what="Ask only the first N questions.",
    ),
    corpus: Path | None = Option(None, metavar="FILE.jsonl", help="Search these passages with BM25."),
    retriever: str | None = Option(None, metavar="URL", help="Search with this retrieval server."),
    search: bool = Option(True, help="With --no-search the retriever returns nothing."),
    topk: int = Option(3, min=1, max=5, help="Passages per search."),
    max_turns: int | None = number(
        None,
        "--max-turns",
        least=1,
        most=256,
        why="an episode is held in memory as a whole",
        what="Turns per episode; default: as trained.",
    ),
    max_turn_tokens: int | None = number(
        None,
        "--max-turn-tokens",
        least=4,
        most=2**20,
        why="an episode is held in memory as a whole",
        what="Tokens per turn; default: as trained.",
    ),
    step: int | None = Option(None, min=0, help="Step of the checkpoint; default: the newest one."),
    greedy: bool = Option(False, "--greedy", help="Take the most likely token instead of sampling."),
    batch: int = number(
        64,
        "--batch",
        least=1,
        most=65_536,
        why="the episodes of a batch are in memory together",
        what="Episodes per batch.",
    ),
) -> None:
    """Evaluate a run's policy on a data set: exact match, F1 or choice accuracy with 95 % intervals.

    The result is printed and written to table `evaluation`.
    """
    run_id = find(current(ctx.obj), run)
    folder = folder_of(ctx.obj, run_id)
    refuse_outside(ctx.obj, folder)
    from sorl.agent.worlds.dataset import Dataset, load
    from sorl.learn.checkpoint import checkpoint_of
    from sorl.learn.evaluate import examine
    from sorl.learn.warmstart import ensure, tokenizer_of

    settings = settings_of(folder)
    checkpoint = checkpoint_of(folder / "checkpoints", step)
    questions = load(data, split, limit)
    if questions.left_out:
        note(f"{questions.left_out} rows of {data} have no gold answer and are skipped")
    trained = settings.world
    world = WorldSettings(
        kind="dataset",
        data="-",
        retriever=_retriever(trained, corpus, retriever, search),
        top_k=topk if search else 0,
        max_turns=max_turns or trained.max_turns,
        max_turn_tokens=max_turn_tokens or trained.max_turn_tokens,
    )
    tokenizer = tokenizer_of(ensure(settings, ctx.obj / ".cache"))  # a checkpoint holds weights only
    name = questions.name if search else f"{questions.name}-no-search"
    row = {"step": int(checkpoint.name), "data": name} | examine(
        settings,
        checkpoint / "policy",
        tokenizer,
        Dataset(world, items=questions.items),
        greedy=greedy,
        batch=batch,
        say=lambda done, of: note(f"{done:,} of {of:,} questions"),
    )
    append(folder, run_id, "evaluation", row)
    current(ctx.obj)
    print_table(list(row), [list(row.values())])


def _retriever(
    trained: WorldSettings, corpus: Path | None, url: str | None, search: bool
) -> RetrieverSettings:
    if corpus is not None and url is not None:
        raise InputError("--corpus and --retriever both name a retriever; give one of them")
    if url is not None:
        return RetrieverSettings(kind="http", url=url)
    if corpus is None and trained.retriever.kind != "memory":
        return trained.retriever
    if corpus is None and search:
        why = f'this run searched its own world ("{trained.kind}"), which has no passages for other questions'
        raise InputError(f"{why}; name some: --corpus FILE.jsonl or --retriever URL, or add --no-search")
    return RetrieverSettings(kind="bm25", corpus=str(corpus or "-"))  # "-" is never read: nothing is searched
