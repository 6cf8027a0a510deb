"""What tests of Keras models share."""

import pytest

from tests.models import keras_zoo


@pytest.fixture(params=keras_zoo.KERASES)
def keras(request):
    return keras_zoo.KERASES[request.param]
