"""The sections of a TOML specification as data: which keys there are, and what each may hold.

pydantic checks; the sentences are ours: file, key, what came, what was expected, the nearest name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from depthgauge.errors import SpecificationError, nearest
from depthgauge.network.draws import DRAW_ORDERS, DrawOrder
from depthgauge.network.spec import LARGEST_DEPTH, LARGEST_WIDTH

__all__ = ["Document", "read_document", "toml_of"]

_SEEDS = 'a whole number of at least 0, a list of them, or a range such as "0..15"'


def _whole(most: int) -> Any:
    return Field(ge=1, le=most, description=f"a whole number from 1 to {most}")


_Size = Annotated[int | None, _whole(LARGEST_WIDTH)]
_Text = Field(description="text in quotes")


class Section(BaseModel):
    """A field's ``description`` is what an error says was expected; ``None``: the file has none."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def given(self) -> dict[str, Any]:
        """What the file says, lists as tuples."""
        found = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: tuple(x) if isinstance(x, list) else x for name, x in found.items()}


class Block(Section):
    """Every other key is a free scalar of the equation."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, StrictStr | StrictInt | StrictFloat] = Field(init=False)

    equation: Annotated[str, _Text]

    @property
    def scalars(self) -> dict[str, str | int | float]:
        return dict(self.__pydantic_extra__)


class NetworkSection(Section):
    depth: Annotated[int | None, _whole(LARGEST_DEPTH)] = None
    width: _Size = None
    tokens: _Size = None
    size: _Size = None
    draws: DrawOrder | None = Field(
        default=None, description=f"one of {', '.join(map(repr, DRAW_ORDERS))}"
    )


class RunSection(Section):
    batch: int | None = Field(
        default=None, ge=1, description="a whole number of examples, at least 1"
    )
    seed: StrictInt | list[StrictInt] | StrictStr | None = Field(default=None, description=_SEEDS)
    dtype: Annotated[str | None, _Text] = None
    device: Annotated[str | None, _Text] = None
    instruments: StrictStr | list[StrictStr] | None = Field(
        default=None, description="a name or a list of names"
    )
    optimizer: str | None = Field(
        default=None, description='text in quotes that names an optimiser, such as "adamw"'
    )
    lr: float | None = Field(default=None, ge=0, description="a learning rate, a number above 0")


class CommissionSection(Section):
    depths: list[StrictInt] | None = Field(
        default=None, description="a list of numbers of blocks, such as [12, 48, 96]"
    )
    rival: Annotated[str | None, _Text] = None
    shallow: Annotated[int | None, _whole(LARGEST_DEPTH)] = None
    vary: list[StrictStr] | None = Field(
        default=None, description='a list of changes, such as ["norm=none", "scale*2"]'
    )
    corridor: Annotated[str | None, _Text] = None


class Document(Section):
    block: Block
    init: dict[str, str] = Field(default_factory=dict)
    network: NetworkSection = Field(default_factory=NetworkSection)
    run: RunSection = Field(default_factory=RunSection)
    corridor: dict[str, Any] | None = None
    commission: CommissionSection = Field(default_factory=CommissionSection)


_MODELS: dict[str, type[Section]] = {
    "block": Block,
    "network": NetworkSection,
    "run": RunSection,
    "commission": CommissionSection,
}

#: What a key that the user names may hold.
_FREE = {
    "block": 'a number or text such as "1/sqrt(L)"',
    "init": 'text that names an initialiser, such as "he"',
}


def read_document(file: str) -> Document:
    """The validated sections of the file, or a SpecificationError of one sentence."""
    document = _toml(file)
    try:
        return Document.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"]]
    raise SpecificationError(f"{file}: {_sentence(place, first['type'], first['input'])}")


def _toml(file: str) -> dict[str, Any]:
    document = toml_of(file, "a specification")
    if not document:
        raise SpecificationError(f'{file} is empty; write [block] and equation = "..." under it')
    if isinstance(init := document.get("init"), dict):
        document["init"] = _flat(init)
    return document


def toml_of(file: str, what: str) -> dict[str, Any]:
    """What the TOML file holds; ``what``: it was meant to be. Raises SpecificationError."""
    try:
        document = tomllib.loads(Path(file).read_bytes().decode("utf-8-sig"))
    except IsADirectoryError:
        raise SpecificationError(f"{file} is a directory, expected a TOML file") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SpecificationError(f"{file} cannot be read: {why}") from None
    except UnicodeDecodeError as error:
        raise SpecificationError(
            f"{file} is not UTF-8 text: byte {error.start + 1} cannot be read; save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SpecificationError(f"{file} is not valid TOML: {error}") from None
    except RecursionError:
        raise SpecificationError(f"{file} is nested too deep to be {what}") from None
    return document


def _flat(init: Mapping[str, Any]) -> dict[str, Any]:
    """``attention.o = "he"`` without quotes is a table in TOML, and means one name here."""
    flat: dict[str, Any] = {}
    for name, value in init.items():
        if isinstance(value, dict) and value:
            flat |= {f"{name}.{inner}": spec for inner, spec in value.items()}
        else:
            flat[name] = value
    return flat


def _sentence(place: list[str], kind: str, came: Any) -> str:
    """One of pydantic's errors in our words; ``place`` is the path of keys, ``came`` the value."""
    section, key = place[0], place[1] if len(place) > 1 else ""
    sections = list(Document.model_fields)
    if not key:
        if kind == "missing":
            return 'the section [block] is missing; write [block] and equation = "..." under it'
        if kind == "extra_forbidden":
            return (
                f"'{section}' is not a section{nearest(section, sections)}; "
                f"the sections are {', '.join(sections)}"
            )
        return f"{section} is {_shown(came)}, expected a section, [{section}], with keys under it"
    fields = _MODELS[section].model_fields if section in _MODELS else {}
    if kind == "missing":
        slip = next((name for name in came if nearest(name, [key])), "")
        advice = f"is {section}.{slip} meant to be it?" if slip else f'write {key} = "..."'
        return f"{section}.{key} is missing; {advice}"
    if kind == "extra_forbidden":
        return (
            f"{section}.{key} is not a key{nearest(key, fields)}; [{section}] has "
            f"{', '.join(fields)}"
        )
    expected = fields[key].description if key in fields else _FREE[section]
    return f"{section}.{key} is {_shown(came)}, expected {expected}"


def _shown(came: object) -> str:
    text = repr(came).lower() if isinstance(came, bool) else repr(came)
    return text if len(text) <= 60 else f"{text[:57]}..."
