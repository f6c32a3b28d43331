"""`sorl eval`: evaluate a run's policy on a benchmark or a file of questions."""

from dataclasses import dataclass
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
    request = _Request(
        data=data,
        split=split,
        limit=limit,
        corpus=corpus,
        server=retriever,
        is_searching=search,
        top_k=topk,
        max_turns=max_turns,
        max_turn_tokens=max_turn_tokens,
        step=step,
        is_greedy=greedy,
        batch=batch,
    )
    _evaluate(ctx.obj, run, request)


@dataclass(frozen=True)
class _Request:
    """Which questions are asked, with which retriever, and how they are answered."""

    data: str  # a benchmark or a file of questions
    split: str | None
    limit: int | None
    corpus: Path | None  # passages for BM25
    server: str | None  # address of a retrieval server
    is_searching: bool
    top_k: int  # passages a search
    max_turns: int | None  # None: as trained
    max_turn_tokens: int | None
    step: int | None  # of the checkpoint; None: the newest
    is_greedy: bool
    batch: int  # episodes


def _evaluate(runs: Path, run: str, request: _Request) -> None:
    """Ask a run's policy the questions, write the result and print it."""
    run_id = find(current(runs), run)
    folder = folder_of(runs, run_id)
    refuse_outside(runs, folder)
    from sorl.agent.worlds.dataset import Dataset, load
    from sorl.learn.checkpoint import checkpoint_of
    from sorl.learn.evaluate import examine
    from sorl.learn.warmstart import ensure, tokenizer_of

    settings = settings_of(folder)
    checkpoint = checkpoint_of(folder / "checkpoints", request.step)
    questions = load(request.data, request.split, request.limit)
    if questions.left_out:
        note(f"{questions.left_out} rows of {request.data} have no gold answer and are skipped")
    world = _world(settings.world, request)
    tokenizer = tokenizer_of(ensure(settings, runs / ".cache"))  # a checkpoint holds weights only
    name = questions.name if request.is_searching else f"{questions.name}-no-search"
    row = {"step": int(checkpoint.name), "data": name} | examine(
        settings,
        checkpoint / "policy",
        tokenizer,
        Dataset(world, items=questions.items),
        greedy=request.is_greedy,
        batch=request.batch,
        say=lambda done, of: note(f"{done:,} of {of:,} questions"),
    )
    append(folder, run_id, "evaluation", row)
    current(runs)
    print_table(list(row), [list(row.values())])


def _world(trained: WorldSettings, request: _Request) -> WorldSettings:
    """Return the world that asks the questions; what the request leaves open is as it was trained."""
    return WorldSettings(
        kind="dataset",
        data="-",
        retriever=_retriever(trained, request),
        top_k=request.top_k if request.is_searching else 0,
        max_turns=request.max_turns or trained.max_turns,
        max_turn_tokens=request.max_turn_tokens or trained.max_turn_tokens,
    )


def _retriever(trained: WorldSettings, request: _Request) -> RetrieverSettings:
    """Return the retriever that is asked for, or that of the training where it knows other passages."""
    corpus = request.corpus
    if corpus is not None and request.server is not None:
        raise InputError("--corpus and --retriever both name a retriever; give one of them")
    if request.server is not None:
        return RetrieverSettings(kind="http", url=request.server)
    if corpus is None and trained.retriever.kind != "memory":
        return trained.retriever
    if corpus is None and request.is_searching:
        why = f'this run searched its own world ("{trained.kind}"), which has no passages for other questions'
        raise InputError(f"{why}; name some: --corpus FILE.jsonl or --retriever URL, or add --no-search")
    return RetrieverSettings(kind="bm25", corpus=str(corpus or "-"))  # "-" is never read: nothing is searched
