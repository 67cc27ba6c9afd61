"""Virtual clusters of Microsoft Philly, as Muri's csv: Rivendile/Muri."""

import numpy as np

from ...model.workload import DEFAULT_PARAMETER_BYTES
from ..csv_format import CsvFormat
from ..jobs import Jobs, jobs_of
from ..table import LONGEST_S, Rows

COLUMNS = ("job_id", "num_gpu", "submit_time", "duration", "model_name", "iteration_time")
MS_PER_S = 1000.0
# Parameters as the reference implementations count them (torchvision, Hugging Face base models, and the convolutional
# network of Mnih et al. 2015 for the two agents).
PARAMETERS = {
    "a2c": 1_687_206,
    "bert": 109_482_240,
    "dqn": 1_687_206,
    "gpt2": 124_439_808,
    "resnet18": 11_689_512,
    "shufflenet_v2_x1_0": 2_278_604,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
}
BYTES_PER_PARAMETER = 4  # gradients in single precision


def _jobs(rows: Rows) -> Jobs:
    most_ms = LONGEST_S * MS_PER_S
    return jobs_of(
        rows.cells["job_id"],
        rows.whole_numbers("num_gpu"),
        rows.numbers("duration", most=most_ms) / MS_PER_S,
        rows.numbers("submit_time", most=most_ms) / MS_PER_S,
        compute_s=rows.numbers("iteration_time", least=1e-3, most=most_ms) / MS_PER_S,
        parameter_bytes=np.array([_parameter_bytes(name) for name in rows.cells["model_name"]]),
        names=rows.texts("model_name"),
    )


def _parameter_bytes(model: str) -> float:
    parameters = PARAMETERS.get(model.strip())
    return DEFAULT_PARAMETER_BYTES if parameters is None else float(parameters * BYTES_PER_PARAMETER)


FORMAT = CsvFormat(COLUMNS, lambda columns: {"num_gpu", "submit_time"} <= columns, _jobs, times="in milliseconds")
