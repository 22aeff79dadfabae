"""What every part of a record is: frozen, exact, and with a reason for what is null.

Numbers are finite, or ``null`` with the reason under ``NAME_reason``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

__all__ = ["Many", "Part"]

T = TypeVar("T")
#: A list in JSON; a list and a tuple are both taken.
Many: TypeAlias = Annotated[tuple[T, ...], Strict(False)]


class Part(BaseModel):
    """Frozen, and exact: text is no number, and a key that is not known is refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )

    #: Fields that are left out when there is nothing to say.
    optional: ClassVar[tuple[str, ...]] = ()
    #: Why a field is null, where its maker does not say.
    usual: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _given(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        found: dict[str, Any] = _unicode(given)
        for name, field in cls.model_fields.items():
            reason = f"{name}_reason"
            absent = found.get(name, None if field.is_required() else field.default) is None
            if reason not in cls.model_fields or not absent or found.get(reason):
                continue
            if name not in cls.usual:
                raise ValueError(f"{name} is null and {reason} does not say why")
            found[reason] = cls.usual[name]
        return found

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {
            name: value
            for name, value in handler(self).items()
            if value is not None or not (name.endswith("_reason") or name in self.optional)
        }


def _unicode(value: Any) -> Any:
    """Text as UTF-8 can hold it: a command line may bring bytes that are none, which become '?'."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case Mapping():
            return {_unicode(key): _unicode(item) for key, item in value.items()}
        case list():
            return [_unicode(item) for item in value]
        case tuple():
            return tuple(_unicode(item) for item in value)
        case _:
            return value
