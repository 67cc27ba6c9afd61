"""Fields of files and requests that hold a registered name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        besides: Further words that the field may have.
        renamed: Today's name for each old one, which files may still have.
    """

    seam: str
    besides: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Check the name that was given."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """List the names."""
        return {**handler(schema), "enum": self.names()}

    def names(self) -> list[str]:
        """Return all words that the field may have."""
        return [*registered(self.seam), *self.besides]

    def _checked(self, given: str) -> str:
        name = self.renamed.get(given, given)
        if name not in self.besides and not is_registered(self.seam, name):
            raise PydanticKnownError("literal_error", {"expected": ", ".join(self.names())})
        return name
