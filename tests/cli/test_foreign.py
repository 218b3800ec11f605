"""Owns: the command lines of other launchers: every option of theirs means the same here or is refused by its name.
Must not: start anything.
Called by: pytest."""

from __future__ import annotations

import re

import pytest

from meshrun.spec.argv import split_argv
from meshrun.spec.foreign import find_refused

# The complete lists, as their sources and manuals have them; torchrun's comes from the torch that is installed.
DEEPSPEED = """
-H --hostfile -i --include -e --exclude --num_nodes --min_elastic_nodes --max_elastic_nodes --num_gpus
--num_accelerators --master_port --master_addr --node_rank --launcher --launcher_args --module --no_python
--no_local_rank --no_ssh --no_ssh_check --force_multi --save_pid --enable_each_rank_log --autotuning
--elastic_training --user_args --bind_cores_to_rank --bind_core_list --ssh_port --venv_script --log_level -q --quiet
"""
ACCELERATE = """
-h --help --config_file --quiet -q --cpu --multi_gpu --tpu --ipex --use_xpu --mixed_precision --num_processes
--num_machines --num_cpu_threads_per_process --enable_cpu_affinity --dynamo_backend --dynamo_mode
--dynamo_use_fullgraph --dynamo_use_dynamic --dynamo_use_regional_compilation --use_deepspeed --use_fsdp
--use_parallelism_config --use_megatron_lm --gpu_ids --same_network --machine_rank --main_process_ip
--main_process_port -t --tee --log_dir --role --rdzv_backend --rdzv_conf --max_restarts --monitor_interval -m
--module --no_python --tpu_cluster --no_tpu_cluster --tpu_use_sudo --vm --env --main_training_function
--downcast_bf16 --deepspeed_config_file --zero_stage --offload_optimizer_device --offload_param_device
--offload_optimizer_nvme_path --offload_param_nvme_path --gradient_accumulation_steps --gradient_clipping
--zero3_init_flag --zero3_save_16bit_model --deepspeed_hostfile --deepspeed_exclusion_filter
--deepspeed_inclusion_filter --deepspeed_multinode_launcher --deepspeed_moe_layer_cls_names --fsdp_version
--fsdp_offload_params --fsdp_min_num_params --fsdp_sharding_strategy --fsdp_reshard_after_forward
--fsdp_auto_wrap_policy --fsdp_state_dict_type --fsdp_use_orig_params --fsdp_activation_checkpointing
--megatron_lm_tp_degree --megatron_lm_pp_degree --megatron_lm_no_load_optim --fp8_backend --fp8_margin
--fp8_use_autocast_during_eval --parallelism_config_tp_size --parallelism_config_dp_shard_size
--aws_access_key_id --aws_secret_access_key --debug --mpirun_hostfile --mpirun_ccl
"""
MPIRUN = """
-h --help -q --quiet -v --verbose -V --version -N --display-map --display-allocation --output-proctable --dvm
--max-vm-size -H --host --hostfile --default-hostfile --machinefile --cpu-set -n --n -c -np --np --npersocket
--npernode --pernode --map-by --bycore --byslot --nolocal --nooversubscribe --oversubscribe --bynode --cpu-list
--rank-by --bind-to --cpus-per-proc --cpus-per-rank --bind-to-core --bind-to-socket --report-bindings -rf --rankfile
--output-filename --stdin --merge-stderr-to-stdout --tag-output --timestamp-output --xml --xml-file --xterm --path
--prefix --noprefix -s --preload-binary --preload-files --set-cwd-to-session-dir --wd --wdir -x --gmca --mca --am
--tune --debug --debugger -tv --cartofile --enable-recovery --disable-recovery --do-not-launch --app
--allow-run-as-root --tmpdir --timeout --report-state-on-timeout --get-stack-traces --continuous --launch-agent
--leave-session-attached --debug-daemons --debug-devel --show-progress --stream-buffering --forward-signals
--report-uri --report-pid --ompi-server --server-wait-time --index-argv-by-rank --personality --runtime-options
--with-ft --output --display --use-hwthread-cpus --initial-errhandler --gpu-support --exec-agent --pset --dvm-hosts
--display-topo --display-devel-map --use-regexp --novm -nolocal -npernode -pernode -hostfile -machinefile -bind-to
-map-by -mca -tag-output -wdir -host -ppn -perhost -genv -genvlist -genvall -genvnone -env -envlist -envall -envnone
-hosts -f -iface -launcher -launcher-exec -bootstrap -rmk -l -prepend-rank -prepend-pattern -outfile-pattern
-errfile-pattern -configfile -disable-auto-cleanup -print-all-exitcodes -order-nodes -info -usize -arch -soft -file
"""
SRUN = """
--account -A --acctg-freq --bcast --begin -b --bb --bbf --chdir -D --clusters -M --comment --compress --constraint -C
--container --container-id --container-image --container-mounts --contiguous --core-spec -S --cores-per-socket
--cpu-bind --cpu_bind --cpu-freq --cpus-per-gpu --cpus-per-task -c --deadline --delay-boot --dependency -d
--disable-status -X --distribution -m --epilog --error -e --exclude --exclusive --exact --export --export-file
--extra-node-info -B --gpu-bind --gpu-freq --gpus -G --gpus-per-node --gpus-per-socket --gpus-per-task --gres
--gres-flags --het-group --hint --hold --immediate -I --input -i --jobid --job-name -J --kill-on-bad-exit -K --label
-l --licenses -L --mail-type --mail-user --mcs-label --mem --mem-bind --mem-per-cpu --mem-per-gpu --mincpus --mpi
--msg-timeout --multi-prog --network --nice --no-allocate -Z --no-kill -k --nodefile -F --nodelist -w --nodes -N
--ntasks -n --ntasks-per-core --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --open-mode --output -o
--overcommit -O --overlap --oversubscribe -s --partition -p --prefer --preserve-env -E --priority --profile --prolog
--propagate --pty --qos -q --quiet -Q --quit-on-interrupt --reboot --relative -r --reservation --resv-ports
--send-libs --signal --slurmd-debug --sockets-per-node --spread-job --switches --task-epilog --task-prolog
--test-only --thread-spec --threads -T --threads-per-core --time -t --time-min --tmp --tres-per-task --unbuffered -u
--use-min-nodes --usage --verbose -v --version -V --wait -W --wckey --x11
"""
LISTS = {"deepspeed": DEEPSPEED, "accelerate": ACCELERATE, "mpirun": MPIRUN, "srun": SRUN}
# How mpirun and torchrun spell what is an option of ours: named with its two dashes.
OURS_WITH_ONE_DASH = ("-hostfile", "-hosts", "-launcher", "-env")


