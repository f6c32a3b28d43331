"""The settings in which a run differs from runs that worked, those first that change what is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

from sorl.difference.defaults import ABSENT, defaults_of
from sorl.spec import COSMETIC

# training: it changes what is trained. observing: what is written, evaluated or saved, and how fast.
# identity: names, places and seeds, in which two runs always differ.
Kind = Literal["training", "observing", "identity"]
KINDS: tuple[Kind, ...] = ("training", "observing", "identity")

# Parts of dotted keys, whatever trainer they are of; `*` stands for any word characters.
_IDENTITY_WORDS = (
    "seed data_seed draw run_name run_id experiment_name project_name project group_name trial_name tags"
    " notes output_dir logging_dir log_dir save_dir default_local_dir default_hdfs_dir hub_* push_to_hub*"
    " resume_* local_rank port *_port host *_host *_addr *_address hostname wandb_*"
    " _wandb *_version created_at started_at"
    " start_time timestamp date"
)
_OBSERVING_WORDS = (
    "logging_* log_* logger report_to disable_tqdm save_* eval_* eval evaluation do_eval test_freq val_*"
    " num_workers dataloader_* profiler profile print_* verbose nsys timeout *_timeout *memory_utilization"
    " record collapse stop threads checkpoint n_gpus_per_node nnodes"
)


def _pattern_of(words: str) -> re.Pattern[str]:
    """Return the pattern of keys of which a part is one of the words."""
    choices = "|".join(word.replace("*", r"\w*") for word in words.split())
    return re.compile(rf"(?:^|\.)(?:{choices})(?:$|\.)", re.IGNORECASE)


_IDENTITY = _pattern_of(_IDENTITY_WORDS)
_OBSERVING = _pattern_of(_OBSERVING_WORDS)


# What a log says as well that holds no configuration.
_IN_EVERY_LOG = (
    "iterations",
    "max_steps",
    "num_train_epochs",
    "global_step",
    "train_batch_size",
    "total_flos",
)
# Values that mean the same: TRL 0.22 gave the two ways to scale rewards names.
_ALIKE = ({"True", "group"}, {"False", "none"})


class SettingDifference(NamedTuple):
    """A setting that has another value in the bad run than in any of the good ones."""

    name: str  # dotted key, as the configuration spells it
    good: object  # ABSENT where it is not known
    bad: object
    kind: Kind
    default_good: str = ""  # the version whose default `good` is, as `trl 0.18.2`; empty where it was set
    default_bad: str = ""

    @property
    def is_of_versions(self) -> bool:
        """Whether nobody set it, and its default is another in the other version."""
        return bool(self.default_good and self.default_bad)


class Configuration(NamedTuple):
    """The settings of one run, with the trainer and its version where they are known."""

    settings: Mapping[str, object]
    trainer: str = ""
    version: str = ""  # of the trainer's package

    @property
    def is_known(self) -> bool:
        """Whether it says a setting that trains, and not only what every log says."""
        return any(kind_of(name) == "training" and name not in _IN_EVERY_LOG for name in self.settings)

    def effective(self) -> dict[str, object]:
        """Return the settings with the defaults of the trainer's version where nothing was set."""
        known = defaults_of(self.trainer)
        defaults = known.at(self.version) if known is not None and self.version else {}
        return {**defaults, **self.settings}

    def may_be_default(self, option: str, value: object) -> bool:
        """Whether a value is what some version of the trainer takes for an option that is not set here."""
        known = defaults_of(self.trainer)
        if known is None or self.version:
            return False
        history = known.options.get(option, [])
        return any(_is_same(value, entry[1]) for entry in history if len(entry) > 1)

    def default_named(self, option: str) -> str:
        """Return the version whose default an option has, as `trl 0.18.2`; empty where it was set."""
        known = defaults_of(self.trainer)
        if known is None or not self.version or option in self.settings:
            return ""
        return f"{known.package} {self.version}" if option in known.at(self.version) else ""


def setting_differences(good: Sequence[Configuration], bad: Configuration) -> list[SettingDifference]:
    """Return the settings of the bad run whose value none of the good runs has, those that train first.

    What one side does not say is its default, where the version of its trainer is known; where it is not, any
    default that the option ever had may be meant. Nothing is compared where a side says neither.
    """
    told = [one for one in good if one.effective()]
    before = [one.effective() for one in told]
    if not told or not bad.effective():
        return []
    now = bad.effective()
    differences = []
    names = dict.fromkeys(chain(*before, now))
    for name in names:
        value = now.get(name, ABSENT)
        values = [table.get(name, ABSENT) for table in before]
        if _is_new(name, values, value, told, bad):
            continue
        is_default = any(one.may_be_default(name, value) for one in told if name not in one.settings)
        is_default = is_default or any(bad.may_be_default(name, other) for other in values if value is ABSENT)
        if is_default or any(_is_same(value, other) for other in values):
            continue
        differences.append(
            SettingDifference(
                name, values[0], value, kind_of(name), told[0].default_named(name), bad.default_named(name)
            )
        )
    return sorted(differences, key=lambda one: (KINDS.index(one.kind), one.is_of_versions))


def _is_new(
    name: str, values: Sequence[object], value: object, good: Sequence[Configuration], bad: Configuration
) -> bool:
    """Whether nobody set an option, and only the version of one side has it: its default is then what was
    done before it could be chosen.
    """
    is_set = name in bad.settings or any(name in one.settings for one in good)
    is_one_sided = (value is ABSENT) != (values[0] is ABSENT)
    return is_one_sided and not is_set


def kind_of(name: str) -> Kind:
    """Return what a setting is for, by its name."""
    if name in COSMETIC:
        return "observing"
    if _IDENTITY.search(name):
        return "identity"
    return "observing" if _OBSERVING.search(name) else "training"


def in_words(value: object) -> str:
    """Return a value as a sentence gives it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_same(one: object, other: object) -> bool:
    """Whether two values are the same: numbers by value, so that 1 and 1.0 are, anything else as written."""
    if _says_nothing(one) or _says_nothing(other):
        return _says_nothing(one) and _says_nothing(other)
    if any({str(one), str(other)} == alike for alike in _ALIKE):
        return True
    first = _number(one)
    second = _number(other)
    if first is not None and second is not None:
        return first == second
    return str(one) == str(other)


def _says_nothing(value: object) -> bool:
    """Whether a value is that of a switch or text that is not used."""
    return value is ABSENT or value is None or value is False or value == ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
