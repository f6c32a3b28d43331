"""Generated blocks of the docs: `make docs` writes them through cog, `make check` finds stale ones.

Each function returns the Markdown of one block, rendered from the declarations in `workbench/`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sorl.spec import TABLES, Diagnostic, Level, Table
from sorl.spec.markdown import markdown_table

ROOT = Path(__file__).parents[2]


def code(names: Iterable[str]) -> str:
    """Return names as inline code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


# docs/cli.md


def commands() -> str:
    """Return usage and help of every verb, in the order of `sorl --help`."""
    import typer

    from sorl.cli.main import app

    group = typer.main.get_command(app)
    context = group.make_context("sorl", [], resilient_parsing=True)
    verbs: list[tuple[str, Any]] = []
    for name in group.list_commands(context):  # type: ignore[attr-defined]
        verb = group.get_command(context, name)  # type: ignore[attr-defined]
        verbs += [(f"{name} {inner}", found) for inner, found in getattr(verb, "commands", {}).items()] or [
            (name, verb)
        ]
    return "\n\n".join(_verb(name, verb) for name, verb in verbs)


def _verb(name: str, command: Any) -> str:
    context = command.make_context(f"sorl {name}", [], resilient_parsing=True)
    rows = []
    for parameter in command.get_params(context):
        if parameter.name == "help":
            continue
        record = parameter.get_help_record(context)
        usage, text = (
            record if record else (parameter.human_readable_name, getattr(parameter, "help", None) or "")
        )
        rows.append((f"`{usage}`", text))
    usage = " ".join(command.collect_usage_pieces(context))
    help_text = inspect.cleandoc(command.help or "").split("\f")[0]
    page = f"## sorl {name}\n\n    sorl {name} {usage}\n\n{help_text}"
    return f"{page}\n\n{markdown_table(('argument', 'meaning'), rows)}" if rows else page


# docs/schema.md


def schema() -> str:
    """Return every table with its grain, key and columns; formulas and sources are on the page of
    diagnostics.
    """
    return "\n\n".join(map(_table, TABLES))


def _table(table: Table) -> str:
    from sorl.measures import CATALOGUE

    rows = [(f"`{c.name}`", c.type, "", c.description) for c in table.columns]
    rows += [
        (f"`{d.name}`", d.sql_type, d.unit.value, d.description) for d in CATALOGUE if d.table == table.name
    ]
    return f"## {table.name}\n\n{table.grain} Key: {code(table.key)}.\n\n" + markdown_table(
        ("column", "type", "unit", "meaning"), rows
    )


# docs/algorithms.md

ALGORITHM_NOTES = (
    "Terms besides the rule itself (a KL to the reference, an entropy bonus) are off in every declaration, so"
    " that two algorithms differ in their rule; `slots.kl` and `learn.entropy_coef` switch them on. Learning"
    " rates and clips of the gradient norm are settings of a run. *Experimental* means that the declaration"
    " may not be what its source does, for the reason given. What we measured is computed from the shipped"
    " results of the grid named (`experiments/results/`, on 2 cores of a shared x86-64 server), for arms that"
    " are the algorithm as declared: of a grid how many runs collapsed, with the 95 % Clopper-Pearson"
    " interval; of a region where half of them do, with the 95 % interval of its fit. A grid may repeat runs"
    " of another one as its base; named controls, which change a setting, are in"
    " docs/results/claims.md. The rest is *not measured yet*."
)


def algorithms(measured: Mapping[str, str]) -> str:
    """Return the algorithms by family, each as its difference to another, then every kind of every slot.

    `measured` has a line about each algorithm that a shipped experiment trained.
    """
    from sorl.algorithms import NOT_YET, SYMBOLS, by_family
    from sorl.objective import KINDS

    blocks = [_algorithm(a, measured.get(a.name, NOT_YET)) for _, members in by_family() for a in members]
    return "\n\n".join([_contents(), SYMBOLS, ALGORITHM_NOTES, *blocks, *map(_slot, KINDS)]) + "\n"


