"""headrace: train vision models on image collections that do not fit in memory.

The data flow, one stage after the other (``docs/architecture.md`` draws it)::

    index -> plan -> read -> decode -> augment -> batch -> dispatch -> train

* ``headrace.datastores``: what exists, in which order it is read, and the background workers that read it;
* ``headrace.augment``: keyed randomness and the geometry of an image;
* ``headrace.train``: a thin trainer over batches;
* ``headrace.tools``: the ``headrace`` command.

Importing this package loads nothing else.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
