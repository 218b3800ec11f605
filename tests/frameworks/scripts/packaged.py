"""AOTInductor: rank 0 exports and compiles a model to a file, all ranks load and run it."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval(), torch.ones(2, 8)
path = f"{sys.argv[1]}/model.pt2"
if dist.get_rank() == 0:
    quick = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}
    with torch.no_grad():
        exported = torch.export.export(model, (x,))
        torch._inductor.aoti_compile_and_package(exported, package_path=path, inductor_configs=quick)
dist.barrier()
loaded = torch._inductor.aoti_load_package(path)
print(f"{loaded(x).sum().item():.5f} {torch.allclose(loaded(x), model(x), atol=1e-5)}")
dist.barrier()
dist.destroy_process_group()
