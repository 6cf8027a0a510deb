"""Federated rounds in NumPy, written from the formulae, for algorithms without a file.

Independent of the package: linear layers with ReLUs between and cross-entropy, their
gradient by hand, and the server loops of METHODS.md and of the golden README, on flat
parameter vectors in PyTorch's order. The result has the form of the J files, so that
the tests that replay those replay it.
"""

from __future__ import annotations

import json
import math

import numpy as np

# Added to the norm in the clipping factor, and to that of FedSpeed's ascent.
_CLIP_EPSILON = 1e-6
_ASCENT_EPSILON = 1e-7


def gradient(flat, x, y, sizes, activation_strength=0.0):
    """The gradient of mean cross-entropy + strength / 2 * mean squares of the ReLUs."""
    kernels, inputs, start = [], [x], 0
    for count, units in zip(sizes, sizes[1:]):
        end = start + units * count
        kernels.append(flat[start:end].reshape(units, count))
        outputs = inputs[-1] @ kernels[-1].T + flat[end : end + units]
        inputs.append(np.maximum(outputs, 0.0))
        start = end + units
    exps = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    upstream = exps / exps.sum(axis=1, keepdims=True)
    upstream[np.arange(len(y)), y] -= 1.0
    upstream /= len(y)
    parts = []
    for kernel, active in zip(reversed(kernels), reversed(inputs[:-1])):
        parts[:0] = [(upstream.T @ active).ravel(), upstream.sum(0)]
        upstream = upstream @ kernel + activation_strength * active / active.size
        upstream = upstream * (active > 0.0)
    return np.concatenate(parts)


def clip(vector, max_norm):
    return vector * min(1.0, max_norm / (np.linalg.norm(vector) + _CLIP_EPSILON))


