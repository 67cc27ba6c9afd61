"""Fields of files and requests that hold a registered name."""

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticKnownError, core_schema

from .plugins import is_registered, registered


@dataclass(frozen=True)
class RegisteredName:
    """Annotates a field of a pydantic model: it is one of the names that are registered when it is read.

    Its JSON schema lists them, as that of a Literal does.

    Args:
        seam: A key of `plugins.SEAMS`.
    """

    seam: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Check the name that was given."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """List the names."""
        return {**handler(schema), "enum": self.names()}

    def names(self) -> list[str]:
        """Return all names that the field may have."""
        return list(registered(self.seam))

    def _checked(self, given: str) -> str:
        if not is_registered(self.seam, given):
            raise PydanticKnownError("literal_error", {"expected": ", ".join(self.names())})
        return given
