"""Knobs: what changes the cost of training and not what is to be learned, each put back to what was found."""

from onefold.training.knobs.catalogue import Offer, catalogue, turned
from onefold.training.knobs.knob import Job, Knob, NotHere

__all__ = ["Job", "Knob", "NotHere", "Offer", "catalogue", "turned"]
