from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infra.demo.run import count_parquet_rows, parquet_rows


def test_rows_of_all_visible_folders_are_read(tmp_path: Path) -> None:
    """Rows without a date are read too. Temporary folders of Spark are not."""
    visible = ("date=2020-07-25/batch=0", "date=__HIVE_DEFAULT_PARTITION__/batch=1")
    for number, folder in enumerate((*visible, ".spark-staging-1/date=2020-07-25/batch=2", "_checkpoint")):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"InvoiceNumber": [str(number)]}), tmp_path / folder / "part-0.parquet")
    assert [{"InvoiceNumber": "0"}, {"InvoiceNumber": "1"}] == parquet_rows(tmp_path)
    assert count_parquet_rows(tmp_path) == 2


def test_nothing_exported_is_no_rows(tmp_path: Path) -> None:
    """Before the first export there is no folder, and no rows."""
    assert parquet_rows(tmp_path / "none") == []
    assert count_parquet_rows(tmp_path / "none") == 0
