"""One protocol for all that is compared; what is a method's own; what differs."""

from tests import commands
from tests.experiment import test_tuning
from tff_reg import experiment, tasks
from tff_reg.commands import compare
from tff_reg.experiment.config import run_config as config
from tff_reg.experiment.report import protocol
from tff_reg.experiment.series import plan as series
from tff_reg.methods import catalogue


def plan(folder, *processes, **requested):
    """The configs of a comparison, by process."""
    common = experiment.RunConfig.of({"output_dir": str(folder), **requested})
    planned = series.Study().compare(common, processes=processes).runs
    return {run.config.process: run.config for run in planned}


def of(configs, chosen=()):
    return protocol.of({name: [each.dump()] for name, each in configs.items()}, chosen)


def test_all_methods_have_the_tasks_settings_and_what_they_cannot_be_without(tmp_path):
    configs = plan(tmp_path, "all")
    assert len(configs) == len(catalogue.names())
    shared = tasks.defaults("digits").protocol
    for name, found in configs.items():
        own = {*catalogue.required_settings(name)} - {"client_weighting"}
        for setting, value in shared.items():
            assert setting in own or getattr(found, setting) == value, (name, setting)
    found = of(configs)
    assert found.is_one and found.source == "the task digits"
    assert found.in_short().startswith(
        "Protocol: task=digits, partition=dirichlet_balanced, model=resnet8,"
        " num_clients=20, clients_per_round=5, total_rounds=20, local_epochs=5,"
        " batch_size=20, client_learning_rate=0.1, concentration=0.3, norm=batch,"
        " augmentation=shift, client_weight_decay=0.0001, max_gradient_norm=10.0"
    )
    assert found.own["fedavg"] == ""
    assert found.own["fedavgm"] == "server_momentum=0.4"
    assert (
        found.own["fedadam"]
        == "server_optimizer=adam, server_learning_rate=0.01, server_beta1=0.9"
    )
    assert found.own["fedsam"] == "fedsam_radius=0.05"


def test_those_of_a_method_count_for_all_and_each_has_its_own_if_asked(tmp_path):
    configs = plan(tmp_path, "fedavg", "feddyn", "moon", settings_of="feddyn")
    assert {each.num_clients for each in configs.values()} == {100}
    assert {each.client_weighting for each in configs.values()} == {
        "uniform",
        "num_examples",
    }
    assert of(configs).is_one and "MAN paper" in of(configs).source
    configs = plan(tmp_path, "fedavg", "feddyn", settings_of="each")
    assert [each.num_clients for each in configs.values()] == [16, 100]
    found = of(configs)
    assert not found.is_one and found.source == ""
    assert found.differences["num_clients"] == {"fedavg": 16, "feddyn": 100}
    assert "client_weighting" not in found.differences
    text = " ".join(found.lines())
    assert "num_clients: 16 (fedavg), 100 (feddyn);" in text


def test_settings_of_a_recipes_method_do_not_apply_to_others(tmp_path):
    configs = plan(
        tmp_path, "fedavg", "fedavgm+fedmlb", "fedadam", recipe="fedmlb/table1/fedavgm"
    )
    momenta = [each.server_momentum for each in configs.values()]
    assert momenta == [0.0, recipe_momentum(), 0.0]
    assert [each.server_optimizer for each in configs.values()] == [
        "sgd",
        "sgd",
        "adam",
    ]
    assert of(configs).is_one
    # As the paper has it, FedAlign alone clips; all of them have UniVarFL's projector.
    configs = plan(
        tmp_path, "fedavg", "fedalign", recipe="fedalign/table6/fedalign-e10"
    )
    assert [each.max_gradient_norm for each in configs.values()] == [None, 10.0]
    configs = plan(tmp_path, "fedalign", recipe="fedalign/table2/fedavg")
    assert configs["fedalign"].max_gradient_norm == 10.0
    configs = plan(tmp_path, "fedavg", "moon", recipe="univarfl/table1/univarfl")
    assert {each.projector for each in configs.values()} == {"feduv"}
    configs = plan(tmp_path, "fedavg", "moon", recipe="fedalign/table2/moon")
    assert [each.projector for each in configs.values()] == ["none", "moon"]


def recipe_momentum():
    return tasks.recipes.settings("fedmlb/table1/fedavgm")["server_momentum"]


def test_a_run_says_whose_its_settings_are():
    def source(**requested):
        values = config.RunConfig.of(requested).resolved().dump()
        assert (
            config.ResolvedConfig.load(values).settings_from
            == (values["settings_from"])
        )
        return values["settings_from"]

    assert source(process="fedprox+man") == (
        "the FedAlign paper (Mendieta et al., CVPR 2022) and its code"
    )
    assert source(process="man", settings_of="task") == "the task digits"
    assert source(recipe="man/table1/feddyn") == "the recipe man/table1/feddyn"


def test_another_number_is_a_difference_but_for_what_tuning_chose():
    configs = {
        name: config.RunConfig(
            process=name, settings_of="task", client_learning_rate=rate
        ).resolved()
        for name, rate in (("fedavg", 0.1), ("man", 0.03))
    }
    assert list(of(configs).differences) == ["client_learning_rate"]
    assert of(configs, {"client_learning_rate"}).is_one
    values = {name: [each.dump()] for name, each in configs.items()}
    values["man"][0]["total_rounds"] = 7
    found = protocol.of(values, {"client_learning_rate"})
    assert found.differences == {"total_rounds": {"fedavg": 20, "man": 7}}


def test_the_command_tells_protocol_or_differences_before_its_first_run(tmp_path):
    def told(name, *flags):
        done = commands.call(
            compare.main,
            "--processes=fedavg,feddyn",
            "--total_rounds=2",
            f"--output_dir={tmp_path / name}",
            *flags,
            executor=test_tuning.Pretending(),
        )
        assert done.returncode == 0, done.stderr
        before, _, after = done.stdout.partition("run 1/2")
        return " ".join(before.split()), after

    before, after = told("task")
    assert before.startswith("Protocol: task=digits, ") and ("differ" not in before)
    assert "one seed does not tell which is best" in " ".join(after.split())
    before, after = told("each", "--settings_of=each")
    assert " num_clients: 16 (fedavg), 100 (feddyn);" in before
    assert "**" not in after
    flags = ["--processes=fedavg", f"--output_dir={tmp_path}", "--settings_of=fedavq"]
    done = commands.call(compare.main, *flags)
    assert done.returncode == 2 and "(did you mean fedavg?)" in done.stderr


def test_columns_of_settings_have_what_all_methods_have_in_common(tmp_path):
    of_columns = {
        f"concentration={each}": {
            name: [found.dump()]
            for name, found in plan(
                tmp_path, "fedadam", "fedavg", concentration=each
            ).items()
        }
        for each in (0.1, 0.3)
    }
    text = " ".join(protocol.lines(of_columns))
    common, own = text.split("- fedadam's own: ")
    assert "server_optimizer" not in common and "concentration" not in text
    assert own.startswith("server_optimizer=adam, server_learning_rate=0.01")
