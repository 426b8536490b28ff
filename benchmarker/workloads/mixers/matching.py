"""Parameters of the small model by formula, and the feed-forward's width that makes them equal for every mixer."""

from __future__ import annotations

from benchmarker.workloads.mixers.record import BlockFacts
from benchmarker.workloads.mixers.spec import MixersSubject
from benchmarker.workloads.mixers.variants.base import SOFTMAX, Mixer

CONVOLUTION = 4
"""Positions of the short convolution."""
WIDER = 4
"""How many times as wide as the model the feed-forward of the softmax model is."""


def mixer_parameters(mixer: Mixer, subject: MixersSubject) -> int:
    """Of one layer's mixer: projections, decays and strengths, and the convolution."""
    value_dim = subject.value_dim or subject.head_dim
    inner = subject.heads * (2 * subject.head_dim + value_dim)
    hidden = subject.block.hidden
    gates = 2 * subject.heads * (hidden + 1) if mixer.is_gated else 0
    convolution = CONVOLUTION * inner if subject.block.short_conv else 0
    return hidden * inner + subject.heads * value_dim * hidden + gates + convolution


def mlp_width(mixer: Mixer, subject: MixersSubject) -> int:
    """Of the feed-forward's middle."""
    hidden = subject.block.hidden
    if subject.block.match == "width":
        return WIDER * hidden
    missing = mixer_parameters(SOFTMAX, subject) - mixer_parameters(mixer, subject)
    return max(1, WIDER * hidden + round(missing / (2 * hidden)))


def parameters_of(mixer: Mixer, subject: MixersSubject, vocabulary: int, length: int) -> int:
    """Of the whole model: embeddings of tokens and positions, blocks with two norms each, a last norm, the head."""
    hidden = subject.block.hidden
    layer = mixer_parameters(mixer, subject) + 2 * hidden * mlp_width(mixer, subject) + 2 * hidden
    return subject.block.layers * layer + (2 * vocabulary + length + 1) * hidden


def block_facts(mixer: Mixer, subject: MixersSubject, length: int) -> BlockFacts:
    """What the timed model is."""
    sizes = subject.block.vocabulary, length
    counted, softmax = parameters_of(mixer, subject, *sizes), parameters_of(SOFTMAX, subject, *sizes)
    return BlockFacts(
        parameters=counted,
        mixer_parameters=mixer_parameters(mixer, subject),
        mlp_width=mlp_width(mixer, subject),
        residual=counted / softmax - 1,
        short_conv=subject.block.short_conv,
    )
