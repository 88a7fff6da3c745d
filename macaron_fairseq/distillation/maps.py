"""Maps from a student's states to its teacher's, which are learnt: one for each pair of layers."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from macaron_fairseq.distillation import layers
from macaron_fairseq.distillation.layer_plan import Pairs


class Map(nn.Linear):
    """A linear map of states that may have another precision."""

    def forward(self, x: Tensor) -> Tensor:
        """W x + b, in the precision of W."""
        return super().forward(x.to(self.weight.dtype))


class Maps(nn.Module):
    """The maps of a loss: fairseq trains them with the student and saves them next to it.

    Attributes:
        pairs: which layers meet on each side, from the lowest up.
        maps: for each side, one for each of its pairs.
        teacher: the SHA-256 of its checkpoint, if that is known.
    """

    teacher = ""

    def __init__(
        self, pairs: Mapping[str, Pairs], student: Any, teacher: Any, bias: bool = True
    ) -> None:
        """Make them.

        Args:
            pairs: see above.
            student: a model of the student's sizes.
            teacher: the model.
            bias: whether they have one.
        """
        super().__init__()
        self.pairs = pairs
        self.widths = {}
        ours, theirs = layers.layers_of(student), layers.layers_of(teacher)
        self.maps = nn.ModuleDict()
        for side, met in pairs.items():
            self.widths[side] = [
                (ours[side][i - 1].embed_dim, theirs[side][j - 1].embed_dim) for i, j in met
            ]
            self.maps[side] = nn.ModuleList([Map(*x, bias=bias) for x in self.widths[side]])

    @property
    def student_places(self) -> list[layers.Place]:
        """The student's layers that are compared."""
        return [(side, i) for side, met in self.pairs.items() for i, _ in met]

    @property
    def teacher_places(self) -> list[layers.Place]:
        """The teacher's layers that they meet."""
        return [(side, j) for side, met in self.pairs.items() for _, j in met]

    def get_extra_state(self) -> dict[str, str]:
        """What a checkpoint tells of the maps: between which layers they are, of which widths."""
        found = [
            f"{i} to {j} of the {side} ({a} to {b} wide)"
            for side, met in self.pairs.items()
            for (i, j), (a, b) in zip(met, self.widths[side], strict=True)
        ]
        return {"layers": ", ".join(found), **({"teacher": self.teacher} if self.teacher else {})}

    def set_extra_state(self, state: Mapping[str, str]) -> None:
        """Nothing: `StudentCriterion.load_state_dict` has compared it."""


EXTRA_STATE = "_extra_state"  # how PyTorch names it


def told(state: Mapping[str, Any]) -> dict[str, str]:
    """What the state of a criterion with maps tells of them; nothing before that was saved."""
    return next((dict(x) for name, x in state.items() if name.endswith(EXTRA_STATE)), {})


def differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """The keys of `told` whose values differ, such as ["layers"], also if maps differ in shape."""
    was, now = told(saved), told(own)
    found = [name for name in now if name in was and was[name] != now[name]]
    shapes = [
        {name: tuple(x.shape) for name, x in state.items() if isinstance(x, Tensor)}
        for state in (saved, own)
    ]
    if shapes[0] != shapes[1] and "layers" not in found:
        found.append("layers")
    return found