def message_of(words: list[str]) -> str:
    """What is said against a command line, "" if it is accepted."""
    return "\n".join(map(str, split_argv(words).problems))


@pytest.mark.parametrize(("program", "flag"), [(name, flag) for name, text in LISTS.items() for flag in text.split()])
def test_an_option_of_another_launcher_is_known(program: str, flag: str) -> None:
    message = message_of([flag, "1", "2", "t.py"])
    if flag in OURS_WITH_ONE_DASH:
        assert f"long options have two dashes: -{flag}" in message
    else:
        assert "unknown option" not in message, (program, message)


def test_every_option_of_the_installed_torchrun_is_known() -> None:
    run = pytest.importorskip("torch.distributed.run")
    launch = pytest.importorskip("torch.distributed.launch")
    assert launch.parse_args(["--use-env", "t.py"]).use_env
    flags = [flag for action in run.get_args_parser()._actions for flag in action.option_strings]
    assert len(flags) > 40
    for flag in [*flags, "--use-env", "--use_env"]:
        assert "unknown option" not in message_of([flag, "1", "t.py"]), flag


# What a user of each types most, and what the answer must name.
TYPED = [
    ("-np 8 t.py", "-np", "--nproc-per-node"),
    ("-n 8 t.py", "-n", "slots="),
    ("-N 2 t.py", "-N", "--nodes N"),
    ("--npernode 4 t.py", "--npernode", "--nproc-per-node"),
    ("--ntasks-per-node=8 t.py", "--ntasks-per-node", "--nproc-per-node"),
    ("--bind-to none t.py", "--bind-to", "binding"),
    ("--map-by ppr:4:node t.py", "--map-by", "order the hostfile"),
    ("--mca btl tcp,self t.py", "--mca", "no counterpart"),
    ("--wdir /tmp t.py", "--wdir", "--workdir"),
    ("--host a,b t.py", "--host", "--hosts"),
    ("--num_processes 8 t.py", "--num_processes", "--nproc-per-node"),
    ("--use_fsdp --fsdp_offload_params true t.py", "--fsdp_offload_params", "plugin"),
    ("--shutdown-timeout 3 t.py", "--shutdown-timeout", "--grace"),
    ("--launcher_args x t.py", "--launcher_args", "--ssh-config"),
    ("--venv_script a t.py", "--venv_script", "--prelude"),
    ("-i gpu01 t.py", "-i", "--include"),
    ("--partition gpu t.py", "--partition", "salloc"),
    ("--exclusive t.py", "--exclusive", "salloc"),
    ("--hostfil x t.py", "--hostfil", "did you mean --hostfile?"),
    ("--nproc x t.py", "--nproc", "did you mean --nproc-per-node?"),
]


@pytest.mark.parametrize(("line", "flag", "part"), TYPED)
def test_the_answer_names_what_was_typed_and_the_way(line: str, flag: str, part: str) -> None:
    message = message_of(line.split())
    assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", message) and part in message


def test_a_refused_option_takes_its_values_with_it() -> None:
    """What follows is read as it was meant, so that all problems are true ones."""
    for line in ("--mca a b --exclusive --tee=3 -t 3 --rdzv-id x", "--mixed_precision bf16 --fsdp_version 2"):
        problems = split_argv([*line.split(), "t.py", "--unknown"]).problems
        assert problems and all("is not an option of meshrun" in problem.message for problem in problems)


def test_a_name_that_is_none_is_not_taken_for_a_family() -> None:
    assert find_refused("--dynamo-x") and find_refused("--fp8-x")
    assert find_refused("--fp") is None and find_refused("-") is None and find_refused("--") is None
