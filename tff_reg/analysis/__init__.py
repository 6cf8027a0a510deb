"""Analysis of trained models: curvature, differences between clients, cost.

Importing this package does not import TensorFlow; its names do when first used.
"""

from tff_reg import lazy

__getattr__, __dir__, __all__ = lazy.exports(
    __name__,
    {
        "cost": ["Cost", "MultiplyAdds"],
        "curvature": [],
        "dissimilarity": [
            "ClientGradients",
            "HessianDissimilarity",
            "gradient_agreement",
            "hessian_dissimilarity",
            "published_hessian_dissimilarity",
        ],
        "estimates": [
            "DiagonalEstimate",
            "Eigenpairs",
            "SpectralDensity",
            "TraceEstimate",
        ],
        "examples": ["UnsuitableDataError"],
        "hessian": [
            "Hessian",
            "diagonal",
            "hessian_vector_product",
            "spectral_density",
            "top_eigenvalues",
            "trace",
        ],
        "hessian_matrix": [],
        "hessian_products": ["NonFiniteError"],
        "lanczos": [],
        "landscape": ["Landscape", "loss_landscape", "random_directions"],
        "objective": ["UnsuitableModelError"],
        "parts": [],
        "plane": [],
        "second_derivatives": ["NoSecondDerivativeError"],
        "spectra": ["classifier_singular_values"],
    },
)
