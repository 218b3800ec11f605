"""Owns: what there is to say of an option beyond its help: an example, the fine print, what others' values mean here.
Must not: parse, or repeat what the option table says.
Called by: spec.settings (INSTEAD), and the tool that writes docs/reference/cli.md."""

from __future__ import annotations

_SLURM = 'in an allocation, --hosts "$SLURM_JOB_NODELIST" --nproc-per-node N reaches its nodes by ssh'
_SSH = "--launcher ssh, with the same hostfile"
_FOUND = "leave it out: one worker for each accelerator found; --device cuda makes that a must"
_ACCEPT = "accept-new takes unknown keys; a changed key is never taken"

# Values that other launchers take where ours does not: what to say instead.
INSTEAD: dict[str, dict[str, str]] = {
    "nproc-per-node": {
        "cpu": "say the number, for this machine --nproc-per-node $(nproc)",
        **dict.fromkeys(("gpu", "cuda", "xpu", "npu", "hpu", "mps"), _FOUND),
    },
    "launcher": {
        **dict.fromkeys(("slurm", "srun"), _SLURM),
        **dict.fromkeys(("pdsh", "mpi", "openmpi", "mpich", "mvapich", "impi", "jsrun", "standard"), _SSH),
    },
    "device": {
        "gpu": "cuda (for ROCm too), or xpu for Intel's",
        "rocm": "cuda is torch's name for it",
        "hip": "cuda is torch's name for it",
        "tpu": "TPUs are not meshrun's",
    },
    "bind": {
        **dict.fromkeys(("exclusive", "rank"), "cores: as many whole cores for every worker"),
        **dict.fromkeys(("node", "socket", "package"), "numa: a part of the accelerator's NUMA node"),
    },
    "start-method": {"forkserver": "fork is that: one process imports torch, and the workers fork from it"},
    "host-key-policy": {
        **dict.fromkeys(("no", "off"), _ACCEPT),
        "yes": "that is strict",
        "ask": "nothing is ever asked: strict or accept-new",
    },
}

