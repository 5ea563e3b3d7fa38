from pathlib import Path

from infra.demo.trading_day import from_files
from services.messaging.schema_ids import FolderSchemaIds


def test_every_line_of_every_file_is_one_message(tmp_path: Path) -> None:
    """Blank lines are ignored. A line that is no JSON object is published unchanged and has no invoice."""
    (tmp_path / "a.jsonl").write_text('{"InvoiceNumber": "1", "StoreID": "S"}\n\nbroken\n', encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("[]\n", encoding="utf-8")
    good, broken, array = from_files([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], FolderSchemaIds())
    assert good.invoice == {"InvoiceNumber": "1", "StoreID": "S"}
    assert (good.key, broken.key) == (b"S", None)
    assert (broken.value, broken.invoice) == (b"broken", None)
    assert (array.value, array.invoice) == (b"[]", None)
