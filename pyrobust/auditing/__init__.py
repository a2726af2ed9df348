"""Read certification logs, and check whether their contents can be true."""

from pyrobust.auditing.audit import Audit, audit
from pyrobust.auditing.certification_log import CertificationLog, read_certification_log

__all__ = ["Audit", "CertificationLog", "audit", "read_certification_log"]
