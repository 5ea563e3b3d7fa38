"""What the check of schema_changes schemas says is what Avro's own library says, which Spark brings along."""

import json

from hypothesis import given, settings

from schemas.compatibility import obstacles
from tests.support.strategies import schema_changes


def test_the_check_agrees_with_avros_own(spark):
    """Of every generated pair both say the same. The library knows no logical types; the pairs have none."""
    avro = spark._jvm.org.apache.avro

    @settings(deadline=None, database=None)
    @given(schema_changes())
    def agree(pair):
        writer, reader = (avro.Schema.Parser().parse(json.dumps(each)) for each in pair)
        found = avro.SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getType().toString()
        assert (found == "COMPATIBLE") == (not obstacles(pair[1], pair[0]))

    agree()
