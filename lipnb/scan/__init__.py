"""A scan of a model: every layer's local constant on a text, certified and beside the published bounds.

``scan`` measures and keeps a folder with the table, its birth certificate and a report that opens offline.
"""

from lipnb.scan.catalogue import CATALOGUE, Bound
from lipnb.scan.run import Scan, folder_of, load, remeasure, scan

__all__ = ["CATALOGUE", "Bound", "Scan", "folder_of", "load", "remeasure", "scan"]
