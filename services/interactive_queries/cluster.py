"""The parts of interactive queries that belong together, for those who serve them."""

from dataclasses import dataclass

from services.interactive_queries.local import LocalInstance
from services.interactive_queries.metadata import ClusterMetadata
from services.interactive_queries.reports import PeerReports


@dataclass(frozen=True, slots=True)
class Cluster:
    """This instance among the others."""

    local: LocalInstance
    reports: PeerReports
    metadata: ClusterMetadata

    @classmethod
    def around(cls, local: LocalInstance, reports: PeerReports) -> "Cluster":
        return cls(local, reports, ClusterMetadata(local, reports))