class Run:
    """One run of an algorithm over all cohorts of a configuration.

    Attributes:
      arrays: The results by the names that they have in a J file behind the variant's.
    """

    def __init__(self, config, x, y, initial):
        self._config, self._name = config, config["algorithm"].lower()
        counts = np.array(config["sizes"])
        ends = np.cumsum(counts)
        self._data = [
            (x[end - count : end], y[end - count : end])
            for count, end in zip(counts, ends)
        ]
        self._counts, self._relative = counts, counts / counts.mean()
        self._mean_steps = config["epochs"] * math.ceil(counts.mean() / config["batch"])
        self._cloud = initial.copy()
        self._initial = initial
        self._models = np.tile(initial, (len(counts), 1))
        self._h = np.zeros_like(self._models)
        self._s = np.zeros((len(counts) + 1, len(initial)))  # The server's at the end.
        self._steps = []
        self.arrays = {}
        for round_num, cohort in enumerate(config["cohorts"]):
            self._run_round(round_num, cohort)
        names = (
            "params_after_each_step",
            "grad_seen_by_optimizer",
            "lr",
            "weight_decay_in_optimizer",
            "client",
            "round",
        )
        for name, values in zip(names, zip(*self._steps)):
            self.arrays[f"trace.{name}"] = np.array(values)

    def _batches(self, number):
        x, y = self._data[number]
        size = self._config["batch"]
        epoch = [(x[i : i + size], y[i : i + size]) for i in range(0, len(y), size)]
        if self._name != "scaffold":
            return epoch * self._config["epochs"]
        epochs = math.ceil(self._mean_steps / len(epoch))
        return (epoch * epochs)[: self._mean_steps]

    def _step_gradient(self, w, x, y, number, previous):
        """What reaches the optimiser, before weight decay."""
        config, name, cloud = self._config, self._name, self._cloud
        h, s, common = self._h[number], self._s[number], self._s[-1]
        alpha = config["alpha_coef"] / self._relative[number]

        def loss_gradient(at):
            return gradient(at, x, y, config["mlp"], config["mu_mean"])

        if name == "fedspeed":
            up = loss_gradient(w)
            if config.get("ascent", "code") == "code":
                up = up + previous
            up = config["rho"] * up / (np.linalg.norm(up) + _ASCENT_EPSILON)
            total = loss_gradient(w + up) + alpha * (h - cloud)
        else:
            total = loss_gradient(w)
        if name == "fedprox":
            total = total + config["mu"] * (w - cloud)
        elif name == "feddyn":
            total = total + alpha * (h - cloud)
        elif name == "feddc":
            total = total + alpha * (w - (cloud - h))
            total = total + (common / self._relative[number] - s)
        elif name == "scaffold":
            total = total + (common / self._relative[number] - s)
        return clip(total, config["clip_norm"])

    def _train(self, round_num, number):
        config = self._config
        decay = config["weight_decay"]
        if self._name in ("feddyn", "fedspeed"):
            decay += config["alpha_coef"] / self._relative[number]
        rate = config["lr"] * config["lr_decay_per_round"] ** round_num
        w, previous = self._cloud.copy(), np.zeros_like(self._cloud)
        for x, y in self._batches(number):
            previous = self._step_gradient(w, x, y, number, previous)
            w = w - rate * (previous + decay * w)
            self._steps.append((w, previous, rate, decay, number, round_num + 1))
        return w

    def _run_round(self, round_num, cohort):
        name, counts, relative = self._name, self._counts, self._relative
        rate_of_all_steps = self._mean_steps * self._config["lr"]
        common, total_change = self._s[-1].copy(), 0.0
        for number in cohort:
            w = self._train(round_num, number)
            own = self._s[number].copy()
            if name == "scaffold":
                self._s[number] += -common + (self._cloud - w) / rate_of_all_steps
            elif name == "feddc":
                self._s[number] += (
                    -common / relative[number] + (self._cloud - w) / rate_of_all_steps
                )
            total_change = total_change + relative[number] * (self._s[number] - own)
            if name in ("feddyn", "feddc", "fedspeed"):
                self._h[number] += w - self._cloud
            self._models[number] = w
        self._s[-1] += total_change / len(counts)
        weighted = name in ("fedavg", "fedprox")
        weights = counts if weighted else np.ones(len(counts))
        average = np.average(self._models[cohort], axis=0, weights=weights[cohort])
        all_clients = np.average(self._models, axis=0, weights=weights)
        self._cloud = average + self._h.mean(axis=0)
        self._record(f"round{round_num + 1}.", cohort, average, all_clients)

    def _record(self, prefix, cohort, average, all_clients):
        cloud = self._cloud
        result = {
            "clnt_params_list": self._models,
            "selected": np.array(cohort),
            "weight_list": self._relative,
            "model.avg_model": average,
            "model.all_model": all_clients,
        }
        sums = {"cld_mdl_param": cloud, "avg_mdl_param": average}
        if self._name in ("fedavg", "fedprox"):
            result["weight_list"] = self._counts.reshape(-1, 1).astype(float)
        elif self._name == "feddyn":
            result.update(sums, local_param_list=self._h)
            result["model.cld_model"] = cloud
        elif self._name == "feddc":
            result.update(sums, parameter_drifts=self._h, state_gadient_diffs=self._s)
            result["model.cld_model"] = cloud
        elif self._name == "fedspeed":
            # The authors call the cloud 'all_model' here and never set 'avg_model'.
            result.update(hist_params_diffs=self._h, all_model_param=cloud)
            result.update({"model.all_model": cloud, "model.avg_model": self._initial})
            result["model.server_model"] = all_clients
        else:
            result.update(state_param_list=self._s, avg_model_params=average)
        for name, value in result.items():
            self.arrays[prefix + name] = np.array(value)


def write_case(path, configs, x, y, initial):
    """Writes a file of the form of the J files."""
    first = next(iter(configs.values()))
    arrays = dict(
        config=np.array(json.dumps(configs)),
        x=x,
        y=y,
        initial_params=initial,
        client_sizes=np.array(first["sizes"]),
    )
    for variant, config in configs.items():
        for name, value in Run(config, x, y, initial).arrays.items():
            is_input = name in ("trace.client", "trace.round")
            kind = "" if is_input else "f64."
            arrays[f"{kind}{variant}.{name}"] = value
    np.savez(path, **arrays)