def _contents() -> str:
    from sorl.algorithms import ALGORITHMS, ALIASES, by_family, differences

    rows = ["| algorithm | difference | critic | rollouts a prompt | paper |", "|---|---|---|---|---|"]
    for title, members in by_family():
        rows.append(f"| **{title}** | | | | |")
        for a in members:
            base = ALGORITHMS[a.differs_from or a.name]
            difference = (
                "the base"
                if a.differs_from is None
                else (f"`{a.differs_from}` with another {' and '.join(differences(base, a))}")
            )
            critic = "yes" if a.critic else "no"
            mark = " (experimental)" if a.experimental else ""
            rows.append(f"| `{a.name}`{mark} | {difference} | {critic} | {a.group_size} | <{a.paper}> |")
    return (
        "\n".join(rows) + "\n\n" + " ".join(f"`{a}` is accepted for `{name}`." for a, name in ALIASES.items())
    )


def _algorithm(algorithm: Any, measured: str) -> str:
    from sorl.objective import KINDS

    lines = [f"## {algorithm.title}", "", algorithm.summary, "", f"$${algorithm.formula}$$", ""]
    lines += ["| slot | choice |", "|---|---|"]
    lines += [f"| {slot} | {_choice(getattr(algorithm, slot))} |" for slot in KINDS]
    lines += ["", f"- Source: <{algorithm.paper}>", f"- Claimed: {algorithm.claim}."]
    lines += [f"- Measured: {measured}."]
    lines += [f"- Experimental: {algorithm.experimental}."] if algorithm.experimental else []
    return "\n".join(lines)


def _choice(choice: Any) -> str:
    return " ".join([f"`{choice.kind}`", ", ".join(choice.options())]).strip()


def _slot(slot: str) -> str:
    from sorl.objective import KINDS

    rows = [f"## Slot `{slot}`", "", "| kind | options and defaults | definition |", "|---|---|---|"]
    for kind, choice in KINDS[slot].items():
        defaults = "; ".join(choice().options()) or "none"
        definition = " ".join((inspect.getdoc(choice) or "").split()).replace("|", "\\|")
        rows.append(f"| `{kind}` | {defaults} | {definition} |")
    return "\n".join(rows)


# docs/diagnostics.md


def diagnostics() -> str:
    """Return the symbols, the columns of each table, what costs a pass of its own, the alarms."""
    from sorl.measures import CATALOGUE
    from sorl.measures.declare import SYMBOLS

    symbols = markdown_table(("symbol", "meaning"), ([f"`{s}`", meaning] for s, meaning in SYMBOLS))
    tables = [
        _columns(name, [d for d in CATALOGUE if d.table == name])
        for name in dict.fromkeys(d.table for d in CATALOGUE)
    ]
    return "\n\n".join([f"## Symbols\n\n{symbols}", *tables, _passes(), _alarms()]) + "\n"


def _columns(name: str, diagnostics: Sequence[Diagnostic]) -> str:
    from sorl.spec import table

    rows = ([f"`{d.name}`", d.unit.value, f"`{d.formula}`", d.description, d.source] for d in diagnostics)
    header = ("column", "unit", "formula", "what it tells", "source")
    return f"## Table `{name}`\n\n{table(name).grain}\n\n" + markdown_table(header, rows)


def _passes() -> str:
    from sorl.measures import CATALOGUE, update
    from sorl.spec import LearnSettings

    every = LearnSettings()
    bias = [d.name for d in CATALOGUE if d.name in ("clip_bias_norm", "clip_bias_ratio", "clip_bias_cosine")]
    return (
        "## What costs a pass of its own\n\nEverything above comes from the forward and backward passes of"
        " training, except these columns of table `minibatch`. They are NULL on the updates between, and a"
        " run trains the same whether they are taken or not.\n\n"
        + markdown_table(
            ("setting", "default", "columns", "costs"),
            (
                (
                    "`learn.probe_every`",
                    f"{every.probe_every} (never)",
                    code(m.name for m in update.PROBE),
                    "two forward passes and a backward",
                ),
                (
                    "`learn.clip_bias_every`",
                    every.clip_bias_every,
                    code(bias),
                    (
                        "a backward; another where the loss has a KL term, an entropy bonus or a factor that"
                        " is not 1"
                    ),
                ),
            ),
        )
    )


