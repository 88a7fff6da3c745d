"""The measures in the order of the page: their names in the JSON file, titles and definitions."""

from macaron_fairseq.analysis.by_layer import Group, Measure

# Of the state before the first layer and after each sub-layer.
STATES = Group(
    "Where the tokens are",
    "The tokens of a sentence as points in space, before the first layer and after each sub-layer. "
    "All but the length look at directions x/|x| alone, without centring.",
    (
        Measure(
            "cosine",
            "Mean cosine",
            "⟨x_i, x_j⟩ / |x_i||x_j| over all pairs i < j of tokens of one sentence.",
            band=False,  # the histograms show it
        ),
        Measure(
            "cosine_across",
            "Mean cosine across sentences",
            "The same of all pairs of tokens of different sentences, each of two tokens or more. "
            "Where both rise by as much, tokens of a sentence come no closer than any others.",
            band=False,
        ),
        Measure(
            "almost_one",
            "Pairs that are almost one",
            "Share of a sentence's pairs whose cosine is above 0.999, whatever the threshold of "
            "the clusters.",
        ),
        Measure(
            "clusters_per_token",
            "Clusters per token",
            "Connected components of the graph that joins tokens of a sentence whose cosine is "
            "above {threshold:g}, divided by its tokens: 1 where no two are joined.",
        ),
        Measure(
            "effective_rank_per_token",
            "Effective rank per token",
            "exp(-Σ p ln p) over the Gram matrix's eigenvalues, as shares p, divided by the "
            "sentence's tokens: 1 where all directions are orthogonal.",
        ),
        Measure(
            "participation_ratio",
            "Participation ratio",
            "1 / Σ p² over the same shares; at most the number of tokens.",
        ),
        Measure(
            "energy",
            "Interaction energy",
            "E_β = Σ_ij exp(β(⟨x_i, x_j⟩ - 1)) / 2βn² over the directions of a sentence's n "
            "tokens, β = {beta:g}: largest, 1/2β, where all are one.",
        ),
        Measure(
            "norm", "Length", "|x| / √d of a token, d the model's width: the root mean square."
        ),
    ),
)

# Of sub-layers and whole layers; a is what is added to the state.
STEPS = Group(
    "How far a sub-layer moves them",
    "a is what a sub-layer adds to the state x of a token, with the step of its scheme. For a "
    "whole layer it is the difference of the states after and before it.",
    (
        Measure("step", "Relative step", "|a| / |x|"),
        Measure(
            "step_cosine",
            "Cosine of step and state",
            "⟨a, x⟩ / |a||x|: 1 where the step only lengthens x, 0 where it is across.",
        ),
        Measure(
            "velocity",
            "Velocity on the sphere",
            "|P a| / |x|, P the projection to the tangent space at x: how fast the direction "
            "moves, in radians per sub-layer, or per layer.",
        ),
        Measure(
            "turn",
            "Angle turned",
            "Between the states before and after, in degrees; with post-norm's LayerNorm.",
        ),
    ),
)

JACOBIANS = Group(
    "Jacobians",
    "J is the derivative of a by x. Eigenvalues are of a token's own block, d by d, at one token "
    "of each of {jacobians} sentences. Those of modulus below 1/10,000 of the largest count as "
    "zero. FFNs and cross-attention have no other blocks, and in a causal decoder the blocks' "
    "eigenvalues are all that the sentence's J has. In an encoder's self-attention J also has "
    "blocks between tokens, which only the largest singular value sees.",
    (
        Measure(
            "complex",
            "Complex eigenvalues",
            "Share of the non-zero eigenvalues not real. An imaginary part below 1/10,000 of the "
            "largest modulus counts as 0.",
        ),
        Measure("nonzero", "Non-zero eigenvalues", "Their share of all d."),
        Measure(
            "henrici",
            "Departure from normality",
            "Henrici's √(|J|² - Σ|λ|²) / |J|, Frobenius norms: 0 if normal, 1 if nilpotent.",
        ),
        Measure("asymmetry", "Asymmetry", "|J - Jᵀ| / |J + Jᵀ|: 0 if symmetric."),
        Measure(
            "singular_value",
            "Largest singular value",
            "Of the whole sentence's J, by Lanczos iteration: the local Lipschitz constant, at "
            "this state, of a alone and not of x + a.",
        ),
    ),
)

ERRORS = Group(
    "Local error by step halving",
    "The weights are frozen and every step is made h times as long: one step Φ_h against two of "
    "half the length. For short steps the difference is half of the error of a method of order 1, "
    "and 3/4 of one of order 2. That measures a model against the flow of its weights, and not "
    "against another model's. In post-norm, sub-layers are taken without their LayerNorm, and "
    "layers are left out: without a step they would still normalise.",
    (
        Measure(
            "local_error_1", "Local error at h = 1", "|Φ_h(x) - Φ_h/2(Φ_h/2(x))| / |x|", log=True
        ),
        Measure(
            "local_error_slope",
            "Slope of the local error",
            "Exponent s of error = c·h^s, fitted to the mean errors at h = 1, 1/2, 1/4: near 2 for "
            "a method of order 1 once its steps are small enough.",
        ),
    ),
)

MOVES = (STEPS, JACOBIANS, ERRORS)  # in panels by operator

MEASURES = {x.name: x for group in (STATES, *MOVES) for x in group.measures}
