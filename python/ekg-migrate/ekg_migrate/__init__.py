"""Translates what operators of Jupyter Enterprise Gateway 3 have for ekg: settings, kernelspecs and pod templates.

The command line is in ``cli``. ``config`` reads settings and ``settings`` writes them; ``enterprise/options.json`` lists
all. ``kernelspec`` converts a kernelspec: ``podtemplate`` renders its template, and ``pod`` translates the result.
Files are parsed and never executed. The output has no secret.
"""

from ._version import __version__

__all__ = ["__version__"]
