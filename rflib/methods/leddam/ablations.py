"""What each ablation of Leddam leaves of the model (ICML 2024, section 4, and its supplement).

An arm lacks the parameters that its part would have; everything else is the full model.
"""

from typing import NamedTuple

# Tokens of the two self-attentions that replace the auto-regressive one: coordinates a token.
TOKEN_LENGTHS = {"point": 1, "patch": 16}
TOKEN_WIDTH = 64


class Arm(NamedTuple):
    """The parts of the model that are there.

    main: the decomposition and the main head; without them the whole embedding is residual.
    intra: the intra-series branch: "auto" (delayed copies), "point" or "patch" (self-attention over
        pieces of the embedding), "none".
    channel: the branch over series. With neither branch there is no residual head either.
    learnable: whether the kernel is trained; if not, it is the moving average.
    table: the position table over series. instance_norm: whether windows are normalised.
    """

    main: bool = True
    intra: str = "auto"
    channel: bool = True
    learnable: bool = True
    table: bool = True
    instance_norm: bool = True

    @property
    def residual(self) -> bool:
        """Whether anything is done with the residual."""
        return self.channel or self.intra != "none"


ABLATIONS: dict[str, Arm] = {
    "full": Arm(),
    "no_auto": Arm(intra="none"),
    "no_channel": Arm(channel=False),
    "no_res": Arm(intra="none", channel=False),
    "no_ld": Arm(main=False),
    "mov": Arm(learnable=False),
    "attn_point": Arm(intra="point"),
    "attn_patch": Arm(intra="patch"),
    "no_revin": Arm(instance_norm=False),
    "no_pe": Arm(table=False),
}
