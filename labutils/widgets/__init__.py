"""Explorers: a control, a live computation on the real model, a picture. Each has a static form where nothing runs."""

from labutils.widgets.cache import cache_timeline
from labutils.widgets.explorer import Explorer
from labutils.widgets.fit import fit_planner
from labutils.widgets.lens import logit_lens
from labutils.widgets.models import attention, next_token, stages
from labutils.widgets.parameters import parameter_map
from labutils.widgets.quantization import quantization
from labutils.widgets.sampling import sampling
from labutils.widgets.templates import chat_template
from labutils.widgets.throughput import throughput
from labutils.widgets.tokens import playground

__all__ = [
    "Explorer",
    "attention",
    "cache_timeline",
    "chat_template",
    "fit_planner",
    "logit_lens",
    "next_token",
    "parameter_map",
    "playground",
    "quantization",
    "sampling",
    "stages",
    "throughput",
]
