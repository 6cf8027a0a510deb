"""Every public name of version 0.1 is there, or an error says what to use."""

import importlib

import pytest

from tff_reg import experiment, training

_NAMES = {
    "training": """
        BatchedData LocalTraining Population ProcessSettings StatefulLearningProcess
        StatefulLearningProcessOutput WholeClientData adapt_model_fn build
        build_evaluation build_finalizer build_from_settings build_regularized
        build_sgd constant cosine exponential
    """,
    "models": """
        Block BlockModel Classifier ForwardPass ImageSizeError KerasModelFn
        LearningModel MODEL_NAMES MissingCapabilityError NORM_NAMES Outputs
        PROJECTOR_NAMES build_model_fn from_keras from_keras_blocks initial_weights
        norms_of resize_bilinear
    """,
    "data": """
        ArrayClientData SeededDataSource client_key sample_clients
        sample_clients_bernoulli
    """,
    "runtime": """
        KINDS NoGpuError Options WorkerError describe outside_programs
        program_context running shutdown use worker_pid
    """,
    "analysis": """
        ClientGradients Cost DiagonalEstimate Eigenpairs Hessian
        HessianDissimilarity Landscape MultiplyAdds NoSecondDerivativeError
        NonFiniteError SpectralDensity TraceEstimate UnsuitableDataError
        UnsuitableModelError classifier_singular_values diagonal gradient_agreement
        hessian_dissimilarity hessian_vector_product loss_landscape
        published_hessian_dissimilarity random_directions spectral_density
        top_eigenvalues trace
    """,
    "experiment": """
        CentralEvaluation ComparisonError DirectoryError ResolvedConfig RunConfig
        RunDirectory RunResult StateMismatchError Training TrainingError check
        compare finished predict prepare run run_async train train_async
    """,
    "methods": """
        IncompatibleMethodsError Local Method Server Step Term UnknownProcessError
        build methods names parse settings strengths
    """,
}


@pytest.mark.parametrize("package", _NAMES)
def test_public_names_of_version_0_1_are_there(package):
    module = importlib.import_module(f"tff_reg.{package}")
    assert [n for n in _NAMES[package].split() if not hasattr(module, n)] == []


def test_modules_that_moved_are_found_with_a_warning():
    old = [name for names in experiment._MOVED.values() for name in names]
    assert len(old) == 34
    for package, name in [
        *((experiment, name) for name in old),
        (training, "remembering"),
    ]:
        with pytest.warns(DeprecationWarning, match=f"{name} is tff_reg.* now"):
            module = getattr(package, name)
        assert module is importlib.import_module(module.__name__)
    assert training.stateful is module


def test_other_names_are_said_not_to_be_there():
    with pytest.raises(AttributeError, match="use training.build_regularized"):
        training.build_client_work  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        experiment.nothing  # noqa: B018
