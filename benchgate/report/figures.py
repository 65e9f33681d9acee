"""Every chart of a report, drawn once, by the part of the report that it stands in."""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.report.capacity_chart import capacity_figure
from benchgate.report.distribution_charts import distribution_figures
from benchgate.report.drawing import Figure
from benchgate.report.forest import forest_figure
from benchgate.report.load_charts import load_figures
from benchgate.report.paired_charts import paired_figures
from benchgate.report.timeline_charts import timeline_figures
from benchgate.report.view import ReportView


@dataclass(frozen=True, slots=True)
class Figures:
    """Charts in reading order; of several sweeps, distributions and paired blocks `more_` are those that are folded."""

    load: tuple[Figure, ...] = ()
    more_load: tuple[Figure, ...] = ()
    distributions: tuple[Figure, ...] = ()
    more_distributions: tuple[Figure, ...] = ()
    paired: tuple[Figure, ...] = ()
    more_paired: tuple[Figure, ...] = ()
    timeline: tuple[Figure, ...] = ()
    capacity: Figure | None = None
    forest: Figure | None = None

    @property
    def count(self) -> int:
        """How many charts there are."""
        alone = sum(figure is not None for figure in (self.capacity, self.forest))
        groups = (
            self.load,
            self.more_load,
            self.distributions,
            self.more_distributions,
            self.paired,
            self.more_paired,
            self.timeline,
        )
        return alone + sum(len(group) for group in groups)


def figures_of(view: ReportView) -> Figures:
    """All charts that the view has numbers for."""
    shapes, blocks = view.distributions, view.paired
    paired = paired_figures((*blocks.first, *blocks.rest)) if blocks is not None else ()
    opened = len(blocks.first) if blocks is not None else 0
    spread = distribution_figures((*shapes.first, *shapes.rest)) if shapes is not None else ()
    first = len(shapes.first) if shapes is not None else 0
    sweeps = load_figures(view.load)
    return Figures(
        load=sweeps[0] if sweeps else (),
        more_load=tuple(figure for sweep in sweeps[1:] for figure in sweep),
        distributions=spread[:first],
        more_distributions=spread[first:],
        paired=paired[:opened],
        more_paired=paired[opened:],
        timeline=timeline_figures(view.timeline),
        capacity=capacity_figure(view.capacity),
        forest=forest_figure(view.quality),
    )
