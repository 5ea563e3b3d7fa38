from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from infra.demo.run import count_exported_rows, exported_rows
from services.settings import Settings


def test_rows_of_all_visible_folders_are_read(tmp_path: Path) -> None:
    """Rows without a date are read too. Temporary folders of Spark are not."""
    visible = ("date=2020-07-25/batch=0", "date=__HIVE_DEFAULT_PARTITION__/batch=1")
    for number, folder in enumerate((*visible, ".spark-staging-1/date=2020-07-25/batch=2", "_checkpoint")):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"InvoiceNumber": [str(number)]}), tmp_path / folder / "part-0.parquet")
    settings = Settings(export_dir=str(tmp_path))
    assert [{"InvoiceNumber": "0"}, {"InvoiceNumber": "1"}] == exported_rows(settings)
    assert count_exported_rows(settings) == 2


def test_without_an_export_there_are_no_rows(tmp_path: Path) -> None:
    """Before the first export there is no folder."""
    settings = Settings(export_dir=str(tmp_path / "none"))
    assert exported_rows(settings) == []
    assert count_exported_rows(settings) == 0


def test_unknown_columns_are_kept(tmp_path: Path) -> None:
    """The demo then reports every row as a mismatch. The columns that the export adds are left out."""
    folder = tmp_path / "date=2020-07-25" / "batch=0"
    folder.mkdir(parents=True)
    row = {"InvoiceNumber": "1", "CustomerCardNo": "4711", "LineID": "1#1", "DateSource": "till"}
    pq.write_table(pa.Table.from_pylist([row]), folder / "part-0.parquet")
    assert [{"InvoiceNumber": "1", "CustomerCardNo": "4711"}] == exported_rows(Settings(export_dir=str(tmp_path)))


def test_rows_of_a_delta_table_are_those_of_its_newest_version(tmp_path: Path) -> None:
    """Files that a compaction has replaced are still in the folder, and their rows do not count twice."""
    for number in range(3):
        rows = pa.table({"InvoiceNumber": [str(number)], "date": ["2020-07-25"], "LineID": [f"{number}#1"]})
        write_deltalake(tmp_path, rows, mode="append", partition_by=["date"])
    DeltaTable(tmp_path).optimize.compact()
    assert 4 == len(list(tmp_path.glob("date=*/*.parquet")))
    settings = Settings(export_dir=str(tmp_path))
    assert [{"InvoiceNumber": str(number)} for number in range(3)] == sorted(exported_rows(settings), key=str)
    assert 3 == count_exported_rows(settings)