def _alarms() -> str:
    from sorl.collapse.events import COMBINED, COOLDOWN
    from sorl.measures import CATALOGUE
    from sorl.measures.declare import FINER, in_words

    silent: dict[str, list[str]] = {}  # reason -> columns of table step without an alarm
    for d in CATALOGUE:
        if d.level is Level.STEP and not d.alarm:
            silent.setdefault(d.no_alarm, []).append(d.name)
    rows = ([f"`{d.table}.{d.name}`", in_words(d.alarm), d.alarm.reason] for d in CATALOGUE if d.alarm)
    return (
        "## Alarms\n\nAn alarm is an event of kind `alarm`. It fires once, is armed again when the value has"
        f" come back, and keeps quiet for {COOLDOWN} steps in between. The marks are starting points, not"
        " truths: whether one warns in time on your runs is what the view `lead_time` shows.\n\n"
        + markdown_table(("diagnostic", "goes off", "reason"), rows)
        + "\n\nThe other columns of table `step` have none, for these reasons; the finer tables have none"
        f" because {FINER}.\n\n"
        + markdown_table(
            ("diagnostics", "no alarm, because"), ([code(names), reason] for reason, names in silent.items())
        )
        + "\n\nTwo findings take more than one value:\n\n"
        + markdown_table(
            ("event", "severity", "happens when", "reason"),
            ([f"`{c.kind}`", c.severity, c.happens, c.reason] for c in COMBINED),
        )
    )


# docs/causes.md, docs/results/metric-names.md


def causes() -> str:
    """Return one row per cause: what it is, what it needs from a log, what to do."""
    from sorl.diagnosis.causes import CAUSES

    rows = (
        (f"`{c.name}`", f"{c.title} ({c.severity})", code((*c.needs, *c.needs_settings)), c.change)
        for c in CAUSES
    )
    return markdown_table(("cause", "meaning", "needs", "remedy"), rows)


def metric_names() -> str:
    """Return one row per column of ours, with the metrics of other trainers that are read as it."""
    from sorl.importing.names import NAMES, STEP

    rows = [
        ("`step`", code(STEP)),
        *((f"`{column}`", code(found)) for column, found in sorted(NAMES.items())),
    ]
    return markdown_table(("read as", "metric in the log"), rows)


def setting_names() -> str:
    """Return one row per setting of ours, with the keys of other trainers' configurations that are read as
    it.
    """
    from sorl.importing.names import SETTINGS

    rows = [(f"`{setting}`", code(found)) for setting, found in SETTINGS.items()]
    return markdown_table(("setting", "key in the configuration (its end)"), rows)


# docs/fair-comparison.md


def checks() -> str:
    """Return one row per check of the guard."""
    from sorl.spec import GUARD

    seen = {
        "plan": "`sorl plan`, before anything runs",
        "start": "trainer, before its first step",
        "step": "trainer, after every step",
        "compare": "`sorl compare`, from what runs recorded",
    }
    rows = (
        (f"`{c.name}`", seen[c.seen], f"**{c.severity}**: {c.flags}" if c.flags else "", c.notes, c.reason)
        for c in GUARD
    )
    return markdown_table(("check", "seen by", "flagged", "only noted", "why"), rows)


def stop_rules() -> str:
    """Return one row per stop rule."""
    from sorl.spec import StopSettings

    found = StopSettings.model_fields.items()
    return markdown_table(
        ("setting", "ends the run after"), ((f"`stop.{name}`", f.description or "") for name, f in found)
    )


# docs/faults.md