# The fine print, for the reference page.
MORE: dict[str, str] = {
    "hostfile": "The page [hostfile](hostfile.md) has every form. A file that cannot be read is an error; there is no "
    "default file.",
    "hosts": "A number after the colon is slots here. Excludes `--hostfile`.",
    "include": "The order stays that of the hostfile. Without ids the whole host; an id the host does not have is "
    "refused.",
    "exclude": "What is left of a host keeps its device ids.",
    "nodes": "More than there are is refused.",
    "nproc-per-node": "`auto` is the default. By hand it is about this node alone, and may differ between nodes.",
    "launcher": "A host is this machine if its name or address is one of this machine's and its line has no other user "
    "or port.",
    "mesh": "Outermost dim first, the last varies fastest. The product is the number of workers. A text that ends in "
    "`.yaml`, has a `/` or names a file is a mesh file.",
    "no-python": "No node needs torch then; `--init` is off.",
    "init": "`--no-init` is `--init off`.",
    "device": "`cuda` is ROCm too.",
    "backend": "gloo on the CPU; on an accelerator gloo for CPU tensors and its own (nccl, xccl, hccl) for the rest.",
    "bind": "See [cores and threads](../how-to/bind.md). The plan shows the CPUs of this machine's workers, a run's "
    "`plan.json` those of all.",
    "pass-local-rank": "Right behind the script or program, as torch.distributed.launch and deepspeed put it. Without "
    "it nothing is ever added to the script's arguments.",
    "preload": "Names joined by commas; `module:name` also asks the module for `name`, and a `?` behind either means: "
    "if it can be imported. `auto` stands for the imports that the script opens with, as far as they are known to do "
    "no harm: numpy, torch's own parts, transformers, lightning and others, not pandas. Where a module starts threads, "
    "workers start as with `--start-method spawn`.",
    "env": "`NAME` must be set where meshrun runs. A glob takes what fits, except what describes a machine, a login or "
    "a run (interfaces, device masks, `TMPDIR`, `HOSTNAME`, `SSH_*` ...): those travel only by their full name. A "
    "glob that takes nothing is a remark, no error. Values are bytes, and never stand in an argument, a plan or a log.",
    "env-file": "Literal values, quotes as in a shell (`A='x y'`, over several lines too), `export` in front, `#` "
    "comments and blank lines; nothing is expanded. Of a key given twice the last counts. At most 1 MiB.",
    "env-remote": "`$NAME` and `${NAME}` are the variables of the node's login environment; "
    "a name that is not there gives nothing, and nothing else is expanded. `-x` of the same name wins.",
    "python": "A path on the nodes; a relative one is seen from here, `~/` and a bare name from there. `python=` on "
    "a host's line wins. Absent on a node: exit code 125, node and path named.",
    "workdir": "Where the workers run; `workdir=` on a host's line wins for that host. A relative script is looked for "
    "in `--workdir`, else in this directory: one path for all nodes, whatever `workdir=` says, and the same file "
    "(sha256) on all.",
    "prelude": "Run by POSIX sh. Its output goes to no worker; if it fails, the run does not start (125) and its "
    "output is shown under that host.",
    "ssh-user": "`user@` or `user=` on a host's line wins; the ssh config is asked last.",
    "ssh-port": "`:port` or `port=` on a host's line wins; the ssh config is asked last.",
    "host-key-policy": "A changed or revoked key always stops the run, and so does one of another type than those that "
    "are known of the host, as with ssh: `accept-new` is for hosts of which no key is known.",
    "connect-timeout": "By hand: how long node 0 is dialled.",
    "master-addr": "By hand: where node 0 listens for the others, needed there. `addr=` on a host's line offers an "
    "address without pinning it. A loopback address with more than one node is refused.",
    "master-port": "By hand: the port where node 0 listens for the others; the workers' store has one of its own.",
    "start-timeout": "By hand also: how long node 0 waits for the others. What is missing is named, with its "
    "Python stacks.",
    "nnodes": "This machine is one of N on which the same command is started; needs `--node-rank`, `--master-addr` "
    "and `--master-port`. 1 is an ordinary run on this machine. `meshrun plan --format commands` prints the lines. "
    "What makes a run go differently must be the same on all nodes, or all end with both values shown: mesh, script, "
    "`--init`, `--device`, `--backend`, `--timeout`, `--start-timeout`, `--grace`, `--time-limit`, `--signal-workers`, "
    "`--hang-timeout`, `--max-restarts`.",
    "node-rank": "`auto` reads SLURM_NODEID, OMPI_COMM_WORLD_RANK and PMI_RANK, in this order.",
    "token-file": "At most 4096 bytes; blanks around it do not count.",
    "log-dir": "Each run makes a directory of its own in it, with every byte that every rank wrote.",
    "show": "Only what the screen shows; the run directory has everything.",
    "format": "Belongs to `meshrun plan` and `--dry-run`.",
    "signal-workers": "Needs `--time-limit`.",
    "local": "The page [rehearse](../how-to/rehearse.md) says what is as on the cluster and what is not. Every host "
    "needs a count; excludes `--nnodes` and `--launcher ssh`.",
    "fake": "Its groups have all their members and do nothing. The page [rehearse](../how-to/rehearse.md) says which "
    "scripts run so. Excludes `--local`, `--no-python` and `--init off`.",
    "ranks": "Rank 0 when not said, 256 at most. `classes` takes all combinations, so at most 3 to the power of the "
    "dims.",
    "tensors": "`fake` when not said.",
    "steps": "With success, as by `sys.exit(0)`, when one of its optimizers has done so many.",
    "hang-timeout": "At least 1. A rank moves while it writes or computes.",
    "max-restarts": "Only failures of workers are followed by another attempt.",
    "time-limit": "From the start of the command, connecting included.",
}

EXAMPLES: dict[str, str] = {
    "hostfile": "--hostfile hosts",
    "hosts": "--hosts gpu[01-16]:8,login",
    "include": "--include gpu[01-04]@gpu07:0,2-3",
    "exclude": "--exclude gpu03@gpu04:7",
    "mesh": "--mesh pp=2,dp=auto,tp=4",
    "module": "-m pkg.train --epochs 3",
    "no-python": "--no-python ./a.out",
    "preload": "--preload auto",
    "env": "-x WANDB_MODE -x LEVEL=3 -x 'NCCL_*'",
    "env-file": "--env-file prod.env",
    "env-remote": "--env-remote DATA='$SCRATCH/data'",
    "prelude": "--prelude 'module load cuda; . env.sh'",
    "nnodes": "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500",
    "show": "--show 0,4-7",
    "signal-workers": "--time-limit 3600 --signal-workers USR1@60",
    "job": "--job job.yaml",
}
