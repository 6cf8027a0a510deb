import pytest

from tff_reg import methods, models, settings


def test_without_the_true_class_two_classes_are_too_few():
    network = models.build_model_fn("cnn", image_shape=(8, 8, 1), num_classes=2)()
    methods.ASD().check_network(network.network)
    with pytest.raises(settings.SettingError, match="asd_not_true=true"):
        methods.ASD(not_true=True).check_network(network.network)
