from __future__ import annotations

from pathlib import Path

import pytest
import torch
from specexport.exporter.weights.host_memory import move_to_disk
from torch import nn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_stay_and_files_have_no_names(dtype: torch.dtype, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7), nn.PReLU(1)).to(dtype)
    model[1].weight, model[2].weight = model[0].weight, nn.Parameter(torch.empty(0, dtype=dtype))
    model[1].bias.data = torch.arange(14, dtype=dtype)[::2]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    move_to_disk(model, tmp_path)
    assert not [*tmp_path.iterdir()]
    assert Path("/proc/self/maps").read_text().count(f"{tmp_path}/") == 2  # a tied weight once
    for name, value in model.named_parameters(remove_duplicate=False):
        assert value is parameters[name]
        assert torch.equal(value, before[name])
    places = [value.data_ptr() for value in parameters.values()]
    move_to_disk(model, tmp_path)
    assert [value.data_ptr() for value in parameters.values()] == places
    with torch.no_grad():
        model[0].weight[3] = 0
    assert not model[1].weight[3].any()
    del model, parameters, value
    assert f"{tmp_path}/" not in Path("/proc/self/maps").read_text()
