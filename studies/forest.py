"""A forest: effects with their 95 % intervals, a line an effect, coloured by verdict."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from sorl.app.figures import common
from sorl.app.figures.common import Trace, note
from sorl.app.text import wrapped
from sorl.app.theme import Palette

SHARE = "share"
FACTOR = "factor"
# characters of a line
_LABEL = 48
_FINDING = 42
_TITLES = {
    SHARE: "difference of the shares of runs that collapse (fraction; above 0: as the claim says)",
    FACTOR: "factor (ratio, log scale; above 1: as the claim says)",
}


class Effect(NamedTuple):
    """One line of a forest: `kind` is share or factor, `finding` the words to its right, `tone` an outcome's
    colour.
    """

    label: str
    kind: str
    value: float
    low: float
    high: float
    finding: str
    tone: str = ""

    @property
    def height(self) -> int:
        """Pixels of the line."""
        lines = wrapped(self.label, _LABEL).count("<br>"), wrapped(self.finding, _FINDING).count("<br>")
        return 17 * (max(lines) + 1) + 15


def forest(effects: Sequence[Effect], palette: Palette) -> go.Figure:
    """Draw at least one effect with its interval: differences of shares above, factors below, coloured by
    verdict.
    """
    panels = [part for kind in (SHARE, FACTOR) if (part := [e for e in effects if e.kind == kind])]
    gap = 66  # pixels
    inner = top = sum(e.height for e in effects) + gap * (len(panels) - 1)  # `top` of a panel, from below
    layout: dict[str, Any] = {}
    annotations = list[Trace]()
    traces = list[Trace]()
    for place, part in enumerate(panels):
        kind = part[0].kind
        tall = sum(e.height for e in part)
        pane = common.Pane(place, 0, True, (0, 0.62), (max(0, top - tall) / inner, top / inner))
        top -= tall + gap
        muted = {"color": palette.muted, "size": 12}
        head = f"{'difference' if kind == SHARE else 'factor'}, 95 % interval, found, seeds, verdict"
        annotations.append(
            note(head, 0.64, pane.y[1], xanchor="left", yanchor="bottom", yshift=4, font=muted)
        )
        none = 0.0 if kind == SHARE else 1.0
        drawn = [common.line([none, none], [0, tall], palette.muted, 1, dash=common.DOTTED)]
        bottoms = np.cumsum([e.height for e in part])
        places = [float(bottom - e.height / 2) for e, bottom in zip(part, bottoms, strict=True)]
        for effect, y in zip(part, places, strict=True):
            colour = palette.outcomes.get(effect.tone, palette.muted)
            hover = (
                f"<b>{wrapped(effect.label, 60)}</b><br>%{{x:.3~g}}, 95 % interval {effect.low:.3g} to "
                f"{effect.high:.3g}<br>{wrapped(effect.finding, 60)}"
            )
            drawn += [
                common.line([effect.low, effect.high], [y, y], colour, 2.4),
                common.marks([effect.value], [y], "diamond", 10, colour, hover),
            ]
            annotations.append(
                note(
                    wrapped(effect.finding, _FINDING),
                    0.64,
                    y,
                    yref=pane.axes["yaxis"],
                    xanchor="left",
                    yanchor="middle",
                    align="left",
                    font={"size": 12, "color": palette.text},
                )
            )
        traces += [one | pane.axes for one in drawn]
        if kind == SHARE:
            x_axis = common.axis(_TITLES[kind], range=[-1.05, 1.05], tickformat="+.1~f")
        else:
            ends = [math.log10(max(value, 1e-9)) for e in part for value in (e.low, e.high, 1.0)]
            pad = 0.06 * (max(ends) - min(ends)) + 0.02
            limits = [min(ends) - pad, max(ends) + pad]
            x_axis = common.axis(_TITLES[kind], type="log", exponentformat="none", nticks=8, range=limits)
        layout |= pane.placed(
            x_axis,
            common.axis(
                range=[tall, 0],
                tickmode="array",
                tickvals=places,
                ticktext=[wrapped(e.label, _LABEL) for e in part],
                showgrid=False,
                tickfont={"color": palette.text, "size": 12},
            ),
        )
    return common.figure(traces, palette, inner=inner, top=30, bottom=52, annotations=annotations, **layout)
