"""The folder of one bad step: capture and store.

``incident.json`` holds an ``IncidentRecord``, ``tensors.safetensors`` the tensors that it names. Opening one
runs no code of anybody's: no pickle, sizes checked before anything is read, names that stay inside.
"""

from halfguard.incident.capture import Incidents
from halfguard.incident.encoding import decode, encode
from halfguard.incident.store import Incident, open_incident, write_incident

__all__ = ["Incident", "Incidents", "decode", "encode", "open_incident", "write_incident"]
