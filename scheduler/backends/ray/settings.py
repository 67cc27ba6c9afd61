"""What can be chosen of the Ray backend."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class RaySettings(BaseModel):
    """Which Ray cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: Annotated[
        str, Field(pattern=r"^https?://[^/\s]+$", description="A URL such as http://127.0.0.1:8265.")
    ] = "http://127.0.0.1:8265"  # of Ray's dashboard
    token: Path | None = None  # file with the token of a cluster that asks for one
