"""Parameters and FLOPs of the small model by formula, and the MLP width that matches the parameters of all mixers."""

from __future__ import annotations

from benchmarker.workloads.mixers.mixer import SOFTMAX, Mixer
from benchmarker.workloads.mixers.mixer_flops import demand_of
from benchmarker.workloads.mixers.record import BlockFacts, MixersDemand
from benchmarker.workloads.mixers.spec import MixersSubject, shape_of
from benchmarker.workloads.operation.spec import LengthPoint

CONVOLUTION = 4
"""Positions of the short convolution."""
MLP_FACTOR = 4
"""Width of the softmax model's MLP in units of the model's width."""


def mixer_parameters(mixer: Mixer, subject: MixersSubject) -> int:
    """Return the parameters of one layer's mixer: projections, gates, and convolution."""
    value_dim = subject.value_dim or subject.head_dim
    inner = subject.heads * (2 * subject.head_dim + value_dim)
    hidden = subject.block.hidden
    gates = 2 * subject.heads * (hidden + 1) if mixer.is_gated else 0
    convolution = CONVOLUTION * inner if subject.block.short_conv else 0
    return hidden * inner + subject.heads * value_dim * hidden + gates + convolution


def mlp_width(mixer: Mixer, subject: MixersSubject) -> int:
    hidden = subject.block.hidden
    if subject.block.match == "width":
        return MLP_FACTOR * hidden
    missing = mixer_parameters(SOFTMAX, subject) - mixer_parameters(mixer, subject)
    return max(1, MLP_FACTOR * hidden + round(missing / (2 * hidden)))


def parameters_of(mixer: Mixer, subject: MixersSubject, vocabulary: int, length: int) -> int:
    """Return all parameters: embeddings of tokens and positions, blocks with two norms, the last norm, the head."""
    hidden = subject.block.hidden
    layer = mixer_parameters(mixer, subject) + 2 * hidden * mlp_width(mixer, subject) + 2 * hidden
    return subject.block.layers * layer + (2 * vocabulary + length + 1) * hidden


def block_facts(mixer: Mixer, subject: MixersSubject, length: int) -> BlockFacts:
    sizes = subject.block.vocabulary, length
    parameters = parameters_of(mixer, subject, *sizes)
    return BlockFacts(
        parameters=parameters,
        mixer_parameters=mixer_parameters(mixer, subject),
        mlp_width=mlp_width(mixer, subject),
        residual=parameters / parameters_of(SOFTMAX, subject, *sizes) - 1,
        short_conv=subject.block.short_conv,
    )


def training_demand(mixer: Mixer, subject: MixersSubject, point: LengthPoint) -> MixersDemand:
    """Return FLOPs and bytes of one training step.

    FLOPs: 6 per multiplied weight and token, and those of the mixers. Bytes: each weight is read twice and its gradient
    written; AdamW reads weight, gradient and two moments, and writes weight and moments.
    """
    shape = shape_of(subject, point)
    layer = demand_of(mixer, shape._replace(mode="forward_backward"))
    parameters = parameters_of(mixer, subject, subject.block.vocabulary, shape.seq_len)
    embedded = (subject.block.vocabulary + shape.seq_len) * subject.block.hidden
    mixers = layer.flops * subject.block.layers
    return layer.model_copy(
        update={
            "forward_flops": 2 * (parameters - embedded) * shape.tokens + layer.forward_flops * subject.block.layers,
            "flops": 6 * (parameters - embedded) * shape.tokens + mixers,
            "bytes": 10 * 4 * parameters,
            "mixer_flops": mixers,
        }
    )
