"""Settings that a class declares, with the default, check and meaning of each in one place.

    class Walk(BatchAttack):
        steps: int = setting(count, "number of steps, at least 1", default=40)

``Walk(model, epsilon, steps=10)`` checks the value and stores it, and so does a later ``attack.steps = 20``. The
constructor, its signature and the arguments in the docstring follow from the declarations, and the declared settings
identify a run.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

from pyrobust.checks import choice
from pyrobust.errors import PyrobustError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[type], type]:
        """Mark a class for type checkers; at run time, return it unchanged."""
        return lambda cls: cls


Value = TypeVar("Value")
#: (name, value) → the value in one type; raises InputError or InputTypeError, like the functions of
#: ``pyrobust.checks``.
Check: TypeAlias = Callable[[str, Any], Any]
_REQUIRED = inspect.Parameter.empty

Read = TypeVar("Read", covariant=True)
Written = TypeVar("Written", contravariant=True)


class Converted(Protocol[Read, Written]):
    """For type checkers: an attribute that accepts more types on assignment than it returns on reading."""

    def __get__(self, instance: object, owner: type | None = None) -> Read: ...
    def __set__(self, instance: object, value: Written) -> None: ...


@dataclasses.dataclass(eq=False)
class Setting:
    """A declared setting: assigning it checks the value; reading it is like reading a plain attribute.

    Attributes:
        name: name of the constructor's argument and of the class's attribute.
        attribute: name of the instance's attribute that holds the value.
        default: default of the argument; without a default the argument is required.
        check: checks every value.
        help: the setting's meaning, in the words of a docstring.
        init: whether it is an argument of the constructor.
        kw_only: whether the argument is keyword-only; None for the default of the class.
        stored: whether it is one of the settings that identify a run.
        option: the command line's option that sets it; None if there is none.
    """

    check: Check | None
    help: str
    default: Any
    init: bool
    kw_only: bool | None
    stored: bool
    attribute: str
    option: str | None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.attribute = self.attribute or name

    def parameter(self, by_keyword: bool, annotation: Any) -> inspect.Parameter:
        """Return the constructor's parameter, keyword-only as ``kw_only`` says or, if it is None, ``by_keyword``."""
        only = by_keyword if self.kw_only is None else self.kw_only
        kind = inspect.Parameter.KEYWORD_ONLY if only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        annotation = inspect.Parameter.empty if annotation is None else annotation
        return inspect.Parameter(self.name, kind, default=self.default, annotation=annotation)

    # Without __get__, reads go to the instance's own dictionary, at the speed of any attribute.
    def __set__(self, instance: object, value: Any) -> None:
        held = vars(instance)
        before = dict(held) if held.get("_complete") else None
        held[self.attribute] = value if self.check is None else self.check(self.name, value)
        if before is not None and isinstance(instance, Declared):
            try:
                instance._check_settings()
            except PyrobustError:
                held[self.attribute] = before[self.attribute]
                raise


def setting(
    check: Check | None = None,
    help: str = "",
    *,
    default: Any = _REQUIRED,
    init: bool = True,
    kw_only: bool | None = None,
    stored: bool = True,
    attribute: str = "",
    option: str | None = None,
) -> Any:
    """Declare a setting of a class; for the arguments see ``Setting``.

    >>> from pyrobust.checks import count
    >>> class Walk(Declared):
    ...     steps: int = setting(count, "number of steps", default=40)
    >>> walk = Walk(steps=10)
    >>> walk.steps
    10
    >>> walk.steps = 0
    Traceback (most recent call last):
    pyrobust.errors.InputError: steps: expected at least 1, got 0
    """
    return Setting(check, help, default, init, kw_only=kw_only, stored=stored, attribute=attribute, option=option)


def state(default: Value, *, init: Literal[False] = False) -> Value:
    """Declare an attribute that is not an argument, with its first value.

    >>> class Walk(Declared):
    ...     taken: int = state(0)
    >>> Walk().taken
    0
    """
    return default


@dataclass_transform(kw_only_default=True, field_specifiers=(setting, state))
class Declared:
    """A class whose settings are declared with ``setting``, and whose constructor follows from them.

    If a class declares settings and defines no ``__init__``, it gets a generated one. The generated ``__init__`` calls
    the ``__init__`` of the nearest base class that defines one, assigns the settings in the order of their declaration,
    and calls ``_check_settings`` and ``_constructed``.
    """

    #: Whether settings are passed by keyword only, if ``setting`` does not say.
    _by_keyword: ClassVar[bool] = True
    #: Other defaults of a base class's arguments.
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        declared = [value for value in vars(cls).values() if isinstance(value, Setting)]
        if declared and "__init__" not in vars(cls):
            cls.__init__ = _constructor(cls)  # type: ignore[method-assign]  # mypy forbids replacing any method
        if declared and cls.__doc__:
            cls.__doc__ = _documented(cls.__doc__, settings_of(cls))

    #: Whether the constructor has assigned all settings.
    _complete: bool = state(False)

    def _check_settings(self) -> None:
        """Check settings that depend on each other: once all are assigned, and whenever one is assigned later."""

    def _constructed(self) -> None:
        """Compute what depends on the settings, as the constructor's last step."""


@dataclass_transform(kw_only_default=False, field_specifiers=(setting, state))
class DeclaredInOrder(Declared):
    """A class whose settings may also be passed by position, in the order of their declaration.

    >>> class Walk(DeclaredInOrder):
    ...     steps: int = setting(default=40)
    >>> Walk(10).steps
    10
    """

    _by_keyword = False