def faults() -> str:
    """Return one row per kind of fault."""
    from sorl.learn.faults import FAULTS

    def strength(kind: Any) -> str:
        return (
            f"{kind.strength} ({kind.unit})"
            if kind.unit and kind.unit not in kind.strength
            else kind.strength
        )

    rows = (
        (
            f"`{k.name}`",
            k.bug,
            strength(k),
            f"{k.default:,g}",
            "yes" if k.turn else "",
            k.concerns,
            f"`{k.caught}`" if k.caught.startswith("guard_") else k.caught,
        )
        for k in FAULTS.values()
    )
    return markdown_table(
        ("kind", "the bug", "strength", "default", "one turn", "concerns", "caught by"), rows
    )


# docs/regions.md, docs/running.md


def region_settings() -> str:
    """Return one row per setting of table [region]."""
    from sorl.spec import RegionSettings

    rows = (
        (
            f"`{name}`",
            "" if field.is_required() else "none" if field.default is None else field.default,
            field.description,
        )
        for name, field in RegionSettings.model_fields.items()
    )
    return markdown_table(("setting", "default", "meaning"), rows)


def cell_events() -> str:
    """Return one row per event that the grid writes about the process of a cell."""
    from sorl.grid.folder import KINDS

    return markdown_table(
        ("event", "severity", "what happened"), ((f"`{name}`", *told) for name, told in KINDS.items())
    )


# docs/audit.md


def identities() -> str:
    """Return one row per identity of the audit of a stored step."""
    from sorl.audit import IDENTITIES

    return _identities(IDENTITIES.values())


def _identities(declared: Iterable[Any]) -> str:
    rows = ([f"`{one.name}`", one.must, one.means] for one in declared)
    return markdown_table(["identity", "what must hold", "where it does not"], rows)


# docs/identities.md


def identity_sections() -> str:
    """Return a section per identity: what it says with its formula, how it can be innocent, what to do."""
    from sorl.audit import IDENTITIES

    return "\n\n".join(_identity(one) for one in IDENTITIES.values())


def _identity(one: Any) -> str:
    from sorl.audit.registry import RECORDED, TABLES, WITNESS

    applies = {
        TABLES: "From the rows of every step.",
        RECORDED: "In stored steps of other trainers' runs.",
        WITNESS: "From the witnesses of all steps.",
    }
    lines = [f"## {one.name}", "", f"**{one.must}.** {applies.get(one.reads, 'In stored steps.')}", ""]
    lines += [f"    {one.formula}", ""]
    lines += [f"- **If not**: {one.means}."]
    lines += [f"- **Innocent if**: {one.innocent}"]
    lines += [f"- **What to do**: {one.change}"]
    return "\n".join(lines)


# docs/replay.md, docs/results/stored-batches.md


def batch_settings() -> str:
    """Return one row per setting of [record.batches]."""
    from sorl.spec import BatchesSettings

    found = BatchesSettings.model_fields.items()
    return markdown_table(
        ("setting", "default", "meaning"), ((f"`{n}`", f.default, f.description or "") for n, f in found)
    )


def batch_arrays() -> str:
    """Return one row per array of a stored batch."""
    from sorl.store.batches import ARRAYS

    axes = {"B": "B", "BT": "B x T", "BTW": "B x T x W", "R": "R", "RT": "R x T", "U": "U"}
    rows = (
        (f"`{name}`", axes[a.axes], a.kind, a.text + ("" if a.always else "; where there is one"))
        for name, a in ARRAYS.items()
    )
    return markdown_table(("array", "axes", "kind", "meaning"), rows)


def replay_columns() -> str:
    """Return one row per column of a replay, with the tables that have it."""
    from sorl.replay.tables import TABLES

    known = {column.name: column for table in TABLES.values() for column in table}
    places = {
        name: [t for t, table in TABLES.items() if any(c.name == name for c in table)] for name in known
    }
    rows = ((f"`{n}`", ", ".join(places[n]), c.type, c.description) for n, c in known.items())
    return markdown_table(("column", "tables", "type", "meaning"), rows)


# docs/results/


def findings(files: Sequence[str]) -> str:
    """Return the report of shipped results (paths from the root of the checkout), headings from level 2."""
    from sorl.analysis.results import read
    from sorl.cli.report import commands, written

    found = [read(ROOT / file) for file in files]
    return written(found, commands(found, [], [Path(file) for file in files]), "md", level=2)
