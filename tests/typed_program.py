"""A user's program, which pyright checks: test_types.py says where it is wrong.

Lines that end with `# wrong` are mistakes that a type checker must find; there is none
elsewhere.
"""

import tff_reg
from tff_reg import analysis, data, experiment, models, training
from tff_reg.training import process_settings


class EarlyStopping(experiment.Callback):
    def on_round(self, run: experiment.Run, row: dict[str, float | None]) -> str | None:
        reached = row["evaluation/accuracy"]
        return "it is good enough" if reached and reached > 0.9 else None


def train(client_data: data.ArrayClientData) -> experiment.RunResult:
    model_fn = models.build_model_fn(
        "cnn", image_shape=(8, 8, 1), num_classes=10, norm="group"
    )
    process = training.build("fedprox", model_fn)
    training.build(7, model_fn)  # wrong
    training.buidl("fedprox", model_fn)  # wrong
    training.ProcessSettings(total_rounds=3)
    process_settings.ProcessSettings(total_rounds="three")  # wrong
    result = experiment.train(process, client_data, total_rounds=3, clients_per_round=2)
    experiment.train(process, client_data, total_rounds=3)  # wrong
    experiment.train(
        process,
        client_data,
        total_rounds=3,
        clients_per_round=2,
        rounds_per_evaluatoin=2,  # wrong
    )
    print(result.sumary)  # wrong
    return result


def run() -> None:
    config = experiment.RunConfig(process="fedprox", total_rounds=3, seed=1)
    experiment.RunConfig(process="fedprox", total_ronds=3)  # wrong
    experiment.RunConfig(process="fedprox", total_rounds="3")  # wrong
    experiment.run(config, callbacks=[EarlyStopping()])
    experiment.run(config, callbacks=EarlyStopping())  # wrong
    experiment.run(config, progres=None)  # wrong
    experiment.run("fedprox")  # wrong
    experiment.compare(["runs/a"], "out", columns=("score",))
    experiment.compare(["runs/a"], "out", colums=("accuracy",))  # wrong
    print(config.resolved().total_rounds + 1)
    print(config.resolved().total_ronds)  # wrong


def in_a_line(model, x, y) -> None:
    result = tff_reg.run(process="fedprox", total_rounds=3)
    tff_reg.run(process="fedprox", total_ronds=3)  # wrong
    tff_reg.run(process="fedprox", total_rounds="3")  # wrong
    tff_reg.run(process="fedprox", client_learning_rate=lambda number: 0.1 / number)
    tff_reg.run(process="fedprox", client_learning_rate="0.1")  # wrong
    tff_reg.run(
        process="fedprox",
        model=model,
        client_data=(x, y),
        test_data=(x, y),
        sample_fn=lambda round_num, client_ids: client_ids[:round_num],
        metrics={"top": max},
    )
    print(result.plot().axes, result.metrics)
    compared = tff_reg.compare(["fedavg", "man"], seeds=2, total_rounds=3)
    tff_reg.compare(["fedavg", "man"], seed_s=2)  # wrong
    print(compared.plot(), compared.tabel)  # wrong


def analyse(model, examples) -> None:
    pairs = analysis.Hessian(model, examples).top_eigenvalues(k=3)
    analysis.Hessian(model)  # wrong
    analysis.Hessian(model, examples).top_eigenvalues(3, 4)  # wrong
    print(pairs.values)
    analysis.Hessian(model, examples, batchsize=3)  # wrong
