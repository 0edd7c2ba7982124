"""The audit: what runs of the whole stack on neighbouring databases prove about the ε that is claimed."""

from dpsql.auditing.audit import Extent, Report, audit
from dpsql.auditing.verdict import Finding

__all__ = ["Extent", "Finding", "Report", "audit"]
