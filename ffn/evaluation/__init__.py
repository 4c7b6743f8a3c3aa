"""Accuracy and cost of a network at every frame count.

A sweep reports for each frame count the sub-network used, top-1, top-5 and mean-class
accuracy, multiply-accumulates, parameters and latency. The number of processes does not change the
accuracies.
"""

from ffn.evaluation.collect import evaluating
from ffn.evaluation.confusion import confusion_matrix, save_details
from ffn.evaluation.cost import count_macs, count_parameters, measure_latency
from ffn.evaluation.early_exit import EarlyExit, fit_early_exit
from ffn.evaluation.ensemble import ensemble
from ffn.evaluation.metrics import accuracy, label_ranks
from ffn.evaluation.multi_label import average_precision, multi_label_accuracy
from ffn.evaluation.plots import save_figure
from ffn.evaluation.report import (
    load_predictions,
    load_table,
    print_table,
    save_prediction_table,
    save_predictions,
    save_table,
)
from ffn.evaluation.results import ERRORS, TITLES, Predictions, Row, Sweep
from ffn.evaluation.summary import summary
from ffn.evaluation.sweep import evaluate, sweep

__all__ = [
    "ERRORS",
    "TITLES",
    "EarlyExit",
    "Predictions",
    "Row",
    "Sweep",
    "accuracy",
    "average_precision",
    "confusion_matrix",
    "count_macs",
    "count_parameters",
    "ensemble",
    "evaluate",
    "evaluating",
    "fit_early_exit",
    "label_ranks",
    "load_predictions",
    "load_table",
    "measure_latency",
    "multi_label_accuracy",
    "print_table",
    "save_details",
    "save_figure",
    "save_prediction_table",
    "save_predictions",
    "save_table",
    "summary",
    "sweep",
]
