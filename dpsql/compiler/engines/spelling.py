"""spelling: how an engine writes one entry of the allow-list of functions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Spelling:
    """A function or operator in the words of one engine, total for every value of its arguments' types.

    Attributes:
        template: SQL over positional arguments; `{all}` joins any number by `joiner`.
        raw: True where the value may be NaN, infinite or out of range until it is guarded.
        joiner: What stands between the arguments of `{all}`.
        passes_raw: True where a NaN or infinite argument gives such a result again, so that one guard at the
            end of a chain of arithmetic is enough.
    """

    template: str
    raw: bool = False
    joiner: str = ", "
    passes_raw: bool = False

    def sql(self, arguments: list[str]) -> str:
        """The call with its arguments."""
        return self.template.format(*arguments, all=self.joiner.join(arguments))
