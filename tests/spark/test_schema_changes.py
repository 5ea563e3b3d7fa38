"""The schema check agrees with Avro's Java library, which Spark contains."""

import json

from hypothesis import given, settings

from schemas.compatibility import obstacles
from tests.support.strategies import schema_changes


def test_the_check_agrees_with_avro(spark):
    """Both give the same verdict on generated pairs. The pairs have no logical types, which the library ignores."""
    avro = spark._jvm.org.apache.avro

    @settings(deadline=None, database=None)
    @given(schema_changes())
    def agree(pair):
        writer, reader = (avro.Schema.Parser().parse(json.dumps(each)) for each in pair)
        found = avro.SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getType().toString()
        assert (found == "COMPATIBLE") == (not obstacles(pair[1], pair[0]))

    agree()
