"""Which waves grow first where many particles are even on the circle.

Source: Alvarez-Lopez, Geshkovski and Ruiz-Balet, arXiv 2601.21366, by the formulas of its code,
`antonioalvarezl/2026-MLP-Attention-Energy`; its text was not available. The same rates, but for a
factor, are in Bruno, Pasqualotto and Agazzi, arXiv 2410.23228.
"""

import numpy as np
from scipy.special import ive

from macaron_fairseq.analysis.measures import Floats


def rates(beta: float, most: int) -> Floats:
    """e^-beta gamma_k, gamma_k = k^2 I_k(beta) / beta, for the modes k = 0 .. most: (most + 1,).

    Particles that are even on the circle but for a wave of k crests: scaled USA makes the wave grow
    like e^(rate t), USA e^beta times as fast. The factor keeps all of it finite, at any beta.
    """
    k = np.arange(most + 1.0)
    if beta == 0:  # I_k(beta) is like (beta / 2)^k / k!
        return np.where(k == 1, 0.5, 0.0)
    return np.asarray(k**2 * ive(k, beta) / beta)


def predicted_mode(beta: float) -> int:
    """The k whose wave grows fastest, about sqrt(2 beta) where beta is large.

    Twice as many modes are looked at, beyond which gamma_k only falls.
    """
    return int(rates(beta, 4 + int(2 * np.sqrt(2 * beta))).argmax())
