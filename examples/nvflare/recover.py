"""The recovery: one job, on the same sites, which run the script that they trained with."""

import argparse

from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner

from fedcrab.nvflare import Recovery

parser = argparse.ArgumentParser()
parser.add_argument("--sites", type=int, default=4)
parser.add_argument("--attackers", default="")
parser.add_argument("--history", required=True)
parser.add_argument("--malicious", required=True)
parser.add_argument("--recovered", required=True)
parser.add_argument("--method", default="")
parser.add_argument(
    "--folder", default="", help="write the job there, to be submitted, in place of a simulation"
)
options = parser.parse_args()

arguments = f"--sites {options.sites} --attackers {options.attackers or 'nobody'}"
job = FedJob(name="recover", min_clients=2)
job.to_server(Recovery(options.history, options.malicious, options.recovered, method=options.method))
job.to_clients(ScriptRunner(script="client.py", script_args=arguments, framework=FrameworkType.NUMPY))
if options.folder:
    job.export_job(options.folder)
else:
    job.simulator_run("workspace/recover", n_clients=options.sites, threads=options.sites)
