"""Owns: options of other launchers that meshrun refuses by name, each with meshrun's way to say it, as data.
Must not: hold what is accepted (spec.options does), or parse a command line.
Called by: spec.argv and spec.settings where something is to be refused, and the tool that writes the reference."""

from __future__ import annotations

from collections.abc import Iterator

from meshrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Foreign:
    """An option that is refused: whose it is, how many words follow it as values, and what to do instead."""

    program: str
    flag: str
    values: int
    way: str


_RENDEZVOUS = "node 0 is found by itself; to pin it, --master-addr and --master-port"
_LOGS = "every rank's output is shown and kept in the run directory; choose with --show and --log-dir"
_SHOW = "--show 0,4-7 or --show tp=0 chooses whose lines are shown"
_PREFIX = "every line is prefixed [host:rank dp=0,tp=1]; leave it out"
_BIND = "binding is --bind numa or --bind cores here: each worker's CPUs follow from its node"
_ELASTIC = "the number of nodes is fixed for a run: --nodes N, or --nnodes N by hand"
_COUNT = "meshrun counts by node: --nproc-per-node N, or slots= in the hostfile; --nodes N takes the first N hosts"
_PER_NODE = "--nproc-per-node N"
_ORDER = "ranks go to hosts in hostfile order, slot by slot; order the hostfile"
_NODES = "--nodes N takes the first N hosts; with mpirun's meaning, --nproc-per-node N"
_DEVICES = "devices=0,2-3 on the host's line, --include host:0,2, or CUDA_VISIBLE_DEVICES"
_BY_HAND = "by hand on each node: --nnodes N --node-rank R --master-addr A --master-port P"
_HOSTS = "--hostfile FILE, or --hosts a:4,b:4"
_OMITS = "it has no counterpart here; leave it out"
_THREADS = "OMP_NUM_THREADS is the node's physical cores divided by its workers; -x OMP_NUM_THREADS=N sets it"
_ACCELERATE = "give it to Accelerator(...) in the script, or as accelerate's own variable: -x ACCELERATE_...=VALUE"
_PLUGIN = "give its plugin to Accelerator(...) in the script, or accelerate's own variables with --env-file FILE"
_MESH = "say it in the mesh: --mesh dp=auto,tp=N; the PARALLELISM_CONFIG_ variables follow from it"
_ALLOCATION = 'ask for it with salloc or sbatch, and give meshrun the nodes: --hosts "$SLURM_JOB_NODELIST"'
_RUN = "ssh reaches the nodes here; ~/.ssh/config or --ssh-config FILE says how"
_PLAN = "`meshrun plan` shows the placement, and where each value came from"
_ABOUT = "the run's last block names the first failure and its place; events.jsonl in the run directory has the rest"
_STDIN = "stdin is /dev/null on every rank; give the script a file"
_EXPORT = "-x NAME, -x NAME=VALUE or -x 'PREFIX_*'; --env-file FILE for many"
_IO = "every rank's stdout and stderr are files in the run directory: --log-dir DIR"

