"""The residual stream as a dynamical system: Jacobians of layers, and their products along depth.

What `macaron-fairseq dynamics --jacobian` measures. The questions are those of "Dynamics of the
Transformer Residual Stream" (Fernando and Guitchounts, arXiv 2605.14258). Where it leaves a choice
open, the choice here is this package's, and the docs say so.
"""
