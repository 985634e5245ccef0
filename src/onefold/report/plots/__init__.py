"""The plots of a study report: functions from a summary to SVG."""

from onefold.report.plots.curves import curves
from onefold.report.plots.ladder import ladder
from onefold.report.plots.marks import Plot
from onefold.report.plots.parallel import parallel
from onefold.report.plots.progress import progress
from onefold.report.plots.tradeoff import tradeoffs

__all__ = ["Plot", "curves", "ladder", "parallel", "progress", "tradeoffs"]
