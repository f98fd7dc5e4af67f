"""The folder of one bad step: capture and store.

``incident.json`` holds an ``IncidentRecord``, ``tensors.safetensors`` the tensors that it names. Opening an
incident runs no code from it: there is no pickle, and sizes and names are checked before anything is read.
"""

from halfguard.incident.capture import IncidentWriter
from halfguard.incident.encoding import decode
from halfguard.incident.store import Incident, open_incident, write_incident

__all__ = ["Incident", "IncidentWriter", "decode", "open_incident", "write_incident"]
