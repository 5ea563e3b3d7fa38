"""The rules of JSON are those of the pipeline."""

from pipelines.columns import json_mistakes, json_types
from services.domain import json_rules


def test_the_pipeline_has_the_same_patterns_and_reasons() -> None:
    """Both find the same place of a mistake. The pipeline's pattern of a name allows a line break at its end."""
    assert (json_rules.READABLE, json_rules.VALID_BYTES, json_rules.NOT_ONE_OBJECT) == (
        json_mistakes.READABLE,
        json_mistakes.VALID_BYTES,
        json_mistakes.NOT_ONE_OBJECT,
    )
    assert {words for _, words in json_rules.FITTING.values()} == {words for _, words in json_types._FITS.values()}