def settings_of(cls: type) -> dict[str, Setting]:
    """Return the settings of a class by name, inherited settings first; a redeclared setting keeps its first place.

    >>> class Walk(Declared):
    ...     steps: int = setting(default=40)
    >>> list(settings_of(Walk))
    ['steps']
    """
    settings: dict[str, Setting] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Setting):
                settings[name] = value
            elif name in settings:
                del settings[name]  # a subclass's plain attribute or property in its place
    return settings


def stored_settings(owner: Declared) -> dict[str, Any]:
    """Return the settings that identify a run: the declared settings, and those that a user's own class adds.

    A plain attribute of a user's class counts as a setting unless a class of the package has this attribute.

    >>> class Walk(Declared):
    ...     steps: int = setting(default=40)
    >>> stored_settings(Walk())
    {'steps': 40}
    """
    declared = {declaration.attribute: declaration for declaration in settings_of(type(owner)).values()}
    package = next((base for base in type(owner).__mro__ if base.__module__.startswith("pyrobust.")), Declared)

    def belongs(name: str) -> bool:
        return declared[name].stored if name in declared else not hasattr(package, name)

    return {name: value for name, value in vars(owner).items() if belongs(name)}


def option_settings(cls: type) -> dict[str, str]:
    """Return the class's settings that have a command-line option, as a mapping: option → setting.

    >>> class Walk(Declared):
    ...     queries: int = setting(default=40, option="steps")
    >>> option_settings(Walk)
    {'steps': 'queries'}
    """
    return {declared.option: name for name, declared in settings_of(cls).items() if declared.option and declared.init}


def optional(check: Check) -> Check:
    """Return a check that accepts None and what the given check accepts.

    >>> from pyrobust.checks import count
    >>> optional(count)("kernel", None), optional(count)("kernel", 3)
    (None, 3)
    """
    return lambda name, value: None if value is None else check(name, value)


def one_of(*choices: str) -> Check:
    """Return a check that accepts only these names.

    >>> one_of("ce", "dlr")("loss", "ce")
    'ce'
    """
    return lambda name, value: choice(name, value, choices)


def truth(name: str, value: Any) -> bool:
    """Return the truth value of any object.

    >>> truth("random_start", 1)
    True
    """
    return bool(value)


def _constructor(cls: type[Declared]) -> Callable[..., None]:
    """Return a constructor that takes the settings and the arguments of the nearest handwritten base constructor."""
    at = next(i for i, kind in enumerate(cls.__mro__) if i and _is_written(vars(kind).get("__init__")))
    base: Callable[..., None] = vars(cls.__mro__[at])["__init__"]
    declared = {
        name: setting for name, setting in settings_of(cls).items() if any(name in vars(k) for k in cls.__mro__[:at])
    }
    inherited = [p for p in _signature(base) if p.name not in declared]
    passed = [parameter.name for parameter in inherited[1:]]
    parameters = [p.replace(default=cls._defaults.get(p.name, p.default)) for p in inherited]
    hints = {name: text for kind in reversed(cls.__mro__) for name, text in inspect.get_annotations(kind).items()}
    parameters[:] = sorted(
        [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        + [setting.parameter(cls._by_keyword, hints.get(name)) for name, setting in declared.items() if setting.init]
        + [p for p in parameters if p.kind is p.KEYWORD_ONLY],
        key=lambda parameter: parameter.kind,
    )

    # A dataclass whose fields are the arguments, so that Python checks them and names them in its errors.
    fields = [(p.name, Any, _field(p)) for p in parameters[1:]]
    record = dataclasses.make_dataclass(cls.__name__, fields, eq=False, namespace={"__qualname__": cls.__qualname__})

    def construct(self: Declared, *arguments: Any, **keywords: Any) -> None:
        values = vars(record(*arguments, **keywords))
        base(self, **{name: values[name] for name in passed})
        for name, setting in declared.items():
            setattr(self, name, values.get(name, setting.default))
        self._check_settings()
        self._complete = True
        self._constructed()

    function: Any = construct
    function.__name__, function.__qualname__ = "__init__", f"{cls.__qualname__}.__init__"
    function.__module__ = cls.__module__
    resolved: dict[str, Any] = {}
    for owner in (base, *reversed(cls.__mro__[:at])):
        resolved |= _annotations(owner)
    function.__annotations__ = {p.name: resolved[p.name] for p in parameters if p.name in resolved}
    function.__signature__ = inspect.Signature(parameters, return_annotation=None)
    return construct


def _field(parameter: inspect.Parameter) -> Any:
    """Return the dataclass field for a parameter of the constructor."""
    default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
    return dataclasses.field(default=default, kw_only=parameter.kind is parameter.KEYWORD_ONLY)


def _is_written(constructor: Any) -> bool:
    """Whether a constructor was written by hand rather than generated from settings."""
    return constructor is not None and "__signature__" not in getattr(constructor, "__dict__", {})


def _signature(function: Callable[..., None]) -> list[inspect.Parameter]:
    """The parameters of a handwritten constructor, without *arguments and **keywords such as those of ``object``."""
    signature = inspect.signature(function)
    return [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _annotations(owner: Any) -> dict[str, Any]:
    """Return the annotations of a class or function, as text if a name in them exists only for type checkers."""
    try:
        return inspect.get_annotations(owner, eval_str=True)
    except NameError:
        return inspect.get_annotations(owner)


def _documented(doc: str, declared: dict[str, Setting]) -> str:
    """Add a line to the docstring's arguments for each setting that has a meaning but no line yet."""
    before, section, after = inspect.cleandoc(doc).partition("Args:\n")
    if not section:
        return doc
    arguments, *paragraphs = after.split("\n\n", 1)
    lines = [
        f"    {name}: {setting.help}."
        for name, setting in declared.items()
        if setting.init and setting.help and f"    {name}:" not in arguments
    ]
    return "\n\n".join(["\n".join([before + section + arguments, *lines]), *paragraphs])
