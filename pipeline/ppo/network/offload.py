"""Frozen models in host memory, which are on the device only while they run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Offloaded:
    """Keeps frozen models' weights in host memory; `on_device` copies them to the device.

    A pass needs only the copy of the weights, so nothing is copied back.  The host memory is pinned
    where there is a GPU: the copy then runs at the full speed of the bus.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        self._device = device
        weights = [w for model in models for w in (*model.parameters(), *model.buffers())]
        self._weights = list({id(weight): weight for weight in weights}.values())
        for weight in self._weights:
            weight.data = _in_host_memory(weight.data)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """The weights are on the device inside, and in host memory again afterwards."""
        home = [weight.data for weight in self._weights]
        try:
            for weight in self._weights:
                weight.data = _on_device(weight.data, self._device)
            yield
        finally:
            for weight, data in zip(self._weights, home, strict=True):
                weight.data = data


def _in_host_memory(data: Tensor) -> Tensor:
    return data.cpu().pin_memory() if torch.cuda.is_available() else data.cpu()


def _on_device(data: Tensor, device: torch.device) -> Tensor:
    return data.to(device, non_blocking=True)
