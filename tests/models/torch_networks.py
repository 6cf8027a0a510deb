"""Networks of PyTorch, whose logits `test_torch_states` compares with ours.

In an environment with PyTorch (benchmarks/simulators/requirements/torch.txt),

    python tests/models/torch_networks.py

writes torch_networks.json: the names and shapes in each `state_dict`, and the logits.
The weights follow from their names and shapes, so that they are not stored.
"""

import json
import pathlib
import zlib

import numpy as np

RECORDED = pathlib.Path(__file__).with_suffix(".json")
# Planes of the stages, of torchvision's resnet18 and of a narrow one.
PLANES = {"resnet18": (64, 128, 256, 512), "narrow": (4, 8)}
IMAGES = {"resnet18": (64, 64, 3), "narrow": (32, 32, 3), "flat": (6, 8, 3)}


def values(shapes):
    """The state of a network, by names and shapes; activations stay about 1."""
    found = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if name.endswith("num_batches_tracked"):
            found[name] = np.array(7)
        elif name.endswith("running_var") or len(shape) == 1 and "weight" in name:
            found[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            scale = np.sqrt(0.5 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
            found[name] = rng.normal(0, scale, shape).astype(np.float32)
    return found


def images(name):
    """Two images [height, width, channels] of a network."""
    return np.random.default_rng(0).random((2, *IMAGES[name])).astype(np.float32)


def main():
    """Computes and writes what is recorded."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    class Unit(nn.Module):
        """As torchvision's BasicBlock."""

        def __init__(self, given, planes, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(given, planes, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(planes)
            self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(planes)
            self.downsample = None
            if stride != 1 or given != planes:
                conv = nn.Conv2d(given, planes, 1, stride, bias=False)
                self.downsample = nn.Sequential(conv, nn.BatchNorm2d(planes))

        def forward(self, x):
            y = torch.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return torch.relu(y + (self.downsample(x) if self.downsample else x))

    class ResNet(nn.Module):
        """As torchvision's resnet18."""

        def __init__(self, planes):
            super().__init__()
            self.conv1 = nn.Conv2d(3, planes[0], 7, 2, 3, bias=False)
            self.bn1 = nn.BatchNorm2d(planes[0])
            self.pool = nn.MaxPool2d(3, 2, 1)
            for number, (given, each) in enumerate(zip((planes[0], *planes), planes)):
                units = Unit(given, each, 1 + (number > 0)), Unit(each, each, 1)
                setattr(self, f"layer{number + 1}", nn.Sequential(*units))
            self.stages = len(planes)
            self.fc = nn.Linear(planes[-1], 10)

        def forward(self, x):
            x = self.pool(torch.relu(self.bn1(self.conv1(x))))
            for number in range(self.stages):
                x = getattr(self, f"layer{number + 1}")(x)
            return self.fc(x.mean((2, 3)))

    flat = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, groups=4),
        nn.Flatten(),
        nn.BatchNorm1d(2 * 4 * 8),
        nn.Linear(2 * 4 * 8, 10),
    )
    networks = {name: ResNet(planes) for name, planes in PLANES.items()}
    recorded = {}
    for name, network in {**networks, "flat": flat}.items():
        shapes = {n: [*v.shape] for n, v in network.state_dict().items()}
        made = {n: torch.from_numpy(v) for n, v in values(shapes).items()}
        network.load_state_dict(made)
        x = torch.from_numpy(images(name).transpose(0, 3, 1, 2).copy())
        with torch.no_grad():
            logits = network.eval()(x).numpy().astype(float).round(7).tolist()
        recorded[name] = {"shapes": shapes, "logits": logits}
    RECORDED.write_text(json.dumps(recorded) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
