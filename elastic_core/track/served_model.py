"""What MLflow runs to serve a registered model ("models from code"): the job's model, its weights, and no pickle.

This file is copied into every version, and so is the code that the job was pinned to. It needs the platform, and the
task's module where none was pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel
from safetensors.torch import load_file

from elastic_core.spec import JobSpec
from elastic_core.track.export import arrays, new_model


class ServedTask(PythonModel):
    def load_context(self, context: Any) -> None:
        spec = JobSpec.model_validate_json(Path(context.artifacts["spec"]).read_text())
        self.model, _ = new_model(spec, spec.entry_point.partition(":")[0])
        self.model.load_state_dict(load_file(context.artifacts["weights"]))
        self.model.eval()

    # No annotations: MLflow would take them for the schema of the input.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # noqa: ARG002
        """One array for one array (or a mapping of arrays for models that take one), as the model's forward gives."""
        with torch.inference_mode():
            return arrays(self.model(_tensors(model_input)))


def _tensors(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _tensors(part) for name, part in value.items()}
    array = np.asarray(value)
    tensor = torch.from_numpy(np.array(array, copy=True))
    return tensor.to(torch.get_default_dtype()) if array.dtype == np.float64 else tensor


set_model(ServedTask())
