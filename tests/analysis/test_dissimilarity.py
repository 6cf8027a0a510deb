import numpy as np
import pytest

from tff_reg import analysis


def test_equations_3_and_4_by_hand():
    # Norms 5, 10, 1; cosines 0.96 = (3*8 + 4*6)/50, 0.6 and 0.8.
    diagonals = [[3.0, 4.0], [8.0, 6.0], [1.0, 0.0]]
    found = analysis.hessian_dissimilarity(diagonals)
    np.testing.assert_allclose(
        found.norm_pairs, [[0, 25, 16], [25, 0, 81], [16, 81, 0]]
    )
    np.testing.assert_allclose(
        found.direction_pairs, [[1, 0.96, 0.6], [0.96, 1, 0.8], [0.6, 0.8, 1]]
    )
    np.testing.assert_allclose(found.norm, (25 + 16 + 81) / 3)
    np.testing.assert_allclose(found.direction, (0.96 + 0.6 + 0.8) / 3)


def test_the_published_form_counts_a_client_with_itself():
    traces = [[3.0, 4.0], [8.0, 6.0]]
    found = analysis.published_hessian_dissimilarity(traces)
    np.testing.assert_allclose(found.norm, (2 * 0 + 2 * 25) / 4)
    np.testing.assert_allclose(found.direction, (2 * 1 + 2 * 0.96) / 4)


def test_equal_clients_do_not_differ():
    found = analysis.hessian_dissimilarity([[1.0, -2.0, 3.0]] * 4)
    assert found.norm == 0
    np.testing.assert_allclose(found.direction, 1, rtol=1e-15)


def test_standard_errors_take_the_noise_off():
    random = np.random.default_rng(0)
    exact = random.normal(size=(3, 4000)) + random.normal(size=4000)
    errors = np.ones_like(exact)
    noisy = exact + errors * random.normal(size=exact.shape)
    expected = analysis.hessian_dissimilarity(exact)
    plain = analysis.hessian_dissimilarity(noisy)
    corrected = analysis.hessian_dissimilarity(noisy, errors)
    assert abs(plain.direction - expected.direction) > 0.1
    assert abs(corrected.direction - expected.direction) < 0.03
    np.testing.assert_allclose(
        np.sum(noisy**2, axis=1) - 4000, np.sum(exact**2, axis=1), rtol=0.1
    )


def test_gradients_by_hand():
    found = analysis.gradient_agreement([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(found.norms, [1, 2, 5])
    np.testing.assert_allclose(found.agreement, (0 + 0.6 + 0.8) / 3)
    np.testing.assert_allclose(found.cosines, [[1, 0, 0.6], [0, 1, 0.8], [0.6, 0.8, 1]])


@pytest.mark.parametrize(
    "vectors, words",
    [
        ([[1.0, 2.0]], "at least two clients"),
        ([[1.0, 2.0], [0.0, 0.0]], "client 1 .* no direction"),
        ([[1.0, np.nan], [1.0, 0.0]], "client 0 .* no direction"),
    ],
)
def test_wrong_vectors_give_one_sentence(vectors, words):
    with pytest.raises(ValueError, match=words):
        analysis.gradient_agreement(vectors)


def test_diagonals_below_their_noise_have_no_direction():
    errors = [[0.1, 0.1], [9.0, 9.0]]
    with pytest.raises(ValueError, match="standard errors: it has no direction"):
        analysis.hessian_dissimilarity([[1.0, 2.0], [2.0, 1.0]], errors)
