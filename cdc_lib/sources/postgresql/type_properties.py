"""The properties that say how values are represented.

Left out, Delta's own types are used; set, the values are those that Debezium would write. What cannot be
written Debezium's way yet is refused, since a reader of the rows would take one form for the other.
"""

from __future__ import annotations

from cdc_lib.properties import Differs, Property, choice, not_yet, notice

_LATER = dict.fromkeys(("isostring", "microseconds", "nanoseconds"), "not yet supported")
_EXACT = "nothing is lost, and a representation can be chosen later"
_TEXT = "the server's text"

TYPES: tuple[Property, ...] = (
    Property(
        "decimal.handling.mode",
        "For numeric. precise: DECIMAL, or STRING where one cannot hold the type: more than 38 digits, or "
        "none declared.",
        choice("precise", "double", "string"),
        "precise",
        shapes=True,
    ),
    Property(
        "time.precision.mode",
        "For date, timestamp and time: numbers since the epoch or midnight, as Debezium writes them. "
        "Default: DATE, TIMESTAMP_NTZ and STRING.",
        choice("adaptive", "adaptive_time_microseconds", "connect"),
        shapes=True,
        declined=_LATER,
        differs=Differs(
            "adaptive",
            "a date is a date; the numbers need a guide to be read",
            "DATE, TIMESTAMP_NTZ, STRING",
            tell=True,
        ),
    ),
    Property(
        "binary.handling.mode",
        "For bytea. bytes: BINARY; the others: STRING.",
        choice("bytes", "base64", "base64-url-safe", "hex"),
        "bytes",
        shapes=True,
    ),
    not_yet(
        "hstore.handling.mode",
        "hstore arrives as the server's text, whatever is asked for",
        differs=Differs("json", _EXACT, _TEXT),
    ),
    not_yet(
        "interval.handling.mode",
        "intervals arrive as the server's text, whatever is asked for",
        differs=Differs("numeric", "how many microseconds a month has is a guess", _TEXT),
    ),
    not_yet(
        "money.fraction.digits",
        "money arrives as the server's text",
        differs=Differs("2", "the server's lc_monetary says how many there are", _TEXT),
    ),
    not_yet(
        "include.unknown.datatypes",
        "columns of other types arrive as the server's text",
        differs=Differs("false", "a column that was left out would be gone without a word", _TEXT),
    ),
    notice(
        "unavailable.value.placeholder",
        "no placeholder is ever written: a column that the log did not carry is NULL and named in "
        "`after_unavailable`; silver keeps the value it has",
        differs=Differs("__debezium_unavailable_value", "it cannot be told from a value", "NULL, and a list"),
    ),
    not_yet("converters", "custom converters change values; a column's type can be set under `tables`"),
    not_yet("field.name.adjustment.mode", "columns keep their source names", accepts=("none",)),
    notice("schema.name.adjustment.mode", "it renames Kafka Connect's schemas, which do not exist here"),
    notice("column.propagate.source.type", "source types are always in the schema_history table"),
    notice("datatype.propagate.source.type", "source types are always in the schema_history table"),
)

_MASKED = "ignoring it would write values that were to be hidden"
MASKS: tuple[Property, ...] = (
    not_yet("column.truncate.to.<length>.chars", _MASKED),
    not_yet("column.mask.with.<length>.chars", _MASKED),
    not_yet("column.mask.hash.v2.<algorithm>.with.salt.<salt>", _MASKED),
    not_yet("column.mask.hash.<algorithm>.with.salt.<salt>", _MASKED),
)
