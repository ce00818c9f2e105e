from lipscan.scanning.comparison import compare as compare
from lipscan.scanning.folder import Scan as Scan
from lipscan.scanning.folder import load as load
from lipscan.scanning.options import ScanOptions as ScanOptions
from lipscan.scanning.run import remeasure as remeasure
from lipscan.scanning.run import scan as scan
