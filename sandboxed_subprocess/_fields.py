"""Classes of named values with defaults, as `dataclasses` makes them, but for the time: its decorator compiles six functions
for each class, which for our few classes was a quarter of the import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda cls: cls


class _Named:
    """Every annotated name of a subclass is a field, every field has a default, and all are keywords of the constructor."""

    _defaults: ClassVar[dict[str, Any]] = {}
    # Names that take no part in comparison, and names that repr() leaves out.
    _not_compared: ClassVar[frozenset[str]] = frozenset()
    _not_shown: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: cls.__dict__[name] for name in cls.__annotations__ if name in cls.__dict__}
        cls._defaults = {**cls._defaults, **own}

    def __init__(self, **given: Any) -> None:
        defaults = self._defaults
        unknown = given.keys() - defaults.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument {min(unknown)!r}")
        self.__dict__.update(defaults)
        self.__dict__.update(given)
        self.__post_init__()

    def __post_init__(self) -> None:
        pass

    @classmethod
    def names(cls) -> list[str]:
        return list(cls._defaults)

    def _compared(self) -> tuple[Any, ...]:
        return tuple([self.__dict__[name] for name in self._defaults if name not in self._not_compared])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Named) or type(other) is not type(self):
            return NotImplemented
        return self._compared() == other._compared()

    def __repr__(self) -> str:
        shown = [f"{name}={self.__dict__[name]!r}" for name in self._defaults if name not in self._not_shown]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(kw_only_default=True)
class Fields(_Named):
    """Fields that may change."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Frozen(_Named):
    """Fields that are set once, and so can be hashed."""

    def __setattr__(self, name: str, value: object) -> None:
        raise frozen_error("assign to", name)

    def __delattr__(self, name: str) -> None:
        raise frozen_error("delete", name)

    def __hash__(self) -> int:
        return hash(self._compared())

    def _changed(self, changes: dict[str, Any]) -> Self:
        return type(self)(**{**{name: self.__dict__[name] for name in self._defaults}, **changes})


def frozen_error(what: str, name: str) -> AttributeError:
    from dataclasses import FrozenInstanceError  # what people catch; an AttributeError

    return FrozenInstanceError(f"cannot {what} field {name!r}")
