"""Ready workloads: each module shows how one is written, and each name below runs as it stands.

`onefold tune digits` or `onefold.workload.load("digits")`. Nothing here imports torch before it is asked for.
"""

from __future__ import annotations

READY: dict[str, str] = {
    "digits": "onefold.workloads.digits:Digits",
    "mnist": "onefold.workloads.lenet:MnistLenet",
    "fashion": "onefold.workloads.lenet:FashionLenet",
    "cifar10": "onefold.workloads.resnet:Cifar10Resnet",
    "cifar10-mobilenet": "onefold.workloads.mobilenet:Cifar10Mobilenet",
    "cifar10-vit": "onefold.workloads.vit:Cifar10Vit",
    "newsgroups-cnn": "onefold.workloads.text_cnn:NewsgroupsCnn",
    "newsgroups-lstm": "onefold.workloads.lstm:NewsgroupsLstm",
    "imdb-cnn": "onefold.workloads.text_cnn:ImdbCnn",
    "imdb-lstm": "onefold.workloads.lstm:ImdbLstm",
    "agnews-cnn": "onefold.workloads.text_cnn:AgNewsCnn",
    "agnews-lstm": "onefold.workloads.lstm:AgNewsLstm",
    "speech": "onefold.workloads.m5:SpeechM5",
    "blood-cells": "onefold.workloads.detector:BloodCells",
    "paper-image-cnn": "onefold.workloads.impact_study.images:ImageCnn",
    "paper-resnet": "onefold.workloads.impact_study.images:SmallResnet",
    "paper-text-cnn": "onefold.workloads.impact_study.texts:SentenceCnn",
    "paper-lstm": "onefold.workloads.impact_study.texts:SentimentLstm",
}
