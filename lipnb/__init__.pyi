from lipnb import attention as attention
from lipnb import bounds as bounds
from lipnb import certified as certified
from lipnb import corpora as corpora
from lipnb import jacobian as jacobian
from lipnb import lipschitz as lipschitz
from lipnb import measures as measures
from lipnb import models as models
from lipnb import reference as reference
from lipnb import spectral as spectral
from lipnb import sweeps as sweeps
from lipnb import worst_case as worst_case
from lipnb.attention import Attention as Attention
from lipnb.certified import Bracket as Bracket
from lipnb.certified import certify as certify
from lipnb.jacobian import AttentionJacobian as AttentionJacobian
from lipnb.jacobian import AutodiffJacobian as AutodiffJacobian
from lipnb.jacobian import SingularPair as SingularPair
from lipnb.jacobian import block_norms as block_norms
from lipnb.jacobian import singular_pair as singular_pair
from lipnb.lipschitz import LocalLipschitz as LocalLipschitz
from lipnb.lipschitz import differentiable_lipschitz as differentiable_lipschitz
from lipnb.lipschitz import local_lipschitz as local_lipschitz
from lipnb.reference import reference_cases as reference_cases
from lipscan.scanning.run import scan as scan

__version__: str
