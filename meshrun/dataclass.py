"""Owns: `dataclass`, `field`, `replace`, `fields`, `asdict` as the standard library means them: `meshrun.quickclass`.
Must not: be more than this: the type checker sees the standard library's.
Called by: every module with values."""

TYPE_CHECKING = False  # type checkers know the name; `typing` itself takes 3 ms to import
if TYPE_CHECKING:
    from dataclasses import asdict as asdict
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import replace as replace
else:
    from meshrun.quickclass import asdict as asdict
    from meshrun.quickclass import dataclass as dataclass
    from meshrun.quickclass import field as field
    from meshrun.quickclass import fields as fields
    from meshrun.quickclass import replace as replace
