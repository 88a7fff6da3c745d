"""The measures of `macaron-fairseq dynamics --jacobian` in the order of the page."""

from macaron_fairseq.analysis.by_layer import Group, Measure

MATRICES = Group(
    "Spectra along depth",
    "A is the Jacobian of a whole layer or of a sub-layer at a token, the identity and post-norm's "
    "LayerNorm included. Or it is the product of the first layers' Jacobians, up to one. Each is d "
    "by d, a token's own block: the other tokens are held where they are. Means are over one token "
    "of each of {tokens} sentences, then over runs.",
    (
        Measure(
            "complex",
            "Complex eigenvalues",
            "Share of the eigenvalues that are not real. Moduli and imaginary parts below 1e-12 of "
            "the largest modulus count as 0, and what is 0 is left out.",
        ),
        Measure(
            "rotation",
            "Rotation",
            "Mean of |arg λ| over the eigenvalues λ that are not 0, in degrees.",
        ),
        Measure(
            "henrici",
            "Departure from normality",
            "Henrici's √(|A|² - Σ|λ|²) / |A|, Frobenius norms: 0 if normal, 1 if nilpotent.",
        ),
        Measure("asymmetry", "Asymmetry", "|A - Aᵀ| / |A + Aᵀ|: 0 if symmetric."),
        Measure(
            "added",
            "What is added",
            "|A - I| / √d, Frobenius norm. Where it falls, A comes near the identity, and "
            "departure and asymmetry fall with it.",
        ),
        Measure(
            "added_scaled",
            "What is added, by the state's size",
            "The same times the standard deviation of the state's coordinates. In pre-norm a "
            "LayerNorm divides by it, so that what is added falls as the state grows. This does "
            "not. In post-norm it means little.",
        ),
        Measure(
            "added_henrici",
            "Departure from normality of what is added",
            "Henrici's departure of A - I, which does not depend on how large it is.",
        ),
        Measure(
            "added_asymmetry",
            "Asymmetry of what is added",
            "That of A - I: 0.99 for 128 by 128 independent normal entries.",
        ),
        Measure(
            "numerical_abscissa",
            "Numerical abscissa",
            "Largest eigenvalue of (A + Aᵀ) / 2. Less 1, it is how fast a length can begin to grow "
            "under x' = (A - I) x.",
            log=True,
        ),
        Measure("spectral_radius", "Spectral radius", "Largest |λ|.", log=True),
        Measure(
            "condition",
            "Condition of the eigenvectors",
            "log10 of the condition number of the matrix of unit eigenvectors: 0 if normal. It "
            "means little where eigenvalues repeat, as 1 does in sub-layers of low rank.",
        ),
        Measure(
            "effective_rank",
            "Effective rank",
            "exp(-Σ p ln p) over the singular values as shares p, from 1 to d (Roy and Vetterli "
            "2007).",
        ),
        Measure(
            "stable_rank", "Stable rank", "Σs² / max s² over the singular values s, from 1 to d."
        ),
        Measure("norm", "Largest singular value", "How far any direction is stretched.", log=True),
        Measure(
            "mean_growth",
            "Mean growth",
            "|A| / √d, Frobenius norm: root mean square of |Au| over all directions u.",
            log=True,
        ),
        Measure(
            "growth",
            "Growth along the displacement",
            "|Au| / |u|, u the token's own displacement: its state after, minus that before.",
            log=True,
        ),
    ),
)

LYAPUNOV = Group(
    "Lyapunov exponents",
    "Of the product up to a layer, by QR along depth, per layer. The first basis is the product's "
    "right singular one. So they are the logarithms of its singular values, divided by the "
    "number of layers. Where the least is 1e-15 of the largest or smaller, it is rounding. Each "
    "LayerNorm of post-norm loses two directions: there the mean and the least "
    "exponent show rounding alone.",
    (
        Measure(
            "lyapunov_largest",
            "Largest exponent",
            "ln σ₁ / l, σ₁ the largest singular value of the product of l layers. Above 0, some "
            "direction grows. It can fall with l while σ₁ rises.",
        ),
        Measure("lyapunov_mean", "Mean exponent", "ln |det| per layer and dimension."),
        Measure("lyapunov_least", "Least exponent", "How fast the most suppressed one shrinks."),
        Measure("growing", "Growing directions", "Share of the exponents above 0."),
    ),
)

TOPOLOGY = Group(
    "Communities of coordinates",
    "The coordinates of the state that a layer reads are the nodes of a graph. Each keeps its "
    "edges to those that it correlates with most, over all tokens of the sentences. Positive "
    "edges bind communities, negative ones part them, unless the options say otherwise. All "
    "are this project's.",
    (
        Measure("communities", "Communities", "How many there are."),
        Measure(
            "modularity",
            "Modularity",
            "How much more positive weight lies within communities than the resolution times "
            "what chance gives, as a share of all. Negative weight counts if less of it lies there "
            "than by chance.",
        ),
        Measure(
            "most_amplified",
            "Most amplified community",
            'Largest |A P| / √n over the communities, with the gain "column": A the layer\'s '
            "Jacobian, P the projection to the community's n coordinates.",
        ),
        Measure("least_amplified", "Least amplified community", "The smallest of these."),
        Measure(
            "coupling",
            "Coupling",
            "Correlation, over communities, of how central one is and how much the layer amplifies "
            "it. By chance it is around 0.",
        ),
    ),
)

GROUPS = (MATRICES, LYAPUNOV, TOPOLOGY)
MEASURES = {x.name: x for group in GROUPS for x in group.measures}
