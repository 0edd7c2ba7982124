"""Queries in the cells of a notebook, and their answers with intervals and prices."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load_ipython_extension(ipython: "InteractiveShell") -> None:
    """Bring %dpsql and %%dpsql into a notebook: what `%load_ext dpsql` calls."""
    from dpsql.notebook.magics import DpsqlMagics  # only here is IPython needed

    ipython.register_magics(DpsqlMagics)
