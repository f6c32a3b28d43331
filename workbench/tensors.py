"""torch for the declarations: the package is imported when something is computed, not when an algorithm is
declared.

`import sorl.algorithms` then takes a tenth of a second, so the command line and the app read the
declarations themselves. Modules whose whole point is to compute (the trainer, the replay) import torch
directly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "torch"]


class _Torch:
    """Stands for the package torch and imports it at the first use of one of its names."""

    def __getattr__(self, name: str) -> Any:
        """Return `torch.name`, and keep it: the next access costs as much as that of a module's attribute."""
        value = getattr(import_module("torch"), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = _Torch()
    Tensor = Any
