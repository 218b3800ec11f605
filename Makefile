.PHONY: demo test bench chaos frameworks

demo:
	tools/demo

test:
	tools/test

# accelerate, transformers, Lightning, DeepSpeed, Megatron-core and torchtitan, each under torchrun and meshrun.
frameworks:
	tools/test --frameworks

# make bench PART="start memory" runs some parts (`python -m bench --help` names them), TIMES=3 takes fewer samples,
# INSTALL=--install gets the launchers that are measured beside; results go to bench/results/.
TIMES ?= 5
bench:
	tools/setup test
	.venv/bin/python -m bench --times $(TIMES) $(INSTALL) $(PART)

# make chaos N=1000 [SEED=..] [TIME=seconds] plays trials of the fault suite one after another (as root);
# make chaos TRIAL=seed:number plays that one again.
N ?= 1000
TIME ?= 3600
chaos:
	tools/setup test
	.venv/bin/python -m tests.chaos -n $(N) --time $(TIME) $(if $(SEED),--seed $(SEED)) $(if $(TRIAL),--trial $(TRIAL))
