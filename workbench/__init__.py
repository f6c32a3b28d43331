"""What other programs import of sorl: the recorder, the ledger, the losses and the results files.

Everything else is internal and may change. A name is imported at its first use, so `import sorl` brings
neither torch nor a trainer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "sorl":
    raise ImportError(
        f"this package is imported as `sorl`, not as `{__name__}`: write `import sorl` "
        "(the folder workbench/ holds its source)"
    )

if TYPE_CHECKING:
    from sorl.analysis.results import read as read_results
    from sorl.recording import Clip, Ledger
    from sorl.spec import InputError
    from sorl.trainers.skyrl import skyrl_loss
    from sorl.trainers.tinker import tinker_loss
    from sorl.trainers.trl import record
    from sorl.trainers.trl_guard import guard
    from sorl.trainers.trl_loss import TrlLoss

__all__ = [
    "Clip",
    "InputError",
    "Ledger",
    "TrlLoss",
    "guard",
    "read_results",
    "record",
    "skyrl_loss",
    "tinker_loss",
]

# Public name -> its module, and its name there.
_PLACES = {
    "Clip": ("sorl.recording", "Clip"),
    "InputError": ("sorl.spec", "InputError"),
    "Ledger": ("sorl.recording", "Ledger"),
    "TrlLoss": ("sorl.trainers.trl_loss", "TrlLoss"),
    "guard": ("sorl.trainers.trl_guard", "guard"),
    "read_results": ("sorl.analysis.results", "read"),
    "record": ("sorl.trainers.trl", "record"),
    "skyrl_loss": ("sorl.trainers.skyrl", "skyrl_loss"),
    "tinker_loss": ("sorl.trainers.tinker", "tinker_loss"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'sorl' has no attribute '{name}'; it has {', '.join(__all__)}")
    module, own_name = _PLACES[name]
    return getattr(import_module(module), own_name)


def __dir__() -> list[str]:
    return __all__
