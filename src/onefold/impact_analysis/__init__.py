"""Impact analysis: how hyperparameter tuning and compression affect the properties of models.

A study trains models with everything tuned, and again with hyperparameters held at their defaults, and compresses the
best of each. Each model has properties (accuracy, latency, size, …), which the modules analyze:

    arms                       which configurations are tried, and shared between arms
    model_measurements         the measured properties of all models
    descriptive_statistics     spread, best models, relative differences
    comparison                 Mann-Whitney U test and effect size
    paired_comparison          Wilcoxon signed-rank test and effect size of pairs from the same draw
    spread_test                Brown-Forsythe test
    pairwise_differences       differences between models, before and after compression
    correlation                Pearson and Spearman
    importance                 fANOVA, on axes and variance_decomposition
    multiple_testing           Benjamini-Hochberg
    bootstrap                  confidence intervals
    findings, advice           all tables, and what they say in plain language
    model_analysis             compresses and measures the models of a finished study
    api                        `onefold.impact`

The questions and formulas are those of Liao, Li, Shang and Ma, "An empirical study of the impact of hyperparameter
tuning and model optimization on the performance properties of deep neural networks". Apart from the last two modules,
everything is a deterministic function from numbers to records.
"""

from onefold.impact_analysis.advice import Advice, advice
from onefold.impact_analysis.arms import TUNE_ALL, Arm, ArmPlan, compared_pairs, plan_arms
from onefold.impact_analysis.bootstrap import ConfidenceInterval, bootstrap_interval
from onefold.impact_analysis.comparison import Comparison, compare_samples, magnitude
from onefold.impact_analysis.correlation import Correlation, Correlations, correlations
from onefold.impact_analysis.descriptive_statistics import (
    BestDifference,
    best_difference,
    lard,
    relative_difference,
    scaled,
)
from onefold.impact_analysis.findings import Deviation, Distribution, Effect, Findings, findings
from onefold.impact_analysis.importance import Importance, Share, importance
from onefold.impact_analysis.model_measurements import FORMS, Form, ImpactMeasurements, MeasuredModel, Property
from onefold.impact_analysis.multiple_testing import benjamini_hochberg
from onefold.impact_analysis.paired_comparison import PairedComparison, compare_pairs
from onefold.impact_analysis.pairwise_differences import PairwiseDifferences, pairwise_differences
from onefold.impact_analysis.spread_test import SpreadComparison, compare_spread

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
    "PairedComparison",
    "PairwiseDifferences",
    "Property",
    "Share",
    "SpreadComparison",
    "advice",
    "benjamini_hochberg",
    "best_difference",
    "bootstrap_interval",
    "compare_pairs",
    "compare_samples",
    "compare_spread",
    "compared_pairs",
    "correlations",
    "findings",
    "importance",
    "lard",
    "magnitude",
    "pairwise_differences",
    "plan_arms",
    "relative_difference",
    "scaled",
]
