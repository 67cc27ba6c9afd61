"""What can be chosen of the Kubernetes backend."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class KubernetesSettings(BaseModel):
    """Where pods run, and how they get their GPUs. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = Field(min_length=1)  # of jobs that name none; any with Python 3.9 on its PATH as python3
    namespace: str = Field("longshore", pattern=DNS_LABEL)
    kubeconfig: Path | None = None  # the cluster that Longshore itself runs in if left out
    gpus: Literal["claims", "counts"] = "claims"  # exactly the chosen ones by DRA, or any so many of the node
    device_class: str = "gpu.nvidia.com"  # of claims; also the name of the driver
    resource: str = "nvidia.com/gpu"  # of counts
    ranks_service: str = Field("longshore-ranks", pattern=DNS_LABEL)  # headless; pods find each other by it
    bind_s: float = Field(60.0, gt=0.0)  # within which a node takes its pod
    deadline_s: float = Field(5.0, gt=0.0, le=60.0)  # of a call
