"""How `privacy.clip-norm` and `privacy.noise-multiplier` treat an array of an uplink, by name.

Declared on the payload, `array(..., protect=VALUE)`, and carried out by `protection`.
"""

from __future__ import annotations

VALUE = "value"
"""The values are the contribution. The default of floats whose dimensions the run fixes."""
UPDATE = "update"
"""The difference to what the downlink's field of the same name holds is the contribution, and it is
sent added to that; an entry that the downlink lacks, or has in another shape, is a VALUE. Integers,
such as counters, are sent as they were received."""
CLASSES = "classes"
"""Class ids, which tell what a client has: with noise all C are sent, and in the fields of the same
first dimension the absent classes have zeros, and so noise."""
SHARES = "shares"
"""A VALUE of which, afterwards, negative numbers become 0 and the sum 1."""
UNIT_ROWS = "unit rows"
"""A VALUE of which, afterwards, every row gets the length 1."""
REFUSED = "refused"
"""Noise cannot cover it: a method that sends it is refused. The default of all others: integers,
counts, values with a declared least one, mappings, arrays of a length that the run does not fix."""

COVERED = (VALUE, UPDATE, SHARES, UNIT_ROWS)
TREATMENTS = (*COVERED, CLASSES, REFUSED)
SIZES = ("d", "C", "P")
"""Dimensions that the run fixes, so that a length tells nothing of the client."""
