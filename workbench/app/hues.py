"""The colours of the algorithms beyond the six of the core grid, for each theme.

Chosen greedily in OKLab: each is the colour of 3:1 contrast to the background that is farthest from all before it, the
six included. Under normal vision two of them are at least 0.08 apart; names, dashes and markers help where that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LIGHT: Mapping[str, str] = MappingProxyType(
    {
        "turn-ppo-mdp": "#632500", "starpo": "#a56cf6", "starpo-s": "#3448c9", "reinforce": "#eb4d8c",
        "rloo": "#86616b", "reinforce-pp": "#62095e", "dr-grpo": "#214502", "dapo": "#a386a0",
        "loop": "#14628e", "gspo": "#c01d68", "gspo-token": "#5f17a4", "sspo": "#645e00",
        "gmpo": "#536ff4", "seeupo": "#5a4158", "cispo": "#549129", "minirl": "#d159ca",
        "dppo": "#dd6857", "vespo": "#7a8362", "sapo": "#89142f", "bapo": "#6764a4",
        "grpo-guard": "#1c1ba0", "grpo-guard-full": "#29544c", "llds": "#884727", "sapo-search": "#8145cd",
        "tis": "#ba5493", "mis": "#aa6f3c", "icepop": "#824268",
    }
)  # fmt: skip
DARK: Mapping[str, str] = MappingProxyType(
    {
        "turn-ppo-mdp": "#427f0d", "starpo": "#fab0d9", "starpo-s": "#c51a46", "reinforce": "#67bd1d",
        "rloo": "#a98e43", "reinforce-pp": "#4c7383", "dr-grpo": "#963aba", "dapo": "#cef034",
        "loop": "#3aa593", "gspo": "#965d2a", "gspo-token": "#f2daba", "sspo": "#f666c0",
        "gmpo": "#bbb994", "seeupo": "#95547a", "cispo": "#cb3d99", "minirl": "#a56cf6",
        "dppo": "#b5cceb", "vespo": "#db98f8", "sapo": "#c6796c", "bapo": "#a0a0c2",
        "grpo-guard": "#f09e91", "grpo-guard-full": "#728668", "llds": "#4ded80", "sapo-search": "#5dcbca",
        "tis": "#22fcfd", "mis": "#9b94fd", "icepop": "#abc44a",
    }
)  # fmt: skip
