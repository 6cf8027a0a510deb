"""The names that `tff_reg.analysis` offers."""

from tff_reg.analysis.cost import Cost as Cost, MultiplyAdds as MultiplyAdds
from tff_reg.analysis.dissimilarity import (
    ClientGradients as ClientGradients,
    HessianDissimilarity as HessianDissimilarity,
    gradient_agreement as gradient_agreement,
    hessian_dissimilarity as hessian_dissimilarity,
    published_hessian_dissimilarity as published_hessian_dissimilarity,
)
from tff_reg.analysis.estimates import (
    DiagonalEstimate as DiagonalEstimate,
    Eigenpairs as Eigenpairs,
    SpectralDensity as SpectralDensity,
    TraceEstimate as TraceEstimate,
)
from tff_reg.analysis.examples import UnsuitableDataError as UnsuitableDataError
from tff_reg.analysis.hessian import Hessian as Hessian
from tff_reg.analysis.hessian_products import NonFiniteError as NonFiniteError
from tff_reg.analysis.landscape import (
    Landscape as Landscape,
    loss_landscape as loss_landscape,
    random_directions as random_directions,
)
from tff_reg.analysis.objective import UnsuitableModelError as UnsuitableModelError
from tff_reg.analysis.second_derivatives import (
    NoSecondDerivativeError as NoSecondDerivativeError,
)
from tff_reg.analysis.spectra import (
    classifier_singular_values as classifier_singular_values,
)
