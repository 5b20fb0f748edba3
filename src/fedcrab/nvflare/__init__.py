"""On NVIDIA FLARE: an aggregator that records, a job's sites as a fleet, a controller that recovers."""

from fedcrab.extras import refuse_import

try:
    import nvflare  # noqa: F401
except ImportError as error:
    refuse_import(__name__, "FLARE", error)

from fedcrab.nvflare.fleet import FlareFleet
from fedcrab.nvflare.job_folder import make_recovery_job
from fedcrab.nvflare.recorder import Recorder
from fedcrab.nvflare.recovery import Recovery

__all__ = ["FlareFleet", "Recorder", "Recovery", "make_recovery_job"]
