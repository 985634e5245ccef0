"""What tuning and compression change about networks besides the metric they were tuned for.

A study trains many models with everything tuned, again with something held fixed, and compresses the best of them.
Each model has properties (accuracy, latency, size, …), and the questions come in this order:

    properties                   how far do the models of one tuning lie apart, and its best from another's
    comparison                   is that more than chance, and how large is it
    pairs                        do models still differ as they did once they are compressed
    correlation                  does one property say what another will be
    importance                   which hyperparameters, alone and two together, make a property what it is
       axes, decomposition       … from what may vary, and from the variance of trees over it
    correction, bootstrap        how sure all of this is: many tests at once, few models
    arms                         which configurations are tried, and shared
    evidence, findings, advice   what was measured, the tables that follow, and what they say in plain words

The questions and the formulas are those of Liao, Li, Shang and Ma, "An empirical study of the impact of hyperparameter
tuning and model optimization on the performance properties of deep neural networks". Everything here is a function
from numbers to a record, and the same numbers give the same record.
"""

from onefold.impact_analysis.advice import Advice, advice
from onefold.impact_analysis.arms import TUNE_ALL, Arm, ArmPlan, arms
from onefold.impact_analysis.bootstrap import ConfidenceInterval, bootstrap_interval
from onefold.impact_analysis.comparison import Comparison, cliffs_delta, compare_samples, magnitude
from onefold.impact_analysis.correlation import Correlation, Correlations, correlations
from onefold.impact_analysis.descriptive_statistics import (
    BestDifference,
    best,
    best_difference,
    lard,
    relative_difference,
    scaled,
)
from onefold.impact_analysis.findings import Deviation, Distribution, Effect, Findings, findings
from onefold.impact_analysis.importance import Importance, Share, importance
from onefold.impact_analysis.model_measurements import FORMS, Form, ImpactMeasurements, MeasuredModel, Property
from onefold.impact_analysis.multiple_testing import benjamini_hochberg, holm
from onefold.impact_analysis.pairwise_differences import PairwiseDifferences, pairwise_differences

__all__ = [
    "FORMS",
    "TUNE_ALL",
    "Advice",
    "Arm",
    "ArmPlan",
    "BestDifference",
    "Comparison",
    "ConfidenceInterval",
    "Correlation",
    "Correlations",
    "Deviation",
    "Distribution",
    "Effect",
    "Findings",
    "Form",
    "ImpactMeasurements",
    "Importance",
    "MeasuredModel",
    "PairwiseDifferences",
    "Property",
    "Share",
    "advice",
    "arms",
    "benjamini_hochberg",
    "best",
    "best_difference",
    "bootstrap_interval",
    "cliffs_delta",
    "compare_samples",
    "correlations",
    "findings",
    "holm",
    "importance",
    "lard",
    "magnitude",
    "pairwise_differences",
    "relative_difference",
    "scaled",
]
