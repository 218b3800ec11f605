.PHONY: demo test bench

demo:
	tools/demo

test:
	tools/test

# make bench PART=start runs one part; `python -m bench --help` names them.
bench:
	tools/setup test
	.venv/bin/python -m bench $(PART)