# Program, its flags, the meshrun way. `=` behind a flag: a value follows; `==`: two do; `*`: all that begin so.
_TABLE: tuple[tuple[str, str, str], ...] = (
    ("meshrun", "--spares=", "spare nodes are not part of this version; leave it out"),
    ("torchrun", "--rdzv-endpoint= --rdzv-backend=", _RENDEZVOUS),
    ("torchrun", "--rdzv-id=", "each run gets an id of its own; leave it out"),
    ("torchrun", "--rdzv-conf=", "--start-timeout and --timeout set the bounds"),
    ("torchrun", "--local-addr=", "write addr=IP on the host's line of the hostfile"),
    ("torchrun", "--monitor-interval=", "workers are watched without polling; leave it out"),
    ("torchrun", "--role=", 'all workers have the role "default"; leave it out'),
    ("torchrun", "--tee= --redirects= -r= --logs-specs=", _LOGS),
    ("torchrun", "-t=", "--time-limit SECONDS is srun's --time; as for torchrun's --tee, " + _LOGS),
    ("torchrun", "--local-ranks-filter= --duplicate-stdout-filters= --duplicate-stderr-filters=", _SHOW),
    ("torchrun", "--log-line-prefix-template=", _PREFIX),
    ("torchrun", "--event-log-handler=", "events.jsonl in the run directory has the events"),
    ("torchrun", "--numa-binding=", _BIND),
    ("torchrun", "--signals-to-handle=", "SIGINT, SIGTERM and SIGHUP stop the run in order; leave it out"),
    ("torchrun", "--shutdown-timeout=", "--grace SECONDS is the time from SIGTERM to SIGKILL"),
    ("torchrun", "--virtual-local-rank", "export the device mask with -x CUDA_VISIBLE_DEVICES=... instead"),
    ("torchrun", "--run-path", "--no-python runs a program; a script's path needs no option"),
    ("deepspeed", "-i=", "--include HOSTS chooses hosts and devices; --identity FILE is the private key"),
    ("deepspeed", "-e=", "--exclude HOSTS leaves hosts or devices out; --log-dir DIR is where output goes"),
    ("deepspeed", "--autotp-size=", "say it in the mesh: --mesh dp=auto,tp=N"),
    ("deepspeed", "--launcher-args=", "put options of ssh into ~/.ssh/config or --ssh-config FILE"),
    ("deepspeed", "--no-ssh", _BY_HAND),
    ("deepspeed", "--save-pid", "`meshrun ps` lists live runs, `meshrun stop` ends one; leave it out"),
    ("deepspeed", "--enable-each-rank-log=", _LOGS),
    ("deepspeed", "--log-level=", "--quiet leaves out meshrun's own words; the script's logging is its own"),
    ("deepspeed", "--autotuning=", "tuning is not meshrun's; run `deepspeed` for it"),
    ("deepspeed", "--elastic-training --min-elastic-nodes= --max-elastic-nodes=", _ELASTIC),
    ("deepspeed", "--bind-cores-to-rank --bind-core-list=", _BIND),
    ("deepspeed", "--venv-script=", "--prelude '. /path/to/venv/bin/activate'"),
    ("deepspeed", "--user-args=", "the script's arguments stand behind the script"),
    ("deepspeed", "--deepspeed-config= --deepspeed", "it belongs to the script: write it behind the script"),
    ("accelerate", "--config-file=", "--job FILE holds meshrun's options; accelerate's own go into the script"),
    ("accelerate", "--cpu", "--device cpu"),
    ("accelerate", "--use-cpu", "--device cpu"),
    ("accelerate", "--multi-gpu --same-network", "it follows from the list of hosts; leave it out"),
    ("accelerate", "--ipex --use-xpu", "--device xpu"),
    ("accelerate", "--tpu --tpu-* --no-tpu-cluster --vm= --downcast-bf16 --main-training-function= --aws-*",
     "meshrun starts no TPU and no cloud jobs; use `accelerate launch` for them"),
    ("accelerate", "--num-processes=", _COUNT),
    ("accelerate", "--num-machines=", "--nodes N takes the first N hosts; " + _BY_HAND),
    ("accelerate", "--machine-rank=", "--node-rank R; " + _BY_HAND),
    ("accelerate", "--main-process-ip=", "--master-addr A"),
    ("accelerate", "--main-process-port=", "--master-port P"),
    ("accelerate", "--num-cpu-threads-per-process=", _THREADS),
    ("accelerate", "--enable-cpu-affinity", _BIND),
    ("accelerate", "--gpu-ids=", _DEVICES),
    ("accelerate", "--mixed-precision= --gradient-accumulation-steps= --gradient-clipping=", _ACCELERATE),
    ("accelerate", "--dynamo-use-fullgraph --dynamo-use-dynamic --dynamo-use-regional-compilation", _ACCELERATE),
    ("accelerate", "--dynamo-*", _ACCELERATE),
    ("accelerate", "--use-deepspeed --use-fsdp --use-megatron-lm --fp8-use-autocast-during-eval", _PLUGIN),
    ("accelerate", "--deepspeed-hostfile=", "--hostfile FILE"),
    ("accelerate", "--deepspeed-inclusion-filter=", "--include HOSTS"),
    ("accelerate", "--deepspeed-exclusion-filter=", "--exclude HOSTS"),
    ("accelerate", "--deepspeed-multinode-launcher=", _RUN),
    ("accelerate", "--deepspeed-* --zero-* --zero3-* --offload-* --fsdp-* --megatron-lm-* --fp8-*", _PLUGIN),
    ("accelerate", "--use-parallelism-config", _MESH),
    ("accelerate", "--parallelism-config-*", _MESH),
    ("accelerate", "--mpirun-hostfile=", "--hostfile FILE"),
    ("accelerate", "--mpirun-ccl=", "-x CCL_WORKER_COUNT=N"),
    ("accelerate", "--debug", "a failure's stack is shown without it; -x TORCH_DISTRIBUTED_DEBUG=DETAIL for more"),
    ("mpirun", "-n= -np= --n= --np= --num-proc=", _COUNT),
    ("mpirun", "-c=", "--nproc-per-node N for a number of workers, -x OMP_NUM_THREADS=N for one of threads"),
    ("mpirun", "-N=", _NODES),
    ("mpirun", "--npernode= --ppn= --perhost= --ppr=", _PER_NODE),
    ("mpirun", "--pernode", "--nproc-per-node 1"),
    ("mpirun", "--npersocket= --cpus-per-proc= --cpus-per-rank= --gpus-per-proc=", _PER_NODE),
    ("mpirun", "--host=", "--hosts a:4,b:4 (-H)"),
    ("mpirun", "--machinefile= --default-hostfile= -f=", "--hostfile FILE"),
    ("mpirun", "--map-by= --rank-by= --rankfile= -rf= --order-nodes= --nolocal --skip-launch-node", _ORDER),
    ("mpirun", "--bynode --byslot --bycore --bysocket", _ORDER),
    ("mpirun", "--bind-to= --cpu-set= --cpu-list= --membind= --bind-to-core --bind-to-socket --bind-to-none", _BIND),
    ("mpirun", "--report-bindings --use-hwthread-cpus", _BIND),
    ("mpirun", "--oversubscribe --nooversubscribe",
     "a host takes as many workers as its slots=; write the number that you want"),
    ("mpirun", "--mca== --gmca== --omca== --prtemca== --pmixmca== --am= --tune= --rmk=", _OMITS),
    ("mpirun", "--genv== --genvlist= --envlist=", _EXPORT),
    ("mpirun", "--genvall --envall", "-x '*' passes on all but the machine's own variables"),
    ("mpirun", "--genvnone --envnone", "nothing is passed on unless named; leave it out"),
    ("mpirun", "--prefix= --path=", "--python PATH, or --prelude 'PATH=/opt/...:$PATH'"),
    ("mpirun", "--noprefix", _OMITS),
    ("mpirun", "--wdir= --wd= --tmpdir=", "--workdir DIR"),
    ("mpirun", "--output-filename= --outfile-pattern= --errfile-pattern= --output-directory= --xml-file=", _IO),
    ("mpirun", "--tag-output --prepend-rank --prepend-pattern= --index-argv-by-rank", _PREFIX),
    ("mpirun", "--timestamp-output", "events.jsonl in the run directory has the times; lines are not stamped"),
    ("mpirun", "--merge-stderr-to-stdout", "2>&1 behind the command"),
    ("mpirun", "--output= --display= --xml --xterm= --stream-buffering= --ordered-output --demux=", _LOGS),
    ("mpirun", "--stdin=", _STDIN),
    ("mpirun", "--display-map --display-allocation --display-devel-map --display-topo --do-not-launch --info", _PLAN),
    ("mpirun", "--report-state-on-timeout --get-stack-traces", "--hang-timeout SECONDS; `meshrun stacks` in a run"),
    ("mpirun", "--allow-run-as-root", "it needs no leave; leave it out"),
    ("mpirun", "--app= --configfile= --file= --soft= --arch=", "one program a run; start several runs"),
    ("mpirun", "--preload-binary --preload-files= --set-cwd-to-session-dir",
     "files are not copied; the script must be on every node"),
    ("mpirun", "--enable-recovery --disable-recovery --continuous --with-ft= --disable-auto-cleanup",
     "a failure stops the run; --max-restarts N starts all workers again"),
    ("mpirun", "--forward-signals= --print-all-exitcodes --verbose -v --debug-daemons --leave-session-attached",
     _ABOUT),
    ("mpirun", "--launch-agent= --launcher-exec= --bootstrap= --bootstrap-exec= --personality= --dvm= --novm", _RUN),
    ("mpirun", "--runtime-options= --max-vm-size= --use-regexp -s --nameserver= --usize= --profile", _OMITS),
    ("mpirun", "--output-proctable --debugger= --debug-devel --tv --show-progress --report-uri= --report-pid=", _ABOUT),
    ("mpirun", "--cartofile= --ompi-server= --server-wait-time= --initial-errhandler= --exec-agent= --pset=", _OMITS),
    ("mpirun", "--gpu-support= --dvm-hosts=", _OMITS),
    ("mpirun", "--disable-hostname-propagation --localhost=", _OMITS),
    ("mpirun", "--iface= --network-interface= --network-interfaces=",
     "addresses are measured; to choose an interface, -x GLOO_SOCKET_IFNAME=eth0 -x NCCL_SOCKET_IFNAME=eth0"),
    ("mpirun", "--gloo --mpi-args=", "--backend NAME; by device when not said"),
    ("srun", "--ntasks=", _COUNT),
    ("srun", "--ntasks-per-node= --tasks-per-node=", _PER_NODE),
    ("srun", "--ntasks-per-gpu= --ntasks-per-core= --ntasks-per-socket= --ntasks-per-tres=", _PER_NODE),
    ("srun", "--nodelist= -w=", "--hosts LIST (Slurm's ranges are read), or --include HOSTS"),
    ("srun", "--nodefile= -F=", "--hostfile FILE"),
    ("srun", "--relative=", "--include HOSTS"),
    ("srun", "--cpus-per-task= --threads= -T=", _THREADS),
    ("srun", "--gpus= -G= --gpus-per-node= --gpus-per-task= --gpus-per-socket= --cpus-per-gpu= --gres= --gres-flags=",
     "slots=N or devices=0,2-3 on the host's line; an allocation's mask is respected"),
    ("srun", "--cpu-bind= --gpu-bind= --accel-bind= --mem-bind= --tres-bind= --hint= --distribution=", _BIND),
    ("srun", "--export=", _EXPORT),
    ("srun", "--export-file=", "--env-file FILE"),
    ("srun", "--chdir= -D=", "--workdir DIR"),
    ("srun", "--time= --time-min= --deadline=", "--time-limit SECONDS ends the run with exit code 124"),
    ("srun", "--error= --open-mode= -o=", _IO),
    ("srun", "--input=", _STDIN),
    ("srun", "--label -l --unbuffered -u", _PREFIX),
    ("srun", "--job-name= -J=", "each run gets an id of its own; leave it out"),
    ("srun", "--kill-on-bad-exit -K", "one failure stops the run; leave it out"),
    ("srun", "--wait= -W=", "a worker that ends early with 0 stops nobody; leave it out"),
    ("srun", "--signal=", "--signal-workers USR1@60"),
    ("srun", "--mpi= --resv-ports --network=", "torch needs no MPI; leave it out"),
    ("srun", "--multi-prog --het-group= --pack-group=", "one program a run; start several runs"),
    ("srun", "--pty", _STDIN),
    ("srun", "--prolog= --task-prolog=", "--prelude 'CMD' runs on each node before anything else"),
    ("srun", "--epilog= --task-epilog=", "put it behind the command: meshrun ...; code=$?; CMD"),
    ("srun", "--bcast --bcast-exclude= --send-libs", "files are not copied; the script must be on every node"),
    ("srun", "--test-only", _PLAN),
    ("srun", "--preserve-env", _EXPORT),
    ("srun", "--slurmd-debug= --acctg-freq= --msg-timeout= --treewidth= --disable-status", _OMITS),
    ("srun", "--container= --container-id= --container-*", "--python PATH may be a script that enters the container"),
    ("srun", "--account= --partition= -p= -A= -C= --constraint= --qos= --reservation= --exclusive --dependency= -d=",
     _ALLOCATION),
    ("srun", "--mem= --mem-per-cpu= --mem-per-gpu= --mem-update= --mincpus= --tmp= --licenses= -L= --clusters= -M=",
     _ALLOCATION),
    ("srun", "--begin= -b= --immediate -I --hold --priority= --nice --no-allocate -Z --comment= --wckey=",
     _ALLOCATION),
    ("srun", "--overlap --overcommit -O --exact --jobid= --no-kill -k --contiguous --core-spec= -S= --extra=",
     _ALLOCATION),
    ("srun", "--extra-node-info= -B= --cores-per-socket= --sockets-per-node= --threads-per-core= --thread-spec=",
     _ALLOCATION),
    ("srun", "--cpu-freq= --gpu-freq= --switches= --spread-job --spread-segments --segment --use-min-nodes --reboot",
     _ALLOCATION),
    ("srun", "--mail-type= --mail-user= --mcs-label= --delay-boot= --prefer= --cluster= --cluster-constraint=",
     _ALLOCATION),
    ("srun", "--oom-kill-step --propagate --power= --bb= --bbf= --tres-per-task= --consolidate-segments --stepmgr",
     _ALLOCATION),
    ("srun", "--context= --compress --runtime= --resources= --parsable --whole --x11 --async --external-launcher",
     _OMITS),
    ("srun", "--interactive --ignore-signals= --quit-on-interrupt --debugger-test --wait-for-children --autocomplete=",
     _OMITS),
    ("srun", "-E -Q -X --usage", "`meshrun --help` lists the options; long flags say what they mean"),
)  # fmt: skip


def _entries() -> Iterator[Foreign]:
    for program, flags, way in _TABLE:
        for text in flags.split():
            flag = text.rstrip("=")
            yield Foreign(program, flag, 1 if flag.endswith("*") else len(text) - len(flag), way)


ALL: tuple[Foreign, ...] = tuple(_entries())
REFUSED: dict[str, Foreign] = {entry.flag: entry for entry in ALL if not entry.flag.endswith("*")}
_FAMILIES = tuple(entry for entry in ALL if entry.flag.endswith("*"))


def find_refused(flag: str) -> Foreign | None:
    """What is known of a flag (long ones with `-` for `_`), or None. One dash before a long name is mpirun's way."""
    for name in (flag, "-" + flag) if len(flag) > 2 and flag[1] != "-" else (flag,):
        family = (entry for entry in _FAMILIES if name.startswith(entry.flag[:-1]))
        found = REFUSED.get(name) or next(family, None)
        if found:
            return found
    return None
